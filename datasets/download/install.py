"""Installs data sets below a data root in the layout that the readers expect: from their archives,
from a hub's copy in parquet files, or by hand in steps that are printed.
"""
from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..base import Datum
from ..file_dataset import FileDataset, SplitEntry, read_split_file
from ..parquet import Parquet, parquet_files_in
from ..utils.cli import counted, plural, tool
from ..utils.errors import DataError, UserError, first_five, one_line, reading
from ..utils.files import write_atomically
from ..utils.lock import OwnedLock
from ..utils.progress import show_progress
from .archives import ArchiveError, find, unpacked
from .fetch import Source, fetch_any, new_folder

logger = logging.getLogger(__name__)

WORK_FOLDER = ".downloads"  # below the root, so that files are moved within one disk

COOP_PROMPTS = Source(
    name="coop_imagenet_prompts.zip",
    drive_id="18ypxfd82RR0pizc5MM1ZWDYDk4j0BtPF",
    places={".": "coop"},
)


def download_dataset(cls: type[FileDataset], root: Path, mirror: str = "") -> bool:
    """Downloads the missing parts of a data set.

    Existing folders are not changed, so an incomplete one must be moved away first.

    Args:
        cls: The reader.
        root: The data root.
        mirror: A folder or an address with the archives; "" = none.

    Returns:
        Whether the reader accepts the set afterwards.
    """
    try:
        with reading():
            # Lists without an address of their own are in an archive.
            lists = [source for source in missing_metadata(cls, root) if source.drive_id]
            archives = missing_archives(cls, root)
        missing = [*lists, *archives]
        if archives and has_parquet_copy(cls, mirror):
            for source in lists:
                install(source, root, cls.folder_in(root), mirror)
            install_from_parquet(cls, root, Path(mirror).expanduser())
        else:
            for source in missing:
                install(source, root, cls.folder_in(root), mirror)
        dataset = cls(root)
        dataset.check_files(dataset.test)
    except UserError as error:
        logger.error("error: %s: %s\n%s", cls.key(), error, manual_steps(cls, root))
        return False
    state = "ready" if missing else "already there"
    images = counted(len(dataset.test), "test image")
    classes = plural(len(dataset.classnames), "class", "classes")
    logger.info("%s: %s, %s of %s in %s", cls.key(), state, images, classes, cls.folder_in(root))
    return True


def download_coop(root: Path, mirror: str = "") -> bool:
    """Downloads the prompts that CoOp's authors trained on ImageNet.

    Returns:
        Whether they are there afterwards.
    """
    target = root / "coop"
    missing = not target.exists()
    try:
        if missing:
            install(COOP_PROMPTS, root, root, mirror)
    except DataError as error:
        logger.error("error: coop: %s\nBy hand:\n  1. download %s\n  2. unpack it in %s",
                     error, COOP_PROMPTS.link, target)
        return False
    state = "ready" if missing else "already there"
    logger.info(
        "coop: %s in %s: give a prompt such as model.pth.tar-50 there as MODEL.INIT_WEIGHTS",
        state,
        target,
    )
    return True


def installed(source: Source, folder: Path) -> bool:
    """Whether all parts of a file are in their places."""
    return all((folder / place).exists() for place in source.places.values() or [source.name])


def missing_archives(cls: type[FileDataset], root: Path) -> list[Source]:
    """The archives of a set whose content is not there."""
    if cls.is_in_tpt_layout(root) and cls.test_dir(root).is_dir():
        return []
    return [source for source in cls.archives if not installed(source, cls.folder_in(root))]


def missing_metadata(cls: type[FileDataset], root: Path) -> list[Source]:
    """The lists of a set that are not there."""
    return [source for source in cls.metadata if not cls.locate(root, source).is_file()]


@contextmanager
def working(root: Path) -> Iterator[Path]:
    """The work folder below a root, for one process at a time; others wait."""
    work = root / WORK_FOLDER
    try:
        lock = OwnedLock(root / f"{WORK_FOLDER}.lock")
        with new_folder(root), lock.awaited(f"downloads to {root}"):
            work.mkdir(exist_ok=True)
            for leftover in work.glob("unpacking-*"):  # of a run that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            try:
                yield work
            finally:
                with suppress(OSError):  # it stays if it holds a partial download
                    work.rmdir()
    except OSError as error:
        raise DataError(
            f"cannot write to {root}: {error.strerror}; fix this and run again: finished "
            f"downloads are kept"
        ) from error


