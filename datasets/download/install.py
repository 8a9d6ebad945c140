"""Brings file_datasets to the data root, laid out as their readers expect, or says exactly how to do so by hand."""
from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..file_dataset import FileDataset
from ..utils.cli import tool
from ..utils.errors import DataError, UserError, one_line
from ..utils.files import write_atomically
from ..utils.locking import locked
from .archives import ArchiveError, find, unpacked
from .fetch import fetch
from .sources import Source

logger = logging.getLogger(__name__)

WORK_FOLDER = ".downloads"  # under the root, so that moves into place stay on one disk and are atomic
LOCK = ".downloads.lock"

COOP_PROMPTS = Source(
    name="coop_imagenet_prompts.zip",
    drive_id="18ypxfd82RR0pizc5MM1ZWDYDk4j0BtPF",
    places={".": "coop"},
)


def download_benchmark(cls: type[FileDataset], root: Path, mirror: str = "") -> bool:
    """Fetches what is missing of one benchmark. True if its reader finds it in order afterwards; what is there is left
    alone, so a folder that is incomplete must be moved away first."""
    folder = root / cls.folder
    archives = missing_archives(cls, root)
    fetching = bool(archives or missing_metadata(cls, root))
    faults = []
    for source in archives:
        try:
            fetch_archive(source, root, folder, mirror)
        except DataError as error:
            faults.append(str(error))
    faults += fetch_all_metadata(cls, root, mirror)
    if not faults:
        try:
            dataset = cls(root)
        except DataError as error:
            faults.append(str(error))
    if faults:
        logger.error("error: %s: %s\n%s", cls.key(), "; ".join(faults), manual_steps(cls, root))
        return False
    logger.info("%s: %s, %d test images of %d classes in %s", cls.key(), "ready" if fetching else "already there",
                len(dataset.test), len(dataset.classnames), folder)
    return True


def download_splits(cls: type[FileDataset], root: Path, mirror: str = "") -> bool:
    """Fetches the split file or the class names of one benchmark alone. True if they are there afterwards."""
    missing = missing_metadata(cls, root)
    faults = fetch_all_metadata(cls, root, mirror)
    if faults:
        steps = [f"fetch {source.link} and save it as {root / cls.folder / source.name}" for source in missing]
        logger.error("error: %s: %s\nBy hand: %s", cls.key(), "; ".join(faults), "; ".join(steps))
        return False
    names = ", ".join(source.name for source in cls.metadata if source.drive_id)
    if names:
        logger.info("%s: %s %s", cls.key(), names, "fetched" if missing else "already there")
    return True


def download_coop(root: Path, mirror: str = "") -> bool:
    """Fetches the prompts that CoOp's authors trained on ImageNet."""
    target = root / "coop"
    fetching = not target.exists()
    try:
        if fetching:
            fetch_archive(COOP_PROMPTS, root, root, mirror)
        prompts = sorted(target.rglob("model*.pth.tar*"))
        if not prompts:
            raise DataError(f"{target} holds no prompt such as model.pth.tar-50: move it away and run again")
    except DataError as error:
        logger.error("error: coop: %s\nBy hand:\n  1. fetch %s\n  2. unpack it in %s",
                     error, COOP_PROMPTS.link, target)
        return False
    logger.info("coop: %s, %d prompts in %s, to be given as MODEL.INIT_WEIGHTS, for example %s",
                "ready" if fetching else "already there", len(prompts), target, prompts[0])
    return True


def all_placed(source: Source, folder: Path) -> bool:
    return all((folder / place).exists() for place in source.places.values())


def missing_archives(cls: type[FileDataset], root: Path) -> list[Source]:
    return [source for source in cls.archives if not all_placed(source, root / cls.folder)]


def missing_metadata(cls: type[FileDataset], root: Path) -> list[Source]:
    return [source for source in cls.metadata if not cls.locate(root, source).is_file()]


