"""Reads data sets: `build_dataset` finds the reader by its name. There is one reader per file."""
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum
from .selection import sample_shots, select_classes, select_images
from .utils.errors import ConfigError

__all__ = ["DATASET_REGISTRY", "DataOptions", "Dataset", "Datum", "build_dataset"]

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
        name: The registered name, such as UCF101.
        root: The folder of the data sets; for a user's own images their folder.
        options: The part of the data set that is read; by default all of it.
        changes: Options by name, such as `num_shots=4`, which replace those of `options`.

    Example:
        >>> dataset = build_dataset("CIFAR10C", "DATA", corruption="fog", severity=3)
    """
    options = replace(options, **changes)
    options.check()
    settings = options.settings()
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
        return reader(root, options.corruption, options.severity, **reader_options)
    return reader(root, **reader_options)
