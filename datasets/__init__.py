"""Data sets: one reader per file, found by the registry."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .base import DATASET_REGISTRY, Dataset, Datum
from .fewshot import sample_shots, select_classes, select_images
from .options import ALL_DATA, DataOptions

__all__ = ["DATASET_REGISTRY", "DataOptions", "Dataset", "Datum", "build_dataset"]


def build_dataset(
    name: str, root: str | Path = "data", options: DataOptions = ALL_DATA, **changes: Any,
) -> Dataset:
    """Reads a registered data set and selects what a run needs of it.

    Args:
        name: The registered name, such as UCF101.
        root: The folder of the data sets; of a user's own images their folder.
        options: What is read of it; by default all.
        changes: Options by name, such as `num_shots=4`.

    Example:
        >>> dataset = build_dataset("CIFAR10C", "DATA", corruption="fog", severity=3)
    """
    options = replace(options, **changes)
    options.check()
    dataset = read_dataset(name, root, options)
    if options.image_list:
        select_images(dataset, options.image_list)
    if options.num_shots > 0 and not dataset.test_only:
        sample_shots(dataset, options.num_shots, options.seed, options.fewshot_dir)
    if options.subsample_classes != "all":
        select_classes(dataset, options.subsample_classes)
    return dataset


def read_dataset(name: str, root: str | Path, options: DataOptions) -> Dataset:
    """A whole data set. Options that its reader does not have are ignored: settings say so."""
    reader = DATASET_REGISTRY.get(name)
    reader.check_corruption(options.corruption, options.severity)
    reader_options = {}
    for option in reader.options:
        value = getattr(options, option)
        if value:
            reader_options[option] = value
    if options.corruption:
        return reader(root, options.corruption, options.severity, **reader_options)
    return reader(root, **reader_options)
