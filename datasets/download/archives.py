"""Unpacks untrusted archives: completely or not at all, and never outside the given folder.

Members are written here, not by the standard library, whose filters have been bypassed with chains of links
(CVE-2025-4517). No data set contains links, so none is ever created.
"""
from __future__ import annotations

import errno
import gzip
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from ..utils.errors import DataError, one_line
from ..utils.files import is_printable, leads_out

# Errors of the disk that is written to, not of the archive.
DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
GZIP = b"\x1f\x8b"
CHUNK = 1 << 16

# Bounds on the unpacked size. ImageNet has 1.4 million files, and images hardly shrink when they are compressed.
MOST_MEMBERS = 3_000_000
MOST_BYTES = 400 << 30
ALWAYS_ALLOWED = 1 << 30
LARGEST_RATIO = 20  # of unpacked to packed bytes, beyond what is always allowed
LARGEST_HEADER = CHUNK  # bytes; a tar may announce a name of any length, which tarfile would read into memory


class ArchiveError(DataError):
    """An archive that is damaged or incomplete, or would write where it must not."""


@contextmanager
def unpacked(archive: Path, parent: Path, inner: str = "") -> Iterator[Path]:
    """A temporary folder in `parent` with the content of `archive` (and of the archive `inner` in it)."""
    folder = Path(tempfile.mkdtemp(prefix=f"unpacking-{archive.name[:40]}-", dir=parent))
    try:
        written = extract(archive, folder)
        if inner:
            written += extract(find(folder, inner, archive), folder)
        found = sum(len(files) for _, _, files in os.walk(folder))
        if found != written:
            raise ArchiveError(f"{archive.name}: {written:,} files were unpacked, but {found:,} are there: another "
                               f"process changes {parent}; run again when it has ended")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # it may have been moved


def find(folder: Path, path: str, archive: Path) -> Path:
    """The unpacked `path`; if it is missing, this is not the expected archive."""
    if not (folder / path).exists():
        top = [one_line(entry.name, 60) for entry in sorted(folder.iterdir())[:5]]
        raise ArchiveError(f"{archive.name} does not contain {path}; at its top are: {', '.join(top)}")
    return folder / path


def extract(archive: Path, folder: Path) -> int:
    """Unpacks a tar or zip file, according to its name, and returns the number of files. Disk errors stay OSErrors."""
    is_zip, is_tar = archive.name.lower().endswith(".zip"), archive.name.lower().endswith(TAR_ENDINGS)
    try:
        unpacker = Unpacker(archive, folder)
        if is_zip and zipfile.is_zipfile(archive):
            unpacker.extract_zip()
        elif is_tar and not zipfile.is_zipfile(archive):
            unpacker.extract_tar()
        else:
            kind = "zip archive" if is_zip else "tar archive" if is_tar else "tar or zip archive by its name"
            raise ArchiveError(f"{archive.name} is not a {kind}, or incomplete: download it again")
    except Exception as error:  # a damaged file can cause any exception inside the libraries
        if isinstance(error, ArchiveError) or (isinstance(error, OSError) and error.errno in DISK_FAULTS):
            raise
        reason = one_line(error) or type(error).__name__
        raise ArchiveError(f"{archive.name} is damaged or incomplete ({reason}): download it again") from error
    if not unpacker.files:
        raise ArchiveError(f"{archive.name} is empty")
    return unpacker.files


