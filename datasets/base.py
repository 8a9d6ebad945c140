"""Declares Datum and Dataset, the base class of all readers, and the registry of data sets."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from PIL import Image

from .image_index import ImageHash, ImageIndex
from .utils.errors import ConfigError, DataError, first_five, reading
from .utils.registry import Registry, nearest
from .views.images import open_image

DATASET_REGISTRY = Registry("data set", Path(__file__).parent, __package__)
SEVERITIES = (1, 2, 3, 4, 5)  # severities of a corruption


@dataclass(frozen=True)
class Datum:
    """One labelled image, as in Dassl.

    Attributes:
        impath: Path of the image. Sets without a file per image use a name instead.
        label: Class number, from 0.
        domain: Domain number, which only Dassl's own trainers use.
        classname: Name of the class.
        group: Name of a group of images that are not independent of each other, such as those of
            one patient; "" if an image is independent.
    """

    impath: str
    label: int
    domain: int = 0
    classname: str = ""
    group: str = ""


class LazyList(Sequence[Datum]):
    """A list that is made when it is first used: ImageNet has 1.28 million training images."""

    def __init__(self, make: Callable[[], Sequence[Datum]]) -> None:
        self.make = make

    @cached_property
    def items(self) -> Sequence[Datum]:
        """The list, made on first use."""
        return self.make()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return self.items[index]


class Dataset:
    """The base class of all data sets.

    Subclasses fill `train`, `val`, `test` (lists of Datum) and `classnames` (by label). Readers of
    files derive from `FileDataset`, which checks them; sets that draw their images derive from this
    class.
    """

    train: Sequence[Datum]
    val: Sequence[Datum]
    test: Sequence[Datum]
    classnames: list[str]

    label = ""  # name in tables and figures; "": the class's name
    display_order = 1000  # position among the columns of a table, lowest first
    embedded = False  # drawn by code, for the demo and the tests
    template = "a photo of a {}."  # the hand-written prompt of CoOp's zero-shot baseline
    ensemble: Sequence[str] = ()  # OpenAI's templates for this set; (): CLIP's seven and `template`
    # Whether the public test-time scripts use AugMix on this set: what TTA.AUGMIX auto means.
    augmix = True
    test_only = False  # DATASET.NUM_SHOTS is ignored
    corruptions: Sequence[str] = ()  # valid values of DATASET.CORRUPTION
    clean = True  # has images without a corruption too
    has_val = True  # whether it has validation images that are not test images
    options: Sequence[str] = ()  # further arguments of the constructor: columns, classnames
    class_parents: Sequence[Path] = ()  # folders in which every folder is a class
    difference = ""  # how the test split differs from the published one, if that is known
    # Folder of the few-shot lists; None: samples are drawn every time.
    fewshot_folder: Path | None = None
    # The settings DATASET.… that say which part of the set `build_dataset` has read; those that are
    # absent have their defaults.
    read_settings: Mapping[str, object] = MappingProxyType({})

    @classmethod
    def check_root(cls, root: str | Path) -> None:
        """Raises DataError if the root is no folder and the set needs one. It reads no images."""

    def __init__(
        self, root: str | Path, corruption: str = "", severity: int = SEVERITIES[-1],
    ) -> None:
        """
        Args:
            root: The folder of the data sets.
            corruption: Corruption of the test images; "" = none.
            severity: Severity of the corruption, 1 to 5.
        """
        self.root = Path(root).expanduser()
        self.corruption = corruption
        self.severity = severity
        self.image_dir = self.root  # paths in few-shot lists are relative to it

    @classmethod
    def run_name(cls, root: str | Path) -> str:
        """The data set's name in run folders and results: the class's name, unless that is
        ambiguous."""
        return cls.__name__

    @classmethod
    def label_of(cls, root: str | Path) -> str:
        """The data set's name in tables and figures."""
        return cls.label or cls.__name__

    @classmethod
    def check_corruption(cls, corruption: str, severity: int) -> None:
        """Refuses a corruption that the set does not have.

        Args:
            corruption: The value of DATASET.CORRUPTION; "" = none.
            severity: The value of DATASET.SEVERITY, 1 to 5.
        """
        if severity not in SEVERITIES:
            raise ConfigError(f"DATASET.SEVERITY is {severity}; it must be one of "
                              f"{', '.join(map(str, SEVERITIES))}")
        if corruption not in cls.corruptions and (corruption or not cls.clean):
            valid = f"one of {', '.join(cls.corruptions)}.{nearest(corruption, cls.corruptions)}"
            if cls.clean and cls.corruptions:
                valid = f"empty or {valid}"
            elif cls.clean:
                valid = "empty: it has none"
            raise ConfigError(f"DATASET.CORRUPTION is '{corruption}'; for {cls.__name__} it must "
                              f"be {valid}")

    def remedy(self) -> str:
        """What to do when images are missing."""
        return "check DATASET.ROOT"

    def read_image(self, datum: Datum) -> Image.Image:
        """Reads the RGB image of a datum. Sets that draw their images override this."""
        return open_image(datum.impath)

    def is_file(self, item: Datum) -> bool:
        """Whether an image's file is there."""
        try:
            os.stat(item.impath)  # noqa: PTH116 - a Path would take as long as the system call
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    @reading()
    def check_files(self, items: Sequence[Datum]) -> None:
        """Raises DataError if images are missing."""
        missing = [item.impath for item in items if not self.is_file(item)]
        if missing:
            raise DataError(f"{type(self).__name__}: {len(missing)} of {len(items)} images are "
                            f"missing: {first_five(missing)}; {self.remedy()}")

    def hash_images(self, items: Sequence[Datum], index: ImageIndex) -> list[ImageHash]:
        """Returns the digest of each image's content, which is that of its file's bytes.

        Sets without files override this.

        Args:
            items: The images.
            index: The index of the digests of files that are known from before.
        """
        paths = [item.impath for item in items]
        return index.look_up(paths, self.image_dir)

    def uncorrupted_name(self, item: Datum) -> str:
        """Returns a name of the image that a corrupted image was made from.

        The name is equal for all corruptions of an image and for the image itself, and unique among
        all data sets. It is "" if the images are no corruptions.
        """
        return ""