def install(source: Source, root: Path, folder: Path, mirror: str) -> None:
    """Downloads a file and unpacks it in the work folder, then moves each part to its place.

    Lists are copied.

    Args:
        source: Addresses and checksum of the file.
        root: The data root, below which the work folder is made.
        folder: Folder of the data set.
        mirror: A folder or an address; "" = none.
    """
    with working(root) as work:
        if installed(source, folder):  # by the process that held the lock
            return
        source, file = fetch_any(source, work, mirror)
        fault = None
        try:
            if source.places:
                with unpacked(file, work, source.inner) as content:
                    for path, place in source.places.items():
                        move(find(content, path, file), folder / place)
            else:
                content_of_file = file.read_bytes()
                write_atomically(folder / source.name, lambda target: target.write(content_of_file))
        except ArchiveError as error:
            fault = error
        # A damaged archive is removed too, so that the next call downloads it again. Files in a
        # mirror's folder stay.
        if file.parent == work:
            file.unlink()
        if fault:
            raise fault


def move(path: Path, target: Path) -> None:
    """Moves a part of an archive to its place, unless an earlier run did.

    It is moved under another name and renamed at the end. So the target is complete whenever it
    exists, even if the data set's folder is a link to another disk.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    remove(part)  # of a run that was killed
    try:
        shutil.move(path, part)
        part.rename(target)
    except shutil.Error as error:  # a list of failed copies: from, to, why
        raise OSError(None, one_line(error.args[0][0][2], 300)) from error
    finally:
        remove(part)


def has_parquet_copy(cls: type[FileDataset], mirror: str) -> bool:
    """Whether a set may be made from parquet files, and a mirror has these but no archive."""
    folder = Path(mirror).expanduser()
    if not cls.parquet_copy or not mirror or not folder.is_dir():
        return False
    if any((folder / source.name).is_file() for source in cls.archives):
        return False
    return bool(parquet_files_in(folder))


def install_from_parquet(cls: type[FileDataset], root: Path, folder_of_copy: Path) -> None:
    """Writes the images of a hub's copy to the paths that CoOp's split file has.

    The copy must be the same set: with the same number of images of each class in each split.
    """
    folder = cls.folder_in(root)
    with reading():
        entries = read_split_file(cls.locate(root, cls.metadata[0]))
        copy = HubCopy(folder_of_copy)
        paths = match_copy(copy, entries)
    with working(root) as work:
        target = Path(tempfile.mkdtemp(prefix="unpacking-parquet-", dir=work))
        try:
            for item, path in show_progress(paths, "writing images", "files", total=len(paths)):
                file = target / cls.images / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(copy.stored_bytes(item))
            for source in cls.archives:
                for place in source.places.values():
                    if (target / place).exists():
                        move(target / place, folder / place)
        finally:
            shutil.rmtree(target, ignore_errors=True)


class HubCopy(Parquet):
    """A hub's copy of a benchmark in parquet files. Its images are written to files, nothing else:
    no run depends on its class names.
    """

    def warn(self) -> None:
        """Nothing: the copy is compared with the published set instead."""

    def stored_name(self, item: Datum) -> str:
        """The file name that is stored with an image; "" if there is none."""
        cell = self.stored_cell(item)
        if not isinstance(cell, dict) or not isinstance(cell.get("path"), str):
            return ""
        return cell["path"].replace("\\", "/").rpartition("/")[2]


def match_copy(
    copy: HubCopy, entries: Mapping[str, Sequence[SplitEntry]],
) -> list[tuple[Datum, str]]:
    """Finds a path for each image of a copy.

    Args:
        copy: The copy.
        entries: The split file. Its `train` and `val` are the copy's training images.

    Raises:
        DataError: If classes, or the number of images of a class, differ.
    """
    published = {"test": list(entries["test"]), "train": [*entries["train"], *entries["val"]]}
    copied = {"test": list(copy.test), "train": [*copy.train, *copy.val]}
    published_names: set[str] = set()
    for rows in published.values():
        published_names.update(name for _, _, name in rows)
    names = match_names(copy, published_names)
    if not copied["train"]:  # a copy for testing
        del copied["train"]
    for split, items in copied.items():
        counts = Counter(names[item.classname] for item in items)
        published_counts = Counter(name for _, _, name in published[split])
        differences = []
        for name in sorted(published_counts | counts):
            if counts[name] != published_counts[name]:
                differences.append(f"'{name}' {counts[name]} and {published_counts[name]}")
        if differences:
            raise DataError(f"{copy.root} is not the published set: it has {counts.total():,} "
                            f"{split} images, the split file {published_counts.total():,}; images "
                            f"by class there and in the split file: {first_five(differences)}; "
                            f"read it with --dataset-config-file parquet instead")
    paths = []
    for split, items in copied.items():
        paths += match_split(copy, items, published[split], names)
    return paths


def match_names(copy: HubCopy, published: set[str]) -> dict[str, str]:
    """CoOp's name of each class of the copy.

    Words may have another order: `Acura RL Sedan 2012` is `2012 Acura RL Sedan`.
    """
    by_words = {words_of(name): name for name in published}
    names = {}
    unknown = []
    for name in copy.classnames:
        if words_of(name) in by_words:
            names[name] = by_words[words_of(name)]
        else:
            unknown.append(f"'{name}'")
    absent = sorted(published - set(names.values()))
    if unknown or absent or len(set(names.values())) < len(names):
        raise DataError(f"{copy.root} is not the published set: it has {len(copy.classnames)} "
                        f"classes and the split file {len(published)}; only in the copy: "
                        f"{first_five(unknown) or 'none'}; only in the split file: "
                        f"{first_five(absent) or 'none'}")
    return names


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name in alphabetical order."""
    return tuple(sorted(re.findall(r"[a-z0-9]+", name.lower())))


