"""Data sets: one reader per file, found by the registry."""
from __future__ import annotations

from pathlib import Path

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum
from .fewshot import sample_shots, select_classes, select_images
from .utils.errors import ConfigError

__all__ = ["DATASET_REGISTRY", "Dataset", "Datum", "build_dataset"]


def build_dataset(
    name: str, root: str | Path, num_shots: int = -1, seed: int = 0, subsample_classes: str = "all",
    fewshot_dir: str | Path = "", corruption: str = "", severity: int = SEVERITIES[-1], image_list: str = "",
) -> Dataset:
    """The registered data set `name`, read from `root`, under a corruption if one is given; then the test images of a
    list, few-shot sampling, and CoOp's base or new classes."""
    if subsample_classes not in ("all", "base", "new"):
        raise ConfigError(f"DATASET.SUBSAMPLE_CLASSES is '{subsample_classes}'; it must be all, base or new")
    if num_shots == 0 or num_shots < -1:
        raise ConfigError(f"DATASET.NUM_SHOTS is {num_shots}; it must be -1 (all images) or at least 1")
    reader = DATASET_REGISTRY.get(name)
    reader.check_corruption(corruption, severity)
    dataset: Dataset = reader(root, corruption, severity) if corruption else reader(root)
    if image_list:
        select_images(dataset, image_list)
    if num_shots > 0 and not dataset.test_only:
        sample_shots(dataset, num_shots, seed, fewshot_dir)
    if subsample_classes != "all":
        select_classes(dataset, subsample_classes)
    return dataset
