"""The base classes of readers of files below the data root.

`FileDataset` finds a data set's folder in CoOp's or TPT's layout, reads its lists, and checks them.
`SplitFileDataset` reads one of CoOp's published split files.
"""
from __future__ import annotations

import json
import logging
import os
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum, LazyList
from .checks import check_classnames, check_items, names_by_label, read_text, split_hash
from .download.fetch import FetchError, Source, fetch_drive
from .utils.cli import tool
from .utils.errors import DataError, UnknownNameError, first_five, reading
from .utils.files import leads_out
from .utils.registry import nearest
from .utils.source import is_plugin
from .views.images import is_image_name

logger = logging.getLogger(__name__)

EMBEDDED_DATA = ". To try without data: --dataset-config-file landcover --backbone small"

DEEPEST = 5  # folders below the one that is searched

# A row of a split file: path below the image folder, label, class name.
SplitEntry = tuple[str, int, str]


@dataclass
class Splits:
    """Class names by label, and the images of each split, as a reader's `read` returns them.

    A LazyList is neither read nor checked before it is used.
    """

    classnames: list[str]
    test: Sequence[Datum]
    train: Sequence[Datum] = field(default_factory=list)
    val: Sequence[Datum] = field(default_factory=list)


class FileDataset(Dataset):
    """A data set in files. A subclass names its folders and counts, and lists its images in
    `read`."""

    folder = ""  # below the data root
    aliases: tuple[str, ...] = ()  # other names under which `folder` is found
    images = ""  # below `folder`; paths in split files are relative to it
    test_images = ""  # below `images`, if the test images have a folder of their own
    tpt_images = ""  # below the data root: what stands for `folder/images` in TPT's layout
    metadata: tuple[Source, ...] = ()  # small files in `folder` that the reader needs
    archives: tuple[Source, ...] = ()  # the images
    manual: tuple[str, ...] = ()  # steps to get archives that cannot be downloaded
    # A set of the Hugging Face hub with the same images, where the archives' host is gone.
    parquet_copy = ""
    expected_classes = 0  # published counts; 0: unknown
    expected_test = 0
    published_test = ""  # `split_hash` of the published test split

    @reading()
    def __init__(
        self, root: str | Path, corruption: str = "", severity: int = SEVERITIES[-1],
    ) -> None:
        super().__init__(root, corruption, severity)
        self.dataset_dir = self.folder_in(self.root)
        self.image_dir = self.image_folder(self.root)
        self.fewshot_folder = self.dataset_dir / "split_fewshot"
        self.check_folders()
        splits = self.read()
        self.check(splits)
        self.classnames = splits.classnames
        self.train = splits.train
        self.val = splits.val
        self.test = splits.test
        self.test_hash = split_hash({"test": self.test}, str(self.image_dir))
        self.difference = self.compare_with_published()

    def read(self) -> Splits:
        """Class names and lists of images."""
        raise TypeError(f"{type(self).__name__} must define read()")

    @classmethod
    def name(cls) -> str:
        """The registered name, which is the class's."""
        return cls.__name__

    @classmethod
    def key(cls) -> str:
        """The name of the reader's file and yaml, which the tools use."""
        return cls.__module__.rpartition(".")[2]

    @classmethod
    def folder_in(cls, root: Path) -> Path:
        """The set's folder, whether it exists or not: CoOp's, or TPT's if only that is there."""
        for name in (cls.folder, *cls.aliases, cls.tpt_folder()):
            if name and (root / name).is_dir():
                return root / name
        return root / cls.folder

    @classmethod
    def tpt_folder(cls) -> str:
        """The set's folder in TPT's layout; "" if it has none."""
        return cls.tpt_images.partition("/")[0]

    @classmethod
    def image_folder(cls, root: Path) -> Path:
        """The folder to which paths in lists of images are relative, whether it exists or not."""
        usual = cls.folder_in(root) / cls.images
        if not cls.tpt_images:
            return usual
        for folder in (usual, root / cls.tpt_folder() / cls.images):
            if (folder / cls.test_images).is_dir():
                return folder
        # TPT has the images of many sets directly in the set's folder, beside other things.
        if holds_images(root / cls.tpt_images / cls.test_images):
            return root / cls.tpt_images
        return usual

    @classmethod
    def is_in_tpt_layout(cls, root: Path) -> bool:
        """Whether the images are where TPT's scripts want them and not where CoOp's do."""
        folder = cls.folder_in(root)
        if cls.image_folder(root) != folder / cls.images:
            return True
        has_folder_of_its_own = bool(cls.tpt_images) and cls.tpt_folder() != cls.folder
        return has_folder_of_its_own and folder == root / cls.tpt_folder()

    @classmethod
    def locate(cls, root: Path, source: Source) -> Path:
        """The path of a metadata file, whether it exists or not.

        Beside TPT's folder of the images it may be in CoOp's folder, or in `data_splits`, copied
        from a checkout of TPT.
        """
        usual = cls.folder_in(root)
        if cls.tpt_images:
            others = (root / cls.tpt_folder(), root / cls.folder, root / "data_splits")
            for folder in (usual, *others):
                if (folder / source.name).is_file():
                    return folder / source.name
        return usual / source.name

    @classmethod
    def test_dir(cls, root: Path) -> Path:
        """The folder of the test images."""
        return cls.image_folder(root) / cls.test_images

    @classmethod
    def can_be_downloaded(cls) -> bool:
        """Whether the command `download` can get the set, or knows the steps by hand."""
        return bool(cls.archives or cls.manual or any(source.link for source in cls.metadata))

    @classmethod
    def download_command(cls, root: Path) -> str:
        """The command that downloads the set."""
        return f"{tool('download')} {cls.key()} --root {root}{cls.plugin_flag()}"

    @classmethod
    def plugin_flag(cls) -> str:
        """What a command needs to know a plugin's data set."""
        if not is_plugin(cls):
            return ""
        return f" --plugin {cls.__module__}"

    @classmethod
    def next_step(cls, root: Path) -> str:
        """What to do where a set is not there."""
        if cls.can_be_downloaded():
            return f"run: {cls.download_command(root)}"
        return f"put its images into {cls.test_dir(root)}"

    def remedy(self) -> str:
        """What to do when images are missing or misplaced.

        The command `download` prints the manual steps if it cannot download the set.
        """
        if not self.can_be_downloaded():
            return f"its images belong in {self.test_dir(self.root)}"
        return f"for the expected layout, run: {self.download_command(self.root)}"

    def datum(self, path: str, label: int, classname: str) -> Datum:
        """A datum of the set.

        Args:
            path: Path of the image, below the image folder.
            label: Its class.
            classname: The name of the class.
        """
        return Datum(impath=str(self.image_dir / path), label=label, classname=classname)

    @classmethod
    def check_root(cls, root: str | Path) -> None:
        """Refuses a root that is no folder, and says what it must hold."""
        folder = Path(root).expanduser()
        if folder.is_dir():
            return
        held = f"{cls.folder}/" if cls.folder else "your images"
        remedy = ""
        if cls.can_be_downloaded():
            remedy = f", or {cls.next_step(folder)}{EMBEDDED_DATA}"
        raise DataError(f"data root {folder} is not a folder: give the one that holds {held} with "
                        f"--root or DATASET.ROOT{remedy}")

    def check_folders(self) -> None:
        """Names the folder that is missing and suggests the right root."""
        self.check_root(self.root)
        is_set = self.root.name and self.root.name in (self.folder, self.tpt_folder())
        if is_set and not self.dataset_dir.is_dir():
            raise DataError(f"{self.root} is not the data root: give the folder above, "
                            f"{self.root.parent}")
        images = self.test_dir(self.root)
        if self.is_in_tpt_layout(self.root):
            if not images.is_dir():
                raise DataError(f"{self.name()} lies in TPT's layout, but {self.dataset_dir} has "
                                f"no images: it holds {contents(self.dataset_dir)}; "
                                f"{self.next_step(self.root)}")
            logger.info("%s lies in TPT's layout: images are read from %s", self.name(), images)
        for what, folder in (("is missing", self.dataset_dir), ("has no images", images)):
            if not folder.is_dir():
                raise DataError(f"{self.name()} {what}: there is no folder {folder}; correct "
                                f"--root or DATASET.ROOT, or {self.next_step(self.root)}"
                                f"{EMBEDDED_DATA}")

    def check_files(self, items: Sequence[Datum]) -> None:
        """Raises DataError if images are missing. In TPT's layout it says what is there instead."""
        if items and self.is_in_tpt_layout(self.root) and not any(map(self.is_file, items)):
            path = Path(items[0].impath).relative_to(self.image_dir)
            raise DataError(f"{self.name()} lies in TPT's layout: {self.image_dir} holds "
                            f"{contents(self.image_dir)}, but not {path} and the other images of "
                            f"its list; {self.next_step(self.root)}")
        super().check_files(items)

    def require(self, source: Source) -> Path:
        """The path of a metadata file, downloaded first if it is missing.

        It is never generated from official lists: the public tools do so at random, and published
        numbers need the published split.
        """
        path = self.locate(self.root, source)
        if path.exists():
            return path
        if not source.drive_id:
            step = "put it there"
            if self.archives:
                step = f"it is part of the images' archive: {self.next_step(self.root)}"
            raise DataError(f"{self.name()}: {path} is missing; {step}")
        logger.info("%s is missing; downloading it from Google Drive", path)
        try:
            fetch_drive(source, path)
        except FetchError as error:
            if self.is_in_tpt_layout(self.root):
                raise DataError(f"{self.name()} lies in TPT's layout, with images in "
                                f"{self.test_dir(self.root)}; its list {source.name} could not be "
                                f"downloaded ({error}): save it in {self.dataset_dir}, from "
                                f"data/data_splits of your TPT checkout or from "
                                f"{source.link}") from error
            raise DataError(f"{self.name()}: {path} is missing and could not be downloaded "
                            f"({error}); download {source.link} and save it as {source.name} in "
                            f"{self.dataset_dir}") from error
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
                logger.warning("%s: %d test images are also training images: %s",
                               self.name(), len(leaked), first_five(sorted(leaked)))
        if splits.val is not splits.test:  # as on ImageNet, which says so (`has_val`)
            leaked = tested & {item.impath for item in splits.val}
            if leaked:
                logger.warning("%s: %d test images are also validation images, on which no setting "
                               "should be chosen: %s",
                               self.name(), len(leaked), first_five(sorted(leaked)))

    def compare_with_published(self) -> str:
        """How the test split differs from the published one; "" if it does not."""
        images = len(self.test)
        classes = len(self.classnames)
        published_images = self.expected_test or images
        published_classes = self.expected_classes or classes
        if (images, classes) != (published_images, published_classes):
            return (f"{images} test images of {classes} classes here, {published_images} of "
                    f"{published_classes} in the published set")
        if self.published_test and self.test_hash != self.published_test:
            return (f"the test split ({self.test_hash}) is not the published one "
                    f"({self.published_test})")
        return ""


