"""The reader of a benchmark that lies as files under the data root: finds it, reads it, checks it, samples it."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from .base import DATASET_REGISTRY, Dataset, Datum
from .checks import Splits, check_splits, missing_files, split_hash
from .download.fetch import FetchError, fetch_drive
from .download.sources import Source
from .fewshot import kept_samples, select_classes
from .utils.cli import tool
from .utils.errors import DataError, UnknownNameError, first_five, reading
from .utils.registry import nearest

logger = logging.getLogger(__name__)


class FileDataset(Dataset):
    """A data set in files. A subclass names its folders and counts and says in `read` what is in them."""

    folder = ""  # under the data root
    images = ""  # under `folder`; paths in split files are relative to it
    test_images = ""  # under `images`, where the test images have a folder of their own
    metadata: tuple[Source, ...] = ()  # small files in `folder` without which the images cannot be read
    archives: tuple[Source, ...] = ()  # the images
    manual: tuple[str, ...] = ()  # steps to get the archives that no address offers
    expected_classes = 0  # published counts; 0 = unknown
    expected_test = 0
    published_test = ""  # `split_hash` of the published test split; the lists for training may be absent

    @reading()
    def __init__(
        self, root: str | Path, num_shots: int = -1, seed: int = 0, subsample_classes: str = "all",
    ) -> None:
        super().__init__(root, num_shots, seed, subsample_classes)
        self.dataset_dir = self.root / self.folder
        self.image_dir = self.dataset_dir / self.images
        self.check_folders()
        splits = self.read()
        check_splits(self.name(), splits, self.remedy(), str(self.image_dir))
        self.split_hash = split_hash(splits.named(), str(self.image_dir))
        self.test_hash = split_hash([("test", splits.test)], str(self.image_dir))
        self.difference = self.from_published(splits)
        if self.difference:
            logger.warning("%s: %s; figures will not compare with published ones", self.name(), self.difference)
        self.check_files(splits.test)
        if num_shots > 0:
            self.sample(splits)
        self.classnames, (train, self.val, self.test) = select_classes(
            splits.classnames, (splits.train or [], splits.val, splits.test), subsample_classes,
        )
        if splits.train is not None:
            self.train = train

    def read(self) -> Splits:
        """Class names and the lists of images, as the files have them."""
        raise TypeError(f"{type(self).__name__} does not say how its files are read")

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @classmethod
    def key(cls) -> str:
        """The name of the reader's file and of its yaml, by which the tools know it."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def locate(cls, root: Path, source: Source) -> Path:
        """Where a metadata file is, or belongs."""
        return root / cls.folder / source.name

    @classmethod
    def test_dir(cls, root: Path) -> Path:
        """The folder without which there is nothing to test."""
        return root / cls.folder / cls.images / cls.test_images

    @classmethod
    def download_command(cls, root: Path) -> str:
        return f"{tool('download')} {cls.key()} --root {root}"

    def remedy(self) -> str:
        """What helps where images are there but too few or in the wrong place: download.py replaces nothing."""
        command = self.download_command(self.root)
        if any(source.link for source in self.archives):
            return f"move {self.dataset_dir} away and run: {command}"
        return f"for how it must lie, run: {command}"

    def datum(self, path: str, label: int, classname: str) -> Datum:
        """The datum of the image at `path` below the image folder."""
        return Datum(impath=str(self.image_dir / path), label=label, classname=classname)

    def check_folders(self) -> None:
        """A wrong root gets one line that says which folder was looked for and where it may be instead."""
        if not self.root.is_dir():
            held = f"{self.folder}/" if self.folder else "the class folders"
            raise DataError(f"data root {self.root} is not a folder: give the one that holds {held} with --root or "
                            f"DATASET.ROOT")
        if not self.dataset_dir.is_dir():
            above = self.root.parent / self.folder
            remedy = (
                f"give the folder above, {self.root.parent}" if self.root.name == self.folder or above.is_dir()
                else f"correct --root or DATASET.ROOT, or run: {self.download_command(self.root)}"
            )
            raise DataError(f"{self.name()} is not there: the data root has no folder {self.dataset_dir}; {remedy}")
        if not self.test_dir(self.root).is_dir():
            raise DataError(
                f"{self.name()} has no images: there is no folder {self.test_dir(self.root)}; "
                f"run: {self.download_command(self.root)}"
            )

    def require(self, source: Source) -> Path:
        """The path of a metadata file, fetched first if it is missing. It is never made anew from official lists:
        the public tools draw at random when they do, and published numbers need the published split."""
        path = self.locate(self.root, source)
        if path.is_file():
            return path
        path = self.dataset_dir / source.name
        if not source.drive_id:
            raise DataError(f"{self.name()}: {path} is missing; it comes with the images' archive: "
                            f"run {self.download_command(self.root)}")
        logger.info("%s is missing; fetching it from Google Drive", path)
        try:
            fetch_drive(source, path)
        except FetchError as error:
            raise DataError(
                f"{self.name()}: {path} is missing and could not be downloaded ({error}); fetch Google Drive file "
                f"{source.drive_id}, {source.link}, and save it as {source.name} in {self.dataset_dir} "
                f"(it is not made anew: published numbers need the published file)"
            ) from error
        return path

    def check_files(self, items: Sequence[Datum]) -> None:
        missing = missing_files(items)
        if missing:
            raise DataError(
                f"{self.name()}: {len(missing)} of {len(items)} images are not there: {first_five(missing)}; "
                f"{self.remedy()}"
            )

    def from_published(self, splits: Splits) -> str:
        """How the test split differs from the published one, for which alone published figures hold; "" if not."""
        images, classes = len(splits.test), len(splits.classnames)
        published = self.expected_test or images, self.expected_classes or classes
        if (images, classes) != published:
            return (f"{images} test images of {classes} classes here, {published[0]} of {published[1]} in the "
                    f"published set")
        if self.published_test and self.test_hash != self.published_test:
            return f"the test split ({self.test_hash}) is not the published one ({self.published_test})"
        return ""

    def sample(self, splits: Splits) -> None:
        """Leaves `num_shots` training images a class, which must be there."""
        if not splits.train:
            raise DataError(f"{self.name()} has no training images for DATASET.NUM_SHOTS {self.num_shots}")
        folder = (
            Path(self.fewshot_dir).expanduser() / self.run_name(self.root) if self.fewshot_dir
            else self.dataset_dir / "split_fewshot"
        )
        path = folder / f"shot_{self.num_shots}-seed_{self.seed}.json"
        samples = kept_samples(
            path, self.image_dir, self.split_hash, splits.train, splits.val, self.num_shots, self.seed,
        )
        splits.train, splits.val = samples["train"], samples["val"]
        self.check_files(splits.train)
        self.check_files(splits.val)


def file_datasets() -> list[type[FileDataset]]:
    """Every registered reader that has its own folder under the data root, by key."""
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
