"""Calibrated test-time adaptation of CLIP.

    from promptcal.trainers import adapt, load_clip
    from promptcal.datasets import build_dataset
"""
from pathlib import Path

__version__ = "1.1.0"

# The parts are links to folders at the top of a checkout. Where links are not supported, look there directly.
if not Path(__file__).with_name("trainers").is_dir():
    __path__.append(str(Path(__file__).resolve().parents[2]))