class SplitFileDataset(FileDataset):
    """Images listed in `split_zhou_<name>.json`, the first of the metadata files."""

    def read(self) -> Splits:
        """Lists the images of the split file."""
        path = self.require(self.metadata[0])
        entries = read_split_file(path)
        all_entries = [*entries["train"], *entries["val"], *entries["test"]]
        classnames = names_by_label(str(path), all_entries)
        lists = {}
        for split, rows in entries.items():
            lists[split] = [self.datum(*entry) for entry in rows]
        return Splits(classnames, **lists)


def read_split_file(path: Path) -> dict[str, list[SplitEntry]]:
    """Reads a split file, `{"train": [[path, label, classname], …], "val": …, "test": …}`.

    Raises:
        DataError: The file has anything else, or paths that lead out of the data set's folder.
    """
    remedy = "delete it, and it will be downloaded again"
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not readable JSON ({error}); {remedy}") from error
    test = content.get("test") if isinstance(content, dict) else None
    if not isinstance(test, list) or not test:
        raise DataError(f"{path} is not a split file: it must have a list of images under "
                        f"\"test\"; {remedy}")
    splits = {}
    for split in ("train", "val", "test"):
        rows = content.get(split) or []
        bad = [rows]
        if isinstance(rows, list):
            bad = [row for row in rows if not is_entry(row)]
        if bad:
            words = first_five([reprlib.repr(row) for row in bad])  # it may be nested 1,000 deep
            raise DataError(f"{path}: {split} has entries that are not [path, label, class name]: "
                            f"{words}")
        outside = [image for image, _, _ in rows if leads_out(image)]
        if outside:
            raise DataError(f"{path}: {split} lists images outside of the data set's folder: "
                            f"{first_five(outside)}; {remedy}")
        splits[split] = [(image, label, name) for image, label, name in rows]
    return splits


