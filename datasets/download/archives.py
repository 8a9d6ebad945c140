"""Unpacks archives that nobody vouches for: all or nothing, and never outside the folder meant for them.

Members are written here, one by one, not by the standard library: its filters judge names and have been led astray by
chains of links (CVE-2025-4517). No benchmark has a link in it, so none is ever made, and there is nothing to follow.
"""
from __future__ import annotations

import bz2
import errno
import gzip
import logging
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from ..utils.errors import DataError, one_line
from ..utils.files import is_printable, leads_out

logger = logging.getLogger(__name__)

# Faults of the disk that is written to, for which the archive is not to blame.
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
UNPACKERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
CHUNK = 1 << 16

# Bounds on what an archive may become. ImageNet has 1.4 million files; pictures hardly shrink when they are packed.
MOST_MEMBERS = 3_000_000
MOST_BYTES = 400 << 30
ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 20  # of what is unpacked to the archive, beyond what is always allowed
LARGEST_HEADER = CHUNK  # bytes; a tar may announce a name of any length, which the library would read at once


class ArchiveError(DataError):
    """An archive that is damaged, cut short, or wants to write where it must not."""


@contextmanager
def unpacked(archive: Path, beside: Path, inner: str = "") -> Iterator[Path]:
    """A new folder within `beside` with all of `archive` (and of the archive `inner` in it), gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=f"unpacking-{archive.name[:40]}-", dir=beside))
    try:
        written = extract(archive, folder)
        if inner:
            written += extract(find(folder, inner, archive), folder)
        found = sum(len(files) for _, _, files in os.walk(folder))
        if found != written:
            raise ArchiveError(f"{archive.name}: {written:,} files were unpacked, but {found:,} are there: something "
                               f"else changes {beside}; run again when it has ended")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # not there if it was moved into place as a whole


def find(folder: Path, path: str, archive: Path) -> Path:
    """The unpacked `path`; its absence means that this is another archive than the one expected."""
    if not (folder / path).exists():
        top = [one_line(entry.name, 60) for entry in sorted(folder.iterdir())[:5]]
        raise ArchiveError(f"{archive.name} does not hold {path}; at its top are: {', '.join(top)}")
    return folder / path


def extract(archive: Path, into: Path) -> int:
    """Unpacks a tar or zip file, as its name says; how many files it held. A disk that refuses stays an OSError."""
    is_zip, is_tar = archive.name.lower().endswith(".zip"), archive.name.lower().endswith(TAR_ENDINGS)
    try:
        target = Target(archive, into)
        if is_zip and zipfile.is_zipfile(archive):
            extract_zip(archive, target)
        elif is_tar and not zipfile.is_zipfile(archive):
            extract_tar(archive, target)
        else:
            kind = "zip archive" if is_zip else "tar archive" if is_tar else "tar or zip archive by its name"
            raise ArchiveError(f"{archive.name} is no {kind}, or only part of one: fetch it again")
    except Exception as error:  # damage can end in any exception inside the libraries
        if isinstance(error, ArchiveError) or (isinstance(error, OSError) and error.errno in DISK_FAULTS):
            raise
        reason = one_line(error) or type(error).__name__
        raise ArchiveError(f"{archive.name} is damaged or cut short ({reason}): fetch it again") from error
    if not target.files:
        raise ArchiveError(f"{archive.name} is empty")
    return target.files


class Target:
    """The folder that an archive is unpacked into: writes files, checks names and counts what it writes."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.real = os.path.realpath(folder)
        self.allowed = min(max(ALWAYS_ALLOWED, LARGEST_RATIO * archive.stat().st_size), MOST_BYTES)
        self.members = self.bytes = self.files = 0
        self.folders: set[Path] = set()

    def announce(self, name: str, size: int, kind: str) -> None:
        """Refuses a member before anything of it is written."""
        check_name(name)
        if kind not in ("file", "folder"):
            raise ArchiveError(f"refused: the archive holds {one_line(name, 200)}, which is {kind}")
        self.members += 1
        if self.members > MOST_MEMBERS:
            raise ArchiveError(f"refused: {self.archive.name} holds more than {MOST_MEMBERS:,} files")
        self.check_size(self.bytes + size)

    def check_size(self, size: int) -> None:
        if size > self.allowed:
            raise ArchiveError(f"refused: {self.archive.name} would unpack to {size:,} bytes or more, which its "
                               f"{self.archive.stat().st_size:,} bytes cannot honestly hold")

    def write(self, name: str, source: BinaryIO, size: int) -> None:
        """A new regular file of this size; one of the same name that came earlier gives way, as in any tar."""
        path = self.folder / name
        self.make_folder(path.parent)
        if path.is_file():
            path.unlink()
            self.files -= 1
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
            self.files += 1
            left = size
            while chunk := source.read(min(CHUNK, left)) if left else b"":
                file.write(chunk)
                left -= len(chunk)
                self.bytes += len(chunk)
                self.check_size(self.bytes)
        if left:
            raise ArchiveError(f"{self.archive.name} is cut short within {one_line(name, 200)}: fetch it again")

    def make_folder(self, folder: Path) -> None:
        """Folders above a file, whose real place must be within this one's. Each is looked at once."""
        if folder in self.folders:
            return
        folder.mkdir(parents=True, exist_ok=True)
        real = os.path.realpath(folder)
        if os.path.commonpath([self.real, real]) != self.real:
            raise ArchiveError(f"refused: {one_line(str(folder), 200)} leads to {one_line(real, 200)}, out of its "
                               f"folder")
        self.folders.add(folder)