def run_name(
    name: str, root: str | Path, corruption: str = "", severity: int = SEVERITIES[-1],
) -> str:
    """Returns a data set's name in run folders and results.

    A corruption is part of it, as in `ImageNetC-fog-5`.

    Args:
        name: The registered name, or the name of an unregistered class.
        root: The folder of the data sets. A user's folder of images is named after it.
        corruption: Corruption of the test images; "" = none.
        severity: Severity of the corruption, 1 to 5.
    """
    if name in DATASET_REGISTRY:
        name = DATASET_REGISTRY.get(name).run_name(root)
    if corruption:
        name = f"{name}-{corruption}-{severity}"
    return name


def dataset_label(name: str, root: str | Path) -> str:
    """Returns the name of a data set in tables: its label, or the name of a user's folder.

    Args:
        name: The registered name, or the name of an unregistered class.
        root: The folder of the data sets.
    """
    if name not in DATASET_REGISTRY:
        return name
    return DATASET_REGISTRY.get(name).label_of(root)


def parse_run_name(name: str) -> tuple[str, str, int]:
    """Takes a data set's name in results apart, as `run_name` has put it together.

    Returns:
        The registered name, the corruption ("" = none) and its severity.
    """
    parts = name.split("-")
    if len(parts) == 3 and parts[0] in DATASET_REGISTRY and parts[2] in map(str, SEVERITIES):
        return parts[0], parts[1], int(parts[2])
    return name, "", SEVERITIES[-1]


@dataclass(frozen=True)
class DatasetInfo:
    """What tables and figures need to know about a data set, registered or not.

    Attributes:
        label: Name in tables and figures.
        order: Sort key, by which data sets come in the order of the papers' tables.
        embedded: Whether its images are drawn by code.
    """

    label: str
    order: tuple[int, str]
    embedded: bool


def dataset_info(name: str) -> DatasetInfo:
    """Returns facts about a data set by its name in results; unregistered ones sort last."""
    base, corruption, severity = parse_run_name(name)
    cls: type[Dataset] = Dataset
    if base in DATASET_REGISTRY:
        cls = DATASET_REGISTRY.get(base)
    label = cls.label or base
    order = base
    if corruption:
        label += f" {corruption.replace('_', ' ')} {severity}"
        order += f" {[*cls.corruptions, corruption].index(corruption):02d} {severity}"
    return DatasetInfo(label, (cls.display_order, order), cls.embedded)
