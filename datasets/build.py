"""Reads a data set by its name, and selects the images that a run predicts and their order."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum
from .selection import (
    image_order,
    long_tailed,
    sample_shots,
    select_classes,
    select_images,
)
from .utils.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

CLASS_SUBSETS = ("all", "base", "new")


@dataclass(frozen=True)
class DataOptions:
    """The part of a data set that is read; by default all of it.

    Attributes:
        num_shots: Number of labelled images per class; -1 = all.
        seed: Seed of the few-shot sample.
        subsample_classes: The classes: `all`, or CoOp's `base` or `new` ones.
        fewshot_dir: Folder of the few-shot lists; "" = with the data.
        corruption: Corruption of the test images; "" = none.
        severity: Severity of the corruption, 1 to 5.
        image_list: Path of a file with the test images to use; "" = all.
        columns: Columns of a table, as in DATASET.COLUMNS; "" = usual names.
        classnames: Words for the classes of a user's images, as in DATASET.CLASSNAMES; "" = none.
    """

    num_shots: int = -1
    seed: int = 0
    subsample_classes: str = "all"
    fewshot_dir: str = ""
    corruption: str = ""
    severity: int = SEVERITIES[-1]
    image_list: str = ""
    columns: str = ""
    classnames: str = ""

    @classmethod
    def from_settings(cls, cfg: Any) -> DataOptions:
        """Returns the options that the settings of a run ask for."""
        data = cfg.DATASET
        return cls(
            num_shots=data.NUM_SHOTS,
            # The seed draws the labelled images. Without these all seeds read the same.
            seed=cfg.SEED if data.NUM_SHOTS > 0 else 0,
            subsample_classes=data.SUBSAMPLE_CLASSES,
            fewshot_dir=data.FEWSHOT_DIR,
            corruption=data.CORRUPTION,
            severity=data.SEVERITY,
            image_list=data.IMAGE_LIST,
            columns=data.COLUMNS,
            classnames=data.CLASSNAMES,
        )

    def settings(self) -> dict[str, object]:
        """The settings of a run that reads the same images."""
        return {
            "DATASET.NUM_SHOTS": self.num_shots,
            "DATASET.SUBSAMPLE_CLASSES": self.subsample_classes,
            "DATASET.CORRUPTION": self.corruption,
            "DATASET.SEVERITY": self.severity,
            "DATASET.IMAGE_LIST": self.image_list,
            "DATASET.COLUMNS": self.columns,
            "DATASET.CLASSNAMES": self.classnames,
        }

    def check(self) -> None:
        """Refuses values that no data set takes."""
        if self.subsample_classes not in CLASS_SUBSETS:
            raise ConfigError(f"DATASET.SUBSAMPLE_CLASSES is '{self.subsample_classes}'; it must "
                              f"be all, base or new")
        if self.num_shots == 0 or self.num_shots < -1:
            raise ConfigError(f"DATASET.NUM_SHOTS is {self.num_shots}; it must be -1 (all images) "
                              f"or at least 1")


ALL_DATA = DataOptions()


def build_dataset(
    name: str, root: str | Path = "data", options: DataOptions = ALL_DATA, **changes: Any,
) -> Dataset:
    """Reads a registered data set and selects what a run needs of it.

    Args:
        name: The registered name in any spelling, such as UCF101, or that of its file, such as dtd.
        root: The folder of the data sets; for a user's own images their folder.
        options: The part of the data set that is read; by default all of it.
        changes: Options by name, such as `num_shots=4`, which replace those of `options`.

    Example:
        >>> dataset = build_dataset("CIFAR10C", "DATA", corruption="fog", severity=3)
    """
    options = replace(options, **changes)
    options.check()
    settings = options.settings()
    if name not in DATASET_REGISTRY:
        name = DATASET_REGISTRY.find(str(name)) or name
    dataset = read_dataset(name, root, options)
    if options.image_list:
        select_images(dataset, options.image_list)
    if options.num_shots > 0 and not dataset.test_only:
        sample_shots(dataset, options.num_shots, options.seed, options.fewshot_dir)
    if options.subsample_classes != "all":
        select_classes(dataset, options.subsample_classes)
    dataset.read_settings = settings
    return dataset


def read_dataset(name: str, root: str | Path, options: DataOptions) -> Dataset:
    """Reads a whole data set, before parts of it are selected.

    Options that the reader does not have are not passed to it. Where settings are checked, the log
    says that they have no effect.

    Args:
        name: The registered name.
        root: The folder of the data sets.
        options: The options, of which the corruption and those that the reader has are used.
    """
    reader = DATASET_REGISTRY.get(name)
    if options.corruption or not reader.clean:
        reader.check_corruption(options.corruption, options.severity)
    reader_options = {}
    for option in reader.options:
        value = getattr(options, option)
        if value:
            reader_options[option] = value
    if options.corruption:
        dataset = reader(root, options.corruption, options.severity, **reader_options)
    else:
        dataset = reader(root, **reader_options)
    if dataset.difference:
        logger.warning("%s: %s; results will not be comparable with published ones", name,
                       dataset.difference)
    return dataset


@dataclass(frozen=True)
class EvalData:
    """The test or validation images of a run.

    Attributes:
        dataset: The reader.
        split: Name of the split: `test` or `val`.
        items: All images of the split.
        classnames: Words for the classes, by label.
        indices: Positions in `items` of the images of the run, ascending.
        selected: The images of the run, in the order of `indices`.
        order: The same positions as `indices`, in the order in which the method sees the images.
        subset: The part of the data set in words; "" for the whole split.
        available: Number of images that TEST.LIMIT selects from.
    """

    dataset: Dataset
    split: str
    items: Sequence[Datum]
    classnames: Sequence[str]
    indices: Sequence[int]
    selected: Sequence[Datum]
    order: Sequence[int]
    subset: str
    available: int

    @classmethod
    def from_settings(cls, cfg: Any, dataset: Dataset, online: bool) -> EvalData:
        """Selects the images that the branches DATASET and TEST of the settings ask for.

        Args:
            cfg: All settings.
            dataset: The reader, made from the same settings.
            online: Whether the method sees the images in the order TEST.ORDER.
        """
        items = dataset.test
        if cfg.TEST.SPLIT == "val":
            items = dataset.val
        total = len(items)
        if total == 0:
            raise DataError(f"{cfg.DATASET.NAME} has no {cfg.TEST.SPLIT} images")
        labels = [item.label for item in items]
        candidates: Sequence[int] = range(total)
        if cfg.TEST.IMBALANCE:
            candidates = long_tailed(labels, cfg.TEST.IMBALANCE)
        indices = evenly_spaced(candidates, cfg.TEST.LIMIT)
        order: Sequence[int] = indices
        if online:
            labels_of_run = [labels[index] for index in indices]
            order = image_order(indices, labels_of_run, cfg.TEST.ORDER, cfg.TEST.CORRELATION,
                                cfg.SEED)
        subset = describe_subset(cfg, len(indices), len(candidates))
        name = cfg.DATASET.LABEL or cfg.DATASET.NAME
        logger.info("%s: %d of %d %s images, %d classes", name, len(indices), total,
                    cfg.TEST.SPLIT, len(dataset.classnames))
        return cls(
            dataset=dataset,
            split=cfg.TEST.SPLIT,
            items=items,
            classnames=dataset.classnames,
            indices=indices,
            selected=[items[index] for index in indices],
            order=order,
            subset=subset,
            available=len(candidates),
        )

    def read_image(self, index: int) -> Image.Image:
        """Reads the image at a position of the split."""
        return self.dataset.read_image(self.items[index])


def evenly_spaced(candidates: Sequence[int], wanted: int) -> list[int]:
    """Selects some of the candidates, spread evenly over them.

    Args:
        candidates: Positions of images.
        wanted: Number of images to select; 0, or more than there are, means all.
    """
    total = len(candidates)
    count = min(wanted or total, total)
    # Data sets list class after class, so the first images would all be of few classes.
    return [candidates[number * total // count] for number in range(count)]


def describe_subset(cfg: Any, count: int, candidates: int) -> str:
    """Says which part of a data set is used; "" for all of it.

    Args:
        cfg: All settings.
        count: Number of images of the run.
        candidates: Number of images that TEST.LIMIT selects from.
    """
    words = []
    if cfg.DATASET.SUBSAMPLE_CLASSES != "all":
        words.append(f"{cfg.DATASET.SUBSAMPLE_CLASSES} classes")
    if cfg.DATASET.IMAGE_LIST:
        words.append("image list")
    if cfg.TEST.IMBALANCE:
        words.append(f"imbalance {cfg.TEST.IMBALANCE:g}")
    if count < candidates:
        words.append(f"{count:,} of {candidates:,} images")
    return ", ".join(words)