def extract_tar(archive: Path, target: Target) -> None:
    with archive.open("rb") as packed, BoundedStream(open_unpacker(packed), target) as stream, \
            tarfile.open(fileobj=stream, mode="r:") as tar:
        for member in tqdm(iter(tar.next, None), desc=f"unpacking {archive.name}", unit=" files", disable=None):
            kind = "file" if member.isreg() and not member.issparse() else "folder" if member.isdir() else (
                "a link or a device")
            target.announce(member.name, member.size, kind)
            if kind == "file":
                target.write(member.name, tar.extractfile(member), member.size)
            else:
                target.make_folder(target.folder / member.name)
            tar.members.clear()  # the library would keep all of a million
        stream.seek(tar.offset)  # a tar cut between two files looks whole; only the zeros at the end tell
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise ArchiveError(f"{archive.name} is cut short, its end mark is missing: fetch it again")


def open_unpacker(packed: BinaryIO) -> BinaryIO:
    """The stream of a tar, whatever it is packed with."""
    head = packed.read(6)
    packed.seek(0)
    return next((unpack(packed) for mark, unpack in UNPACKERS if head.startswith(mark)), packed)


class BoundedStream:
    """A stream that never hands out more at once than a header may be, nor goes further than an archive may reach."""

    def __init__(self, stream: BinaryIO, target: Target) -> None:
        self.stream, self.target = stream, target

    def __enter__(self) -> BoundedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_HEADER:
            raise ArchiveError(f"refused: {self.target.archive.name} has a header of {size:,} bytes")
        return self.stream.read(size)

    def seek(self, place: int) -> int:
        self.target.check_size(place - (self.target.members + 1) * 10 * tarfile.BLOCKSIZE)  # headers do not count
        return self.stream.seek(place)

    def tell(self) -> int:
        return self.stream.tell()


def extract_zip(archive: Path, target: Target) -> None:
    with zipfile.ZipFile(archive) as zipped:
        members = zipped.infolist()
        announced = 0
        for info in members:
            announced += info.file_size
            kind = "file" if stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR) else (
                "a link or a device")
            target.announce(info.filename, announced, kind)
        for info in tqdm(members, desc=f"unpacking {archive.name}", unit=" files", disable=None):
            if info.is_dir():
                target.make_folder(target.folder / info.filename)
                continue
            with zipped.open(info) as source:
                target.write(info.filename, source, info.file_size)
                source.read(1)  # the end of the data, where the checksum is compared


def check_name(name: str) -> None:
    """Refuses names that lead out of the folder, on any system, and such as make trouble everywhere."""
    if leads_out(name):
        raise ArchiveError(f"refused: the archive holds {one_line(name, 200)}, which leads out of its folder")
    if not is_printable(name):
        raise ArchiveError(f"refused: the archive holds {name[:200]!r}, a name with control characters or letters that "
                           f"are no UTF-8")
