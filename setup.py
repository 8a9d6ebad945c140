"""Which folders make up the package `promptcal`; everything else is in pyproject.toml.

The folders stay at the top of a checkout, as users of Dassl and CoOp expect. Installed as they are,
`datasets` would hide the library of that name, so they become parts of `promptcal`.
"""
import sys

from setuptools import find_packages, setup

PARTS = ("trainers", "datasets", "configs", "tools")

if "editable_wheel" in sys.argv:
    # pip install -e: the folder .package goes on Python's path, as in a checkout.
    packages = ["promptcal"]
    package_dir = {"": ".package"}
else:
    # The real folders, not the links in .package: a clone on Windows has none.
    packages = ["promptcal"]
    package_dir = {"promptcal": ".package/promptcal"}
    for part in PARTS:
        package_dir[f"promptcal.{part}"] = part
        packages.append(f"promptcal.{part}")
        packages += [f"promptcal.{part}.{name}" for name in find_packages(part)]

setup(packages=packages, package_dir=package_dir)
