"""Installs the folders `trainers`, `datasets`, `configs` and `tools` as parts of one package, `promptcal`.

The folders stay at the top of the checkout, as users of Dassl and CoOp expect. A top-level package called `datasets`
would hide the library of that name, so `.package/promptcal` holds the package itself and links to the four.
"""
import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
SOURCE = ".package"
INIT = (HERE / SOURCE / "promptcal" / "__init__.py").read_text(encoding="utf-8")
OTHER_BACKBONES = ["open_clip_torch>=3.0", "transformers>=4.56", "sentencepiece"]


setup(
    name="promptcal",
    version=re.findall(r'__version__ = "(.+)"', INIT)[0],
    description="Calibrated test-time adaptation of CLIP: TPT, C-TPT, O-TPT, SoC and their peers side by side",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(SOURCE),
    package_dir={"": SOURCE},
    entry_points={"console_scripts": ["promptcal = promptcal.tools.command:run"]},
    package_data={
        "promptcal.trainers.vlm.small": ["*.safetensors", "*.md"],
        "promptcal.trainers.report": ["templates/*"],
        "promptcal": ["py.typed"],
        "promptcal.configs": ["*/*.yaml", "*/*.json"],
    },
    install_requires=[
        "torch>=2.6",  # CVE-2025-32434
        "torchvision>=0.21",
        "openai-clip>=1.0.1",  # OpenAI's CLIP: the module `clip`
        "yacs>=0.1.8",  # configs, as in Dassl and CoOp
        "tabulate>=0.9",  # result tables
        "tensorboard>=2.15",  # logs
        "gdown>=6.3",  # split files and prompts on Google Drive; 6.3 has time-outs
        "tqdm>=4.60",  # progress bars
        "numpy>=1.24",
        "numba>=0.60",  # compiles the code that makes views
        "packaging",  # imported by `clip`
        "pillow>=10",
        "safetensors>=0.4",  # weights and prompts that hold no code
        "matplotlib>=3.8",  # figures
        "jinja2>=3.1",  # report page
    ],
    extras_require={
        "open_clip": OTHER_BACKBONES[:2],  # --backbone open_clip:MODEL/TAG
        "hf": OTHER_BACKBONES[1:],  # --backbone hf:FOLDER
        "dassl": ["scikit-learn>=1.3", "scipy", "ftfy", "regex"],  # what Dassl and CoOp import, in their checkouts
        "slurm": ["submitit>=1.5"],  # reproduce --cluster slurm
        "dev": [
            *OTHER_BACKBONES,
            "submitit>=1.5",
            "pytest>=8",
            "pytest-xdist>=3.5",
            "ruff>=0.5",
            "mypy>=1.10",
            "scikit-learn>=1.3",  # independent metrics to compare with
            "playwright>=1.45",  # drives Chromium
            "hypothesis>=6",  # fuzzing
            "relplot>=1.0",  # smooth ECE by its authors, to compare with
            "nbclient>=0.10",  # executes the notebook
            "ipykernel>=6",
        ],
    },
)
