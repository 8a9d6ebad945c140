"""FileDataset: the base class of readers of image files below the data root. Finds, reads and checks them."""
from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum, LazyList
from .checks import check_classnames, check_items, split_hash
from .download.fetch import FetchError, Source, fetch_drive
from .utils.cli import tool
from .utils.errors import DataError, UnknownNameError, first_five, reading
from .utils.registry import nearest
from .views.images import is_image_name

logger = logging.getLogger(__name__)


@dataclass
class Splits:
    """What a reader returns. A LazyList is neither read nor checked before it is used."""

    classnames: list[str]
    test: Sequence[Datum]
    train: Sequence[Datum] = field(default_factory=list)
    val: Sequence[Datum] = field(default_factory=list)


class FileDataset(Dataset):
    """A data set in files. A subclass names its folders and counts, and lists its images in `read`."""

    folder = ""  # below the data root
    aliases: tuple[str, ...] = ()  # other names under which `folder` is found
    images = ""  # below `folder`; paths in split files are relative to it
    test_images = ""  # below `images`, if the test images have a folder of their own
    metadata: tuple[Source, ...] = ()  # small files in `folder` that the reader needs
    archives: tuple[Source, ...] = ()  # the images
    manual: tuple[str, ...] = ()  # steps to get archives that cannot be downloaded
    expected_classes = 0  # published counts; 0: unknown
    expected_test = 0
    published_test = ""  # `split_hash` of the published test split

    @reading()
    def __init__(self, root: str | Path, corruption: str = "", severity: int = SEVERITIES[-1]) -> None:
        super().__init__(root, corruption, severity)
        self.dataset_dir = self.folder_in(self.root)
        self.image_dir = self.dataset_dir / self.images
        self.fewshot_folder = self.dataset_dir / "split_fewshot"
        self.check_folders()
        splits = self.read()
        self.check(splits)
        self.classnames, self.train, self.val, self.test = splits.classnames, splits.train, splits.val, splits.test
        self.test_hash = split_hash({"test": self.test}, str(self.image_dir))
        self.difference = self.compare_with_published()
        if self.difference:
            logger.warning("%s: %s; results will not be comparable with published ones", self.name(), self.difference)

    def read(self) -> Splits:
        """Class names and lists of images."""
        raise TypeError(f"{type(self).__name__} must define read()")

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @classmethod
    def key(cls) -> str:
        """The name of the reader's file and yaml, which the tools use."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def folder_in(cls, root: Path) -> Path:
        """The set's folder, whether it exists or not."""
        found = [root / name for name in (cls.folder, *cls.aliases) if (root / name).is_dir()]
        return found[0] if found else root / cls.folder

    @classmethod
    def locate(cls, root: Path, source: Source) -> Path:
        """The path of a metadata file, whether it exists or not."""
        return cls.folder_in(root) / source.name

    @classmethod
    def test_dir(cls, root: Path) -> Path:
        """The folder of the test images."""
        return cls.folder_in(root) / cls.images / cls.test_images

    @classmethod
    def download_command(cls, root: Path) -> str:
        return f"{tool('download')} {cls.key()} --root {root}"

    def remedy(self) -> str:
        """What to do when images are missing or misplaced: download.py prints the steps if it cannot do them."""
        return f"for the expected layout, run: {self.download_command(self.root)}"

    def datum(self, path: str, label: int, classname: str) -> Datum:
        """The datum of the image at `path` below the image folder."""
        return Datum(impath=str(self.image_dir / path), label=label, classname=classname)

    def check_folders(self) -> None:
        """Names the folder that is missing and suggests the right root."""
        if not self.root.is_dir():
            held = f"{self.folder}/" if self.folder else "the class folders"
            raise DataError(f"data root {self.root} is not a folder: give the one that holds {held} with --root or "
                            f"DATASET.ROOT")
        if self.root.name == self.folder and not self.dataset_dir.is_dir():
            raise DataError(f"{self.root} is not the data root: give the folder above, {self.root.parent}")
        for what, folder in (("is missing", self.dataset_dir), ("has no images", self.test_dir(self.root))):
            if not folder.is_dir():
                raise DataError(f"{self.name()} {what}: there is no folder {folder}; correct --root or DATASET.ROOT, "
                                f"or run: {self.download_command(self.root)}")

    def require(self, source: Source) -> Path:
        """The path of a metadata file, downloaded first if it is missing. It is never generated from official lists:
        the public tools do so at random, and published numbers need the published split."""
        path = self.locate(self.root, source)
        if path.exists():
            return path
        if not source.drive_id:
            raise DataError(f"{self.name()}: {path} is missing; it is part of the images' archive: "
                            f"run {self.download_command(self.root)}")
        logger.info("%s is missing; downloading it from Google Drive", path)
        try:
            fetch_drive(source, path)
        except FetchError as error:
            raise DataError(f"{self.name()}: {path} is missing and could not be downloaded ({error}); download "
                            f"{source.link} and save it as {source.name} in {self.dataset_dir}") from error
        return path

    def check(self, splits: Splits) -> None:
        """Refuses splits that would give wrong numbers; warns of test images among the others."""
        if not splits.test:
            raise DataError(f"{self.name()} has no test images; {self.remedy()}")
        check_classnames(self.name(), splits.classnames)
        for split, items in (("train", splits.train), ("val", splits.val), ("test", splits.test)):
            if not isinstance(items, LazyList):
                check_items(self.name(), split, items, splits.classnames, str(self.image_dir))
        tested = {item.impath for item in splits.test}
        if not isinstance(splits.train, LazyList):
            leaked = tested & {item.impath for item in splits.train}
            if leaked:
                logger.warning("%s: %d test images are also training images: %s", self.name(), len(leaked),
                               first_five(sorted(leaked)))
        if splits.val is not splits.test:  # as on ImageNet, which says so (`has_val`)
            leaked = tested & {item.impath for item in splits.val}
            if leaked:
                logger.warning("%s: %d test images are also validation images, on which no setting should be chosen: "
                               "%s", self.name(), len(leaked), first_five(sorted(leaked)))

    def compare_with_published(self) -> str:
        """How the test split differs from the published one; "" if it does not."""
        images, classes = len(self.test), len(self.classnames)
        published = self.expected_test or images, self.expected_classes or classes
        if (images, classes) != published:
            return (f"{images} test images of {classes} classes here, {published[0]} of {published[1]} in the "
                    f"published set")
        if self.published_test and self.test_hash != self.published_test:
            return f"the test split ({self.test_hash}) is not the published one ({self.published_test})"
        return ""


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder` by name, without hidden ones."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def images_in(folder: Path, label: int, classname: str) -> list[Datum]:
    """The images directly in a class's folder, by name; none if there is no such folder."""
    names = sorted(filter(is_image_name, os.listdir(folder))) if folder.is_dir() else []  # noqa: PTH208
    return [Datum(f"{folder}{os.sep}{name}", label, classname=classname) for name in names]


def file_datasets() -> list[type[FileDataset]]:
    """Every registered reader that has its own folder below the data root, by key."""
    classes = (DATASET_REGISTRY.get(name) for name in DATASET_REGISTRY)
    found = [cls for cls in classes if issubclass(cls, FileDataset) and cls.folder]
    return sorted(found, key=lambda cls: cls.key())


def find_file_dataset(name: str) -> type[FileDataset]:
    """The reader called `name`, either as registered (UCF101) or as its yaml is called (ucf101)."""
    known = {alias.lower(): cls for cls in file_datasets() for alias in (cls.key(), cls.name())}
    if name.lower() not in known:
        keys = [cls.key() for cls in file_datasets()]
        raise UnknownNameError(f"unknown data set '{name}'.{nearest(name, known)} Known: {', '.join(keys)}.")
    return known[name.lower()]
