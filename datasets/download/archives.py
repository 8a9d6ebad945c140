"""Unpacks untrusted archives: completely or not at all, and never outside the given folder.

Members are written here, not by the standard library, whose filters have been bypassed with chains
of links (CVE-2025-4517). No data set contains links, so none is ever created.
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
DISK_FAULTS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO,
)

# Bounds on the unpacked size. ImageNet has 1.4 million files, and images hardly shrink when they
# are compressed.
MOST_MEMBERS = 3_000_000
MOST_BYTES = 400 << 30
ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 20  # of unpacked to packed bytes, beyond what is always allowed
# Bytes; a tar may announce a name of any length, which tarfile would read into memory.
LARGEST_READ = 1 << 16


class ArchiveError(DataError):
    """An archive that is damaged or incomplete, or would write where it must not."""


@contextmanager
def unpacked(archive: Path, parent: Path, inner: str = "") -> Iterator[Path]:
    """A temporary folder with the content of an archive, which is removed at the end.

    Args:
        archive: A tar or zip file.
        parent: Folder in which the new folder is made.
        inner: Path of an archive inside the archive, whose content is unpacked too; "" if there is
            none.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"unpacking-{archive.name[:40]}-", dir=parent))
    try:
        extract(archive, folder)
        if inner:
            extract(find(folder, inner, archive), folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # it may have been moved


def find(folder: Path, path: str, archive: Path) -> Path:
    """A part of an unpacked archive.

    If it is missing, this is not the expected archive.
    """
    if not (folder / path).exists():
        top = [one_line(entry.name, 60) for entry in sorted(folder.iterdir())[:5]]
        raise ArchiveError(f"{archive.name} does not contain {path}; at its top are: "
                           f"{', '.join(top)}")
    return folder / path


def extract(archive: Path, folder: Path) -> None:
    """Unpacks a tar or zip file, according to its name.

    Raises:
        ArchiveError: The archive is damaged, or has members that are refused.
        OSError: The disk is full or cannot be written.
    """
    try:
        write_members(archive, folder)
    except ArchiveError:
        raise
    except Exception as error:  # a damaged file can cause any exception inside the libraries
        if isinstance(error, OSError) and error.errno in DISK_FAULTS:
            raise
        reason = one_line(error) or type(error).__name__
        raise ArchiveError(f"{archive.name} is damaged or incomplete ({reason}): download it "
                           f"again") from error


def write_members(archive: Path, folder: Path) -> None:
    """Writes the members of an archive, each after checking its name, kind and size."""
    if archive.suffix.lower() == ".zip":
        members = zip_members(archive)
    else:
        members = tar_members(archive)
    packed_bytes = archive.stat().st_size
    most_bytes = min(max(ALWAYS_ALLOWED, LARGEST_RATIO * packed_bytes), MOST_BYTES)
    unpacked_bytes = 0
    counted = show_progress(members, f"unpacking {archive.name}", "files")
    for number, member in enumerate(counted, 1):
        unpacked_bytes += max(member.size, 0)
        reason = refusal_of(member, number)
        if reason:
            raise ArchiveError(f"refused: {archive.name} contains {reason}: "
                               f"{one_line(member.name, 200)}")
        if unpacked_bytes > most_bytes:
            raise ArchiveError(f"refused: {archive.name} would unpack to {unpacked_bytes:,} bytes "
                               f"or more, too many for an archive of {packed_bytes:,} bytes")
        path = folder / member.name
        if member.open is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of two members with one name the later one counts. The copy goes on to the end of a
        # member, where zipfile compares the checksum.
        with member.open() as source, path.open("wb") as file:
            shutil.copyfileobj(source, file, LARGEST_READ)


def refusal_of(member: Member, number: int) -> str:
    """Why a member is not unpacked; "" if it may be."""
    if leads_out(member.name):
        return "a name that leads out of its folder"
    if not is_printable(member.name):
        return "a name with control characters or letters that are not UTF-8"
    if not member.plain:
        return "a link or a device"
    if number > MOST_MEMBERS:
        return f"more than {MOST_MEMBERS:,} files"
    return ""


class Member(NamedTuple):
    """A file or folder of an archive.

    Attributes:
        name: Path of the member below the folder that the archive is unpacked in.
        size: Size in bytes, as the archive announces it.
        plain: False for links, devices and the like.
        open: Opens its content for reading; None for a folder.
    """

    name: str
    size: int
    plain: bool
    open: Callable[[], Any] | None


def zip_members(archive: Path) -> Iterator[Member]:
    """The members of a zip file, in its order."""
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if the archive does not state it
            opener = None
            if not info.is_dir():
                opener = partial(zipped.open, info)
            yield Member(
                name=info.filename,
                size=info.file_size,
                plain=kind in (0, stat.S_IFREG, stat.S_IFDIR),
                open=opener,
            )


def tar_members(archive: Path) -> Iterator[Member]:
    """The members of a tar file, packed by gzip or not, in its order."""
    with archive.open("rb") as packed:
        stream = BoundedReads(packed)
        with tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[call-overload]
            for member in iter(tar.next, None):
                opener = None
                if not member.isdir():
                    opener = partial(tar.extractfile, member)
                yield Member(
                    name=member.name,
                    size=member.size,
                    plain=member.isdir() or (member.isreg() and not member.issparse()),
                    open=opener,
                )
                tar.members.clear()  # tarfile would keep a million of them
            # A tar that is cut between two members looks complete except for its end mark.
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ArchiveError(f"{archive.name} is incomplete, its end mark is missing: "
                                   f"download it again")


class BoundedReads:
    """A tar file, packed or not, that refuses to read a large header into memory."""

    def __init__(self, packed: BufferedReader) -> None:
        self.stream: IO[bytes] = packed
        # By its first bytes: browsers decompress some files and keep the name.
        if packed.peek(2).startswith(b"\x1f\x8b"):
            self.stream = gzip.GzipFile(fileobj=packed)  # type: ignore[assignment]
        self.seek = self.stream.seek
        self.tell = self.stream.tell

    def read(self, size: int = -1) -> bytes:
        """The next bytes; refuses a read of more than LARGEST_READ."""
        if not 0 <= size <= LARGEST_READ:
            raise ArchiveError(f"refused: the archive has a header of {size:,} bytes")
        return self.stream.read(size)
