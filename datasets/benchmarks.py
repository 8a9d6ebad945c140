"""Whether a set from elsewhere is one of the benchmarks, and whether published figures compare."""
from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .base import DATASET_REGISTRY
from .columns import plain

logger = logging.getLogger(__name__)

# Folders that hold a set without being called like it.
NAMELESS_FOLDERS = ("data", "default", "main", "parquet")


@dataclass(frozen=True)
class Benchmark:
    """How one of the fifteen benchmarks is recognised.

    Attributes:
        names: Names of the data set on hubs, in lower case without punctuation.
        parts_of_names: Parts of class names that all must occur, by which the set is recognised
            under any folder name; () if another benchmark has the same classes.
        names_hash: Hash of CoOp's class names, see `hash_names`; "" where they are not known here.
    """

    names: Sequence[str]
    parts_of_names: Sequence[str] = ()
    names_hash: str = ""


IMAGENET_NAMES = "288db217ad73"  # hash of ImageNet's class names, which its variants share

BENCHMARKS = {
    "ImageNet": Benchmark(
        names=("imagenet", "imagenet1k", "ilsvrc2012"),
        parts_of_names=("tench", "gyromitra", "bolete"),
        names_hash=IMAGENET_NAMES,
    ),
    "Caltech101": Benchmark(
        names=("caltech101",),
        parts_of_names=("cougarface", "inlineskate", "yinyang"),
        names_hash="43250c74bc2e",
    ),
    "OxfordPets": Benchmark(
        names=("pets", "oxfordpets", "oxfordiiitpet", "oxfordiiitpets"),
        parts_of_names=("abyssinian", "americanbulldog", "wheatenterrier"),
        names_hash="7257f9637ec4",
    ),
    "StanfordCars": Benchmark(
        names=("cars", "stanfordcars", "cars196"),
        parts_of_names=("acurarlsedan", "amgeneralhummer"),
        names_hash="71f9bf094bc3",
    ),
    "OxfordFlowers": Benchmark(
        names=("flowers102", "oxfordflowers", "oxfordflowers102", "102flowers", "flower102"),
        parts_of_names=("pinkprimrose", "hardleavedpocketorchid"),
        names_hash="6431d4e6fdd6",
    ),
    "Food101": Benchmark(
        names=("food101",),
        parts_of_names=("babybackribs", "clubsandwich", "macaroniandcheese"),
    ),
    "FGVCAircraft": Benchmark(
        names=("fgvcaircraft", "aircraft"),
        parts_of_names=("707320", "a340300", "modelb200"),
        names_hash="32c71d7d45f8",
    ),
    "SUN397": Benchmark(
        names=("sun397",),
        parts_of_names=("airplanecabin", "bambooforest", "volleyballcourt"),
    ),
    "DescribableTextures": Benchmark(
        names=("dtd", "describabletextures"),
        parts_of_names=("banded", "polkadotted", "zigzagged"),
        names_hash="363d0f9dff78",
    ),
    "EuroSAT": Benchmark(
        names=("eurosat", "eurosatrgb"),
        parts_of_names=("annualcrop", "herbaceousvegetation", "permanentcrop"),
        names_hash="c0de6ae5b042",
    ),
    "UCF101": Benchmark(
        names=("ucf101",),
        parts_of_names=("applyeyemakeup", "yoyo"),
        names_hash="ba5efe3c836f",
    ),
    "ImageNetV2": Benchmark(
        names=("imagenetv2",),
        names_hash=IMAGENET_NAMES,
    ),
    "ImageNetSketch": Benchmark(
        names=("imagenetsketch",),
        names_hash=IMAGENET_NAMES,
    ),
    "ImageNetA": Benchmark(
        names=("imageneta",),
    ),
    "ImageNetR": Benchmark(
        names=("imagenetr",),
    ),
}


def hash_names(classnames: Sequence[str]) -> str:
    """A hash of class names in any order, whatever their case, spaces and punctuation."""
    names = sorted(plain(name) for name in classnames)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]


def find_benchmark(root: Path, classnames: Sequence[str]) -> str:
    """Recognises a benchmark by its folder or its classes.

    Returns:
        The benchmark's registered name; "" if the set is none.
    """
    names = [plain(name) for name in classnames]
    folders = folder_names(root)
    # The folder first: variants of ImageNet have ImageNet's classes.
    for reader, benchmark in BENCHMARKS.items():
        if folders & set(benchmark.names):
            return reader
    for reader, benchmark in BENCHMARKS.items():
        has_all = bool(benchmark.parts_of_names)
        for part in benchmark.parts_of_names:
            if not any(part in name for name in names):
                has_all = False
        if has_all:
            return reader
    return ""


def folder_names(root: Path) -> set[str]:
    """What a set's folder is called, also in the hub's cache, where it is
    `datasets--owner--name/snapshots/…`.
    """
    parts = list(root.resolve().parts)
    while parts and parts[-1].lower() in NAMELESS_FOLDERS:
        parts.pop()
    names = set(parts[-1:])
    for part in parts:
        if part.startswith("datasets--"):
            names.add(part.rpartition("--")[2])
    return {plain(name) for name in names}


def log_comparison(
    root: Path, hub_splits: str, images: int, classnames: Sequence[str],
) -> None:
    """Logs which split of a benchmark a set is, and whether published figures compare.

    Args:
        root: The folder of the set.
        hub_splits: Name of the test split on the hub; several are joined by commas.
        images: Number of test images.
        classnames: Class names by label.
    """
    name = find_benchmark(root, classnames)
    if not name:
        return
    reader = DATASET_REGISTRY.get(name)
    differences = []
    if (images, len(classnames)) != (reader.expected_test, reader.expected_classes):
        differences.append(f"{reader.expected_test:,} images of {reader.expected_classes:,} "
                           f"classes")
    if hash_names(classnames) != BENCHMARKS[name].names_hash:
        differences.append("CoOp's class names")
    here = (f"this is the hub's split {hub_splits} of {reader.label or name}, {images:,} images of "
            f"{len(classnames):,} classes")
    if differences:
        logger.warning("Parquet: %s; published figures are of CoOp's split with %s: they do not "
                       "compare", here, " and ".join(differences))
    else:
        logger.info("Parquet: %s: counts and class names are those of the published test split",
                    here)