def match_split(
    copy: HubCopy, items: Sequence[Datum], published: Sequence[SplitEntry], names: dict[str, str],
) -> list[tuple[Datum, str]]:
    """The path of each image of a split: by its stored file name, else in the order of its class.

    Args:
        copy: The copy.
        items: Its images of the split.
        published: The split file's images of the split.
        names: CoOp's name of each class of the copy.
    """
    by_name = {(path.rpartition("/")[2], name): path for path, _, name in published}
    paths = []
    for item in items:
        path = by_name.get((copy.stored_name(item), names[item.classname]))
        if path is not None:
            paths.append((item, path))
    if len(paths) == len(items) and len({path for _, path in paths}) == len(items):
        return paths

    logger.info("the copy has no file names: images of a class get the names of its images in "
                "their order, so few-shot samples are not CoOp's")
    waiting = defaultdict(list)
    for path, _, name in reversed(published):
        waiting[name].append(path)
    paths = []
    for item in items:
        paths.append((item, waiting[names[item.classname]].pop()))
    return paths


def remove(path: Path) -> None:
    """Removes a folder or a file, if it is there."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def manual_steps(cls: type[FileDataset], root: Path) -> str:
    """How to install a data set with a browser."""
    folder = cls.folder_in(root)
    archives = missing_archives(cls, root)
    lists = missing_metadata(cls, root)
    steps = []
    if cls.archives and not archives and not lists:  # all is there, but the reader refuses it
        archives = list(cls.archives)
        lists = list(cls.metadata)
        steps.append(f"move {folder} away; then run again, or continue by hand")
    if archives or not cls.archives:
        for step in cls.manual:
            steps.append(step.format(folder=folder))
    for source in archives:
        steps += archive_steps(source, folder)
    for source in lists:
        if source.drive_id:
            steps.append(f"download {source.link} and save it as {folder / source.name}")

    lines = ["By hand:"]
    for number, step in enumerate(steps, 1):
        lines.append(f"  {number}. {step}")
    command = cls.download_command(root)
    if archives:
        lines.append(f"  Or put those files, unchanged, into one folder: {command} --mirror FOLDER")
    if archives and cls.parquet_copy:
        lines.append(
            f"  Or from a copy in parquet files: hf download {cls.parquet_copy} --repo-type "
            f"dataset --local-dir FOLDER, then {command} --mirror FOLDER"
        )
    lines.append(f"  To check the result: {tool('check-data')} {cls.key()} --root {root}"
                 f"{cls.plugin_flag()}")
    return "\n".join(lines)


def archive_steps(source: Source, folder: Path) -> list[str]:
    """How to install an archive with a browser, and the one that may replace it."""
    step = f"get {source.name}"
    if source.link:
        step = f"download {source.link} as {source.name}"
    if source.checksum:
        step += f" ({source.checksum.replace(':', ' ')})"
    step += ", unpack it"
    if source.inner:
        step += f" and the {source.inner} in it"
    steps = [f"{step} and move {moves(source, folder)}"]
    if source.substitute is not None:
        steps.append(f"or, instead of {source.name}, download {source.substitute.link} and move "
                     f"{moves(source.substitute, folder)}")
    return steps


def moves(source: Source, folder: Path) -> str:
    """Where the content of an archive belongs, in words."""
    parts = [f"{path} to {folder / place}" for path, place in source.places.items()]
    return ", ".join(parts)
