"""Data sets: one reader per file, found by the registry."""
from __future__ import annotations

from pathlib import Path

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum
from .fewshot import sample_shots, select_classes, select_images
from .utils.errors import ConfigError

__all__ = ["DATASET_REGISTRY", "Dataset", "Datum", "build_dataset"]


def build_dataset(
    name: str, root: str | Path = "data", num_shots: int = -1, seed: int = 0, subsample_classes: str = "all",
    fewshot_dir: str | Path = "", corruption: str = "", severity: int = SEVERITIES[-1], image_list: str = "",
    columns: str = "", classnames: str = "",
) -> Dataset:
    """Reads a registered data set and selects what a run needs of it.

    Args:
        name: The registered name, such as UCF101.
        root: The folder of the data sets, as in DATASET.ROOT; of a user's own images their folder.
        num_shots: Labelled images per class; -1 = all.
        seed: Of the few-shot sample.
        subsample_classes: `all`, or CoOp's `base` or `new` classes.
        fewshot_dir: Where few-shot lists are kept; "" = with the data.
        corruption: Of the test images; "" = none.
        severity: Of the corruption.
        image_list: A file with the test images to use; "" = all.
        columns: The columns of a table, as in DATASET.COLUMNS.
        classnames: Words for the classes of own images, as in DATASET.CLASSNAMES.
    """
    if subsample_classes not in ("all", "base", "new"):
        raise ConfigError(f"DATASET.SUBSAMPLE_CLASSES is '{subsample_classes}'; it must be all, base or new")
    if num_shots == 0 or num_shots < -1:
        raise ConfigError(f"DATASET.NUM_SHOTS is {num_shots}; it must be -1 (all images) or at least 1")
    dataset = read_dataset(name, root, corruption, severity, columns, classnames)
    if image_list:
        select_images(dataset, image_list)
    if num_shots > 0 and not dataset.test_only:
        sample_shots(dataset, num_shots, seed, fewshot_dir)
    if subsample_classes != "all":
        select_classes(dataset, subsample_classes)
    return dataset


def read_dataset(
    name: str, root: str | Path, corruption: str, severity: int, columns: str, classnames: str,
) -> Dataset:
    """A whole data set. Options that its reader does not have are ignored: settings say so."""
    reader = DATASET_REGISTRY.get(name)
    reader.check_corruption(corruption, severity)
    options = {}
    for option, value in (("columns", columns), ("classnames", classnames)):
        if value and option in reader.options:
            options[option] = value
    if corruption:
        return reader(root, corruption, severity, **options)
    return reader(root, **options)
