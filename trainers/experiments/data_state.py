"""Finds the state and the size of data sets, which a plan shows before anything is computed."""
from __future__ import annotations

from functools import cache
from pathlib import Path

from ...datasets import DATASET_REGISTRY, build_dataset
from ...datasets.download.verify import Finding, inspect
from ...datasets.file_dataset import FileDataset


@cache
def dataset_size(
    name: str, root: str = "", columns: str = "", classnames: str = "", split: str = "test",
) -> tuple[int, int]:
    """Number of images of a split, and number of classes, of a data set below `root`.

    If the data set is not there, they are those of the published test split.

    Args:
        name: Registered name of the data set.
        root: Data root of the data set.
        columns: DATASET.COLUMNS.
        classnames: DATASET.CLASSNAMES.
        split: test or val.

    Returns:
        Number of images, number of classes.
    """
    state = inspect_data(name, root, columns, classnames)
    if state and (split == "test" or not state.test):
        images = state.test or state.cls.expected_test
        classes = state.classes or state.cls.expected_classes or 0
        return images, classes
    if not state:  # embedded data, which has no folder
        root = ""
    dataset = build_dataset(name, root, columns=columns, classnames=classnames)
    items = dataset.test
    if split == "val":
        items = dataset.val
    return len(items), len(dataset.classnames)


@cache
def inspect_data(
    name: str, root: str, columns: str = "", classnames: str = "",
) -> Finding | None:
    """The state of a data set: ok, partial, faulty or absent; None for an embedded one.

    Args:
        name: Registered name of the data set.
        root: Data root of the data set.
        columns: DATASET.COLUMNS.
        classnames: DATASET.CLASSNAMES.
    """
    kind = DATASET_REGISTRY.get(name)
    if not issubclass(kind, FileDataset):
        return None
    options = {}
    for option, value in (("columns", columns), ("classnames", classnames)):
        if value and option in kind.options:
            options[option] = value
    return inspect(kind, Path(root).expanduser(), options=options)