@contextmanager
def working(root: Path) -> Iterator[Path]:
    """The work folder below a root, for one process at a time: others wait, and find what is done when they come."""
    work = root / WORK_FOLDER
    try:
        work.mkdir(parents=True, exist_ok=True)
        with locked(root / LOCK, f"downloads to {root}"):
            work.mkdir(exist_ok=True)  # who was waited for may have removed it
            for left in work.glob("unpacking-*"):  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True)
            try:
                yield work
            finally:
                with suppress(OSError):  # stays if something half-loaded is in it
                    work.rmdir()
    except OSError as error:
        raise DataError(f"cannot write to {root}: {error.strerror}; once that is mended, run again: "
                        f"finished downloads are kept") from error


def fetch_archive(source: Source, root: Path, folder: Path, mirror: str) -> None:
    """Downloads and unpacks beside the final place, then moves each part into it in one step."""
    with working(root) as work:
        if all_placed(source, folder):  # by the process that was waited for
            return
        archive = fetch(source, work, mirror)
        try:
            with unpacked(archive, work, source.inner) as content:
                for path, place in source.places.items():
                    move(find(content, path, archive), folder / place)
        except ArchiveError:
            discard(archive, work)  # a second try must not find it and take it for good
            raise
        discard(archive, work)


def discard(archive: Path, work: Path) -> None:
    """Removes a downloaded archive; those in a mirror's folder are somebody's own."""
    if archive.parent == work:
        archive.unlink()


def move(path: Path, target: Path) -> None:
    """Moves a part of an archive to its place, unless an earlier run already did."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_whole(path, target)


def copy_whole(path: Path, target: Path) -> None:
    """To another disk, which a benchmark's folder may be a link to: there whole or not at all."""
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a run that was killed
    try:
        if path.is_dir():
            shutil.copytree(path, part)
        else:
            shutil.copy2(path, part)
        part.rename(target)
    except shutil.Error as error:  # a list of what could not be copied: from, to, why
        raise OSError(None, one_line(error.args[0][0][2], 300)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):
            part.unlink()


def fetch_all_metadata(cls: type[FileDataset], root: Path, mirror: str) -> list[str]:
    """Fetches the split file or class names that are missing, but for lists that come with the images."""
    faults = []
    for source in missing_metadata(cls, root):
        if source.drive_id:
            try:
                fetch_metadata(cls, source, root, mirror)
            except UserError as error:
                faults.append(str(error))
    return faults


def fetch_metadata(cls: type[FileDataset], source: Source, root: Path, mirror: str) -> None:
    """Puts a split file or class names into the benchmark's folder."""
    target = root / cls.folder / source.name
    with working(root) as work:
        if target.is_file():
            return
        path = fetch(source, work, mirror)
        content = path.read_bytes()
        write_atomically(target, lambda file: file.write(content))
        discard(path, work)


def manual_steps(cls: type[FileDataset], root: Path) -> str:
    """What a person does with a browser, down to the folder names."""
    folder = root / cls.folder
    archives, files, steps = missing_archives(cls, root), missing_metadata(cls, root), []
    if cls.archives and not archives and not files:  # all is in place, and yet it cannot be read
        archives, files = cls.archives, cls.metadata
        steps.append(f"move {folder} away; then run again, or go on by hand")
    if archives or not cls.archives:
        steps += [step.format(folder=folder) for step in cls.manual]
    for source in archives:
        checksum = f" ({source.checksum.replace(':', ' ')})" if source.checksum else ""
        origin = f"fetch {source.link} as" if source.link else "get"
        inner = f" and the {source.inner} in it" if source.inner else ""
        places = [f"{path} to {folder / place}" for path, place in source.places.items()]
        steps.append(f"{origin} {source.name}{checksum}, unpack it{inner} and move {', '.join(places)}")
    steps += [f"fetch {source.link} and save it as {folder / source.name}" for source in files if source.drive_id]
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    if archives:
        lines.append(f"  Or put those files as they are into one folder: {cls.download_command(root)} --mirror FOLDER")
    lines.append(f"  To look it over: {tool('check-data')} {cls.key()} --root {root}")
    return "\n".join(["By hand:", *lines])
