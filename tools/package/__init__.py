"""Calibrated test-time adaptation of CLIP. Installed as `promptcal` itself; the other folders are its parts.

    from promptcal.trainers import adapt, load_clip
    from promptcal.datasets import build_dataset
"""
from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("promptcal")
except PackageNotFoundError:  # a checkout on the path that was never installed
    __version__ = "0+unknown"
