"""What methods and data sets are called on paper, and the order in which they are listed."""
from __future__ import annotations

import re

METHODS = {"zeroshot": "Zero-shot", "tpt": "TPT", "ctpt": "C-TPT", "otpt": "O-TPT", "soc": "SoC", "coop": "CoOp"}
BASELINE = "otpt"  # what the paper measures differences against

DATASETS = {
    "ImageNet": "ImageNet", "DescribableTextures": "DTD", "OxfordFlowers": "Flowers", "Food101": "Food101",
    "SUN397": "SUN397", "FGVCAircraft": "Aircraft", "OxfordPets": "Pets", "Caltech101": "Caltech", "UCF101": "UCF101",
    "EuroSAT": "EuroSAT", "StanfordCars": "Cars", "ImageNetA": "ImageNet-A", "ImageNetV2": "ImageNet-V2",
    "ImageNetR": "ImageNet-R", "ImageNetSketch": "ImageNet-Sketch",
}


def method_key(name: str) -> str:
    """One spelling for all: `O-TPT`, `OTPT` and `otpt` are the same method."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def method_label(name: str) -> str:
    return METHODS.get(method_key(name), name)


def is_tuned(name: str) -> bool:
    """Whether a method adapts to each test image: zero-shot does not, and CoOp learns from labels beforehand."""
    return method_key(name) not in ("zeroshot", "coop")


def method_rank(name: str) -> tuple[int, str]:
    """Sorts methods in the paper's order, unknown ones last and by name."""
    key = method_key(name)
    return (list(METHODS).index(key), "") if key in METHODS else (len(METHODS), key)


def dataset_label(name: str) -> str:
    return DATASETS.get(name, name)


def dataset_rank(name: str) -> tuple[int, str]:
    return (list(DATASETS).index(name), "") if name in DATASETS else (len(DATASETS), name)
