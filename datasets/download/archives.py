"""Unpacks archives that nobody vouches for: all or nothing, and never outside the folder meant for them."""
from __future__ import annotations

import errno
import logging
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from tqdm import tqdm

from ..utils.errors import DataError

logger = logging.getLogger(__name__)

DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, NotImplementedError,
    RuntimeError,
)
# Faults of the disk that is written to, for which the archive is not to blame.
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)


class ArchiveError(DataError):
    """An archive that is damaged, cut short, or wants to write where it must not."""


@contextmanager
def unpacked(archive: Path, beside: Path, inner: str = "") -> Iterator[Path]:
    """A temporary folder within `beside` with all of `archive` (and of the archive `inner` in it), gone afterwards."""
    folder = beside / f"unpacking-{archive.name}"
    try:
        shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
        folder.mkdir()
        extract(archive, folder)
        if inner:
            extract(find(folder, inner, archive), folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # not there if it was moved into place as a whole


def find(folder: Path, path: str, archive: Path) -> Path:
    """The unpacked `path`; its absence means that this is another archive than the one expected."""
    if not (folder / path).exists():
        top = sorted(entry.name for entry in folder.iterdir())[:5]
        raise ArchiveError(f"{archive.name} does not hold {path}; at its top are: {', '.join(top)}")
    return folder / path


def extract(archive: Path, into: Path) -> None:
    """Unpacks a tar or zip file, whichever it is by its content. A disk that refuses stays an OSError."""
    try:
        if zipfile.is_zipfile(archive):
            extract_zip(archive, into)
        elif tarfile.is_tarfile(archive):
            extract_tar(archive, into)
        else:
            raise ArchiveError(f"{archive.name} is no tar or zip archive, or only part of one: fetch it again")
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno in DISK_FAULTS:
            raise
        raise ArchiveError(f"{archive.name} is damaged or cut short ({error}): fetch it again") from error


def extract_tar(archive: Path, into: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tqdm(tar, desc=f"unpacking {archive.name}", unit=" files", disable=None)
        tar.extractall(into, members=members, filter=checked_member)
        if not tar.getmembers():
            raise ArchiveError(f"{archive.name} is empty")
        tar.fileobj.seek(tar.offset)  # a tar cut between two files looks whole; only the zeros at the end tell
        if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ArchiveError(f"{archive.name} is cut short, its end mark is missing: fetch it again")


def checked_member(member: tarfile.TarInfo, into: str) -> tarfile.TarInfo:
    """The standard library's `data` filter, but names it would quietly mend are refused: no honest archive has them."""
    check_name(member.name)
    try:
        return tarfile.data_filter(member, into)
    except tarfile.FilterError as error:
        raise ArchiveError(f"refused: the archive holds {member.name}, which is unsafe ({error})") from error


def extract_zip(archive: Path, into: Path) -> None:
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            check_name(info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArchiveError(f"refused: the archive holds {info.filename}, which is a link or a device")
        for info in tqdm(zipped.infolist(), desc=f"unpacking {archive.name}", unit=" files", disable=None):
            zipped.extract(info, into)


def check_name(name: str) -> None:
    """Refuses names that lead out of the folder, on any system."""
    windows = PureWindowsPath(name)
    if PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts:
        raise ArchiveError(f"refused: the archive holds {name}, which leads out of its folder")