class Unpacker:
    """Writes the members of an archive into a folder, after checking their names, kinds and sizes."""

    def __init__(self, archive: Path, folder: Path) -> None:
        self.archive, self.folder = archive, folder
        self.allowed = min(max(ALWAYS_ALLOWED, LARGEST_RATIO * archive.stat().st_size), MOST_BYTES)
        self.members = self.bytes = self.files = 0
        self.folders: set[Path] = set()

    def extract_tar(self) -> None:
        with self.archive.open("rb") as packed, BoundedStream(packed, self) as stream, \
                tarfile.open(fileobj=stream, mode="r:") as tar:  # type: ignore[call-overload]
            for member in self.progress(iter(tar.next, None)):
                plain = member.isdir() or (member.isreg() and not member.issparse())
                self.check_member(member.name, member.size, plain)
                if member.isdir():
                    self.make_folder(self.folder / member.name)
                else:
                    self.write(member.name, tar.extractfile(member), member.size)
                tar.members.clear()  # tarfile would keep a million of them
            stream.seek(tar.offset)  # a tar cut between two members looks complete except for its end mark
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise ArchiveError(f"{self.archive.name} is incomplete, its end mark is missing: download it again")

    def extract_zip(self) -> None:
        with zipfile.ZipFile(self.archive) as zipped:
            announced = 0
            for info in zipped.infolist():
                announced += info.file_size
                kind = stat.S_IFMT(info.external_attr >> 16)
                self.check_member(info.filename, announced, kind in (0, stat.S_IFREG, stat.S_IFDIR))
            for info in self.progress(zipped.infolist()):
                if info.is_dir():
                    self.make_folder(self.folder / info.filename)
                    continue
                with zipped.open(info) as source:
                    self.write(info.filename, source, info.file_size)
                    source.read(1)  # the end of the data, where zipfile compares the checksum

    def progress(self, members: Any) -> Any:
        return tqdm(members, desc=f"unpacking {self.archive.name}", unit=" files", disable=None)

    def check_member(self, name: str, size: int, plain: bool) -> None:
        """Refuses a member before any of it is written. `plain` is False for links, devices and the like."""
        self.members += 1
        reason = (
            "a name that leads out of its folder" if leads_out(name)
            else "a name with control characters or letters that are not UTF-8" if not is_printable(name)
            else "a link or a device" if not plain
            else f"more than {MOST_MEMBERS:,} files" if self.members > MOST_MEMBERS else ""
        )
        if reason:
            raise ArchiveError(f"refused: {self.archive.name} contains {reason}: {one_line(name, 200)}")
        self.check_size(self.bytes + size)

    def check_size(self, size: int) -> None:
        if size > self.allowed:
            raise ArchiveError(f"refused: {self.archive.name} would unpack to {size:,} bytes or more, too many for an "
                               f"archive of {self.archive.stat().st_size:,} bytes")

    def write(self, name: str, source: IO[bytes] | None, size: int) -> None:
        """Writes a new regular file. It replaces an earlier one of the same name, as in any tar."""
        path = self.folder / name
        self.make_folder(path.parent)
        if path.is_file():
            path.unlink()
            self.files -= 1
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
            self.files += 1
            left = size
            while source and (chunk := source.read(min(CHUNK, left)) if left else b""):
                file.write(chunk)
                left -= len(chunk)
                self.bytes += len(chunk)
                self.check_size(self.bytes)
        if left:
            raise ArchiveError(f"{self.archive.name} is incomplete within {one_line(name, 200)}: download it again")

    def make_folder(self, folder: Path) -> None:
        """Makes a folder, whose real path must be inside the target. Each is checked once."""
        if folder in self.folders:
            return
        folder.mkdir(parents=True, exist_ok=True)
        top, real = os.path.realpath(self.folder), os.path.realpath(folder)
        if os.path.commonpath([top, real]) != top:
            raise ArchiveError(f"refused: {one_line(folder, 200)} leads to {one_line(real, 200)}, out of its folder")
        self.folders.add(folder)


class BoundedStream:
    """A stream that refuses reads larger than a header, and positions beyond the allowed size."""

    def __init__(self, packed: BufferedReader, unpacker: Unpacker) -> None:
        gzipped = packed.peek(2).startswith(GZIP)  # browsers decompress some and keep the name
        self.stream: IO[bytes] = gzip.GzipFile(fileobj=packed) if gzipped else packed  # type: ignore[assignment]
        self.unpacker = unpacker

    def __enter__(self) -> BoundedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_HEADER:
            raise ArchiveError(f"refused: {self.unpacker.archive.name} has a header of {size:,} bytes")
        return self.stream.read(size)

    def seek(self, position: int) -> int:
        headers = (self.unpacker.members + 1) * 10 * tarfile.BLOCKSIZE  # which do not count
        self.unpacker.check_size(position - headers)
        return self.stream.seek(position)

    def tell(self) -> int:
        return self.stream.tell()
