"""Installs the folders `trainers`, `datasets`, `configs` and `tools` as parts of one package, `promptcal`.

The folders stay at the top of the checkout, as users of Dassl and CoOp expect. A top-level package called `datasets`
would hide the library of that name, so `.package/promptcal` holds the package itself and links to the four.
"""
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
SOURCE = ".package"


class WithReference(build_py):
    """The slow reference lives with the tests. A wheel has no tests, so the benchmark gets a copy."""

    def run(self) -> None:
        super().run()
        for name in () if self.editable_mode else ("reference.py",):
            target = Path(self.build_lib, "promptcal", "tools", "speed", name)
            self.copy_file(str(HERE / "tests" / name), str(target))


setup(
    name="promptcal",
    version="1.0.0",
    description="Calibrated test-time adaptation of CLIP: TPT, C-TPT, O-TPT, SoC and their peers side by side",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(SOURCE),
    package_dir={"": SOURCE},
    cmdclass={"build_py": WithReference},
    entry_points={"console_scripts": ["promptcal = promptcal.tools.command:run"]},
    package_data={
        "promptcal.trainers.vlm.small": ["*.safetensors", "*.md"],
        "promptcal.trainers.report": ["templates/*"],
        "promptcal": ["py.typed"],
        "promptcal.configs": ["*/*.yaml", "*/*.json"],
    },
    install_requires=[
        "torch>=2.4",
        "torchvision>=0.19",
        "openai-clip>=1.0.1",  # OpenAI's CLIP: the module `clip`
        "yacs>=0.1.8",  # configs, as in Dassl and CoOp
        "tabulate>=0.9",  # result tables
        "tensorboard>=2.15",  # logs
        "gdown>=6.3",  # split files and prompts on Google Drive; 6.3 has time-outs
        "tqdm>=4.60",  # progress bars
        "numpy>=1.24",
        "numba>=0.60",  # compiles the loops over pixels that make views on a CPU
        "packaging",  # what the compatibility module hands to `clip`
        "pillow>=10",
        "safetensors>=0.4",  # weights and prompts that hold no code
        "matplotlib>=3.8",  # figures
        "jinja2>=3.1",  # the report page: templates that escape whatever a run holds
    ],
    extras_require={
        "open_clip": ["open_clip_torch>=3.0", "transformers>=4.56"],  # --backbone open_clip:MODEL/TAG
        "hf": ["transformers>=4.56", "sentencepiece"],  # --backbone hf:FOLDER
        "dassl": ["scikit-learn>=1.3", "scipy", "ftfy", "regex"],  # what Dassl and CoOp import, in their checkouts
        "dev": [
            "open_clip_torch>=3.0",  # models of other families, compared with what their own libraries compute
            "transformers>=4.56",
            "sentencepiece",
            "pytest>=8",
            "pytest-xdist>=3.5",  # most of the tests' time is programs that start, which halves on two cores
            "ruff>=0.5",
            "scikit-learn>=1.3",  # independent metrics that the tests compare with
            "playwright>=1.45",  # drives Chromium in the tests of pages
            "hypothesis>=6",  # fuzzing of inputs
        ],
    },
)