def is_entry(row: object) -> bool:
    """Whether a row has a path, a label and a class name."""
    if not isinstance(row, list) or len(row) != 3:
        return False
    path, label, name = row
    if type(path) is not str or type(label) is not int or type(name) is not str:
        return False
    return label >= 0 and bool(path.strip()) and bool(name.strip())


def subfolders(folder: Path) -> list[Path]:
    """The folders in `folder` by name, without hidden ones and what macOS adds to archives."""
    folders = []
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.name.startswith(".") and entry.name != "__MACOSX":
            folders.append(entry)
    return sorted(folders)


def images_in(folder: Path, label: int, classname: str) -> list[Datum]:
    """The images directly in a class's folder, by name; none if there is no such folder."""
    if not folder.is_dir():
        return []
    items = []
    for name in sorted(os.listdir(folder)):  # noqa: PTH208 - there may be a million
        if is_image_name(name):
            items.append(Datum(f"{folder}{os.sep}{name}", label, classname=classname))
    return items


def files_below(folder: Path) -> Iterator[str]:
    """The files in a folder and in those below it, by name, without hidden ones."""
    for parent, folders, files in os.walk(folder, followlinks=True):
        depth = parent.count(os.sep) - str(folder).count(os.sep)
        if depth >= DEEPEST:  # a link may lead to a folder that holds it
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield f"{parent}{os.sep}{name}"


def holds_images(folder: Path) -> bool:
    """Whether there is an image in a folder or below it."""
    for path in files_below(folder):
        if is_image_name(Path(path).name):
            return True
    return False


def contents(folder: Path) -> str:
    """What is in a folder, for a message."""
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return first_five(names) or "no files"


def file_datasets() -> list[type[FileDataset]]:
    """Every registered reader that has its own folder below the data root, by key."""
    readers = []
    for name in DATASET_REGISTRY:
        cls = DATASET_REGISTRY.get(name)
        if issubclass(cls, FileDataset) and cls.folder:
            readers.append(cls)
    return sorted(readers, key=lambda cls: cls.key())


def find_file_dataset(name: str) -> type[FileDataset]:
    """The reader of a data set.

    Args:
        name: The registered name (UCF101) or that of the reader's file (dtd), in any spelling.
    """
    readers = file_datasets()
    registered = DATASET_REGISTRY.find(name)
    for cls in readers:
        if registered == cls.name() or name.lower() == cls.key().lower():
            return cls
    keys = [cls.key() for cls in readers]
    names = [cls.name() for cls in readers]
    raise UnknownNameError(f"unknown data set '{name}'.{nearest(name, [*keys, *names])} Known: "
                           f"{', '.join(keys)}.")
