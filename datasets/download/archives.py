"""Unpacks untrusted archives: completely or not at all, and never outside the given folder.

Members are written here, not by the standard library, whose filters have been bypassed with chains of links
(CVE-2025-4517). No data set contains links, so none is ever created.
"""
from __future__ import annotations

import errno
import gzip
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..utils.errors import DataError, one_line
from ..utils.files import is_printable, leads_out
from ..utils.progress import show_progress

# Errors of the disk that is written to, not of the archive.
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)

# Bounds on the unpacked size. ImageNet has 1.4 million files, and images hardly shrink when they are compressed.
MOST_MEMBERS = 3_000_000
MOST_BYTES = 400 << 30
ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 20  # of unpacked to packed bytes, beyond what is always allowed
LARGEST_READ = 1 << 16  # bytes; a tar may announce a name of any length, which tarfile would read into memory


class ArchiveError(DataError):
    """An archive that is damaged or incomplete, or would write where it must not."""


@contextmanager
def unpacked(archive: Path, parent: Path, inner: str = "") -> Iterator[Path]:
    """A temporary folder in `parent` with the content of `archive` (and of the archive `inner` in it)."""
    folder = Path(tempfile.mkdtemp(prefix=f"unpacking-{archive.name[:40]}-", dir=parent))
    try:
        extract(archive, folder)
        if inner:
            extract(find(folder, inner, archive), folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # it may have been moved


def find(folder: Path, path: str, archive: Path) -> Path:
    """The unpacked `path`; if it is missing, this is not the expected archive."""
    if not (folder / path).exists():
        top = [one_line(entry.name, 60) for entry in sorted(folder.iterdir())[:5]]
        raise ArchiveError(f"{archive.name} does not contain {path}; at its top are: {', '.join(top)}")
    return folder / path


def extract(archive: Path, folder: Path) -> None:
    """Unpacks a tar or zip file, according to its name. Disk errors stay OSErrors."""
    try:
        write_members(archive, folder)
    except Exception as error:  # a damaged file can cause any exception inside the libraries
        if isinstance(error, ArchiveError) or (isinstance(error, OSError) and error.errno in DISK_FAULTS):
            raise
        reason = one_line(error) or type(error).__name__
        raise ArchiveError(f"{archive.name} is damaged or incomplete ({reason}): download it again") from error


def write_members(archive: Path, folder: Path) -> None:
    """Checks the name, kind and size of each member before any of it is written."""
    packed, size = archive.stat().st_size, 0
    members = zip_members(archive) if archive.suffix.lower() == ".zip" else tar_members(archive)
    counted = show_progress(members, f"unpacking {archive.name}", "files")
    for number, member in enumerate(counted, 1):
        size += max(member.size, 0)
        reason = (
            "a name that leads out of its folder" if leads_out(member.name)
            else "a name with control characters or letters that are not UTF-8" if not is_printable(member.name)
            else "a link or a device" if not member.plain
            else f"more than {MOST_MEMBERS:,} files" if number > MOST_MEMBERS else ""
        )
        if reason:
            raise ArchiveError(f"refused: {archive.name} contains {reason}: {one_line(member.name, 200)}")
        if size > min(max(ALWAYS_ALLOWED, LARGEST_RATIO * packed), MOST_BYTES):
            raise ArchiveError(f"refused: {archive.name} would unpack to {size:,} bytes or more, too many for an "
                               f"archive of {packed:,} bytes")
        path = folder / member.name
        if member.open is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, path.open("wb") as file:  # the later of two members with one name counts
                shutil.copyfileobj(source, file, LARGEST_READ)  # to the end, where zipfile compares the checksum


class Member(NamedTuple):
    name: str
    size: int
    plain: bool  # False for links, devices and the like
    open: Callable[[], Any] | None  # None for folders


def zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
            yield Member(info.filename, info.file_size, plain, None if info.is_dir() else partial(zipped.open, info))


def tar_members(archive: Path) -> Iterator[Member]:
    with archive.open("rb") as packed:
        stream = BoundedReads(packed)
        with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[call-overload]
            for member in iter(tar.next, None):
                plain = member.isdir() or (member.isreg() and not member.issparse())
                read = None if member.isdir() else partial(tar.extractfile, member)
                yield Member(member.name, member.size, plain, read)
                tar.members.clear()  # tarfile would keep a million of them
            stream.seek(tar.offset)  # a tar cut between two members looks complete except for its end mark
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ArchiveError(f"{archive.name} is incomplete, its end mark is missing: download it again")


class BoundedReads:
    """A tar file, packed or not, that refuses to read a large header into memory."""

    def __init__(self, packed: BufferedReader) -> None:
        gzipped = packed.peek(2).startswith(b"\x1f\x8b")  # browsers decompress some and keep the name
        self.stream: IO[bytes] = gzip.GzipFile(fileobj=packed) if gzipped else packed  # type: ignore[assignment]
        self.seek, self.tell = self.stream.seek, self.stream.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_READ:
            raise ArchiveError(f"refused: the archive has a header of {size:,} bytes")
        return self.stream.read(size)
