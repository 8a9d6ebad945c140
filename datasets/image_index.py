"""Hashes image files by content, and keeps the digests on disk, so that a file is hashed once.

Images are known by what they contain, not by path, size or date. The index remembers the digest of
a file under its resolved path, its size, its times and its number in the file system. A file that
is written to gets another time, one that takes its place another number, and is hashed again.
"""
from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from .utils.errors import UserError
from .utils.files import (
    Damaged,
    noticing_damage,
    open_regular,
    read_regular,
    user_cache_folder,
    write_bytes,
)
from .utils.progress import progress_bar

logger = logging.getLogger(__name__)

DIGEST_BYTES = 16  # bytes of a BLAKE2b digest; 128 bits tell any number of pictures apart
# A file that is written twice within one tick of the file system's clock has the same times after
# both. Such a file is young when it is hashed, so the digests of young files are not kept.
SETTLED_NS = 2_000_000_000  # age in nanoseconds from which on a file is no longer young
FILES_PER_TASK = 64  # so that handing files to threads costs less than hashing them
ATTEMPTS = 3  # attempts at hashing a file that is being written


class Stamp(NamedTuple):
    """What changes when a file is written to, or when another file takes its place.

    Two files that are made within one tick of the file system's clock have the same times: their
    numbers tell them apart.
    """

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        """Takes the stamp from the status of a file."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    @property
    def last_change_ns(self) -> int:
        """Time of the last change of content or attributes, in nanoseconds."""
        return max(self.mtime_ns, self.ctime_ns)


@dataclass(frozen=True)
class ImageHash:
    """The digest of one image.

    Attributes:
        digest: Digest of 16 bytes. For a file that cannot be read it depends on the path and on the
            error.
        stamp: Stamp of the file at the time of the digest; None for an image that is not a file,
            and for a file that cannot be read.
        is_missing: Whether there is no such file, or its folder cannot be read.
    """

    digest: bytes
    stamp: Stamp | None = None
    is_missing: bool = False


def hash_text(*parts: str) -> bytes:
    """Returns the digest of texts. It depends on where one ends and the next begins."""
    return new_hash(json.dumps(parts).encode()).digest()


def hash_file(path: str) -> ImageHash:
    """Returns the digest of a file's bytes, or of the reason why it cannot be read."""
    try:
        with open_regular(Path(path)) as file:
            # A file that is written while it is read gives a mixture. Its stamps then differ.
            for _ in range(ATTEMPTS):
                before = Stamp.of(os.fstat(file.fileno()))
                file.seek(0)
                content = hashlib.file_digest(file, new_hash)  # type: ignore[arg-type]
                after = Stamp.of(os.fstat(file.fileno()))
                if before == after:
                    break
            return ImageHash(content.digest(), before)
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes
        return unreadable(path, error)


def new_hash(content: bytes = b"") -> hashlib.blake2b:
    """Starts the hash by which contents are identified, with `content` as its first bytes."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES)


def unreadable(path: str, error: Exception) -> ImageHash:
    """Returns the digest of a file that cannot be read. Once repaired it is another image.

    Args:
        path: The file.
        error: The error of reading it. The system's error number enters the digest, not its words,
            which depend on the language.
    """
    reason = type(error).__name__
    if isinstance(error, OSError):
        reason = str(error.errno)
    is_missing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return ImageHash(hash_text("unreadable", path, reason), None, is_missing)


def read_stamp(path: str) -> Stamp | None:
    """Reads the stamp of a file; None if it is gone."""
    try:
        return Stamp.of(os.stat(path))  # noqa: PTH116 - making a Path takes as long as the call
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class ImageIndex:
    """The digests of image files. Without a folder every file is hashed each time.

    Attributes:
        cache_dir: The folder in which the index is kept, such as CACHE.DIR; "" = the user's cache
            folder; None = nothing is kept.
    """

    cache_dir: str | Path | None = ""

    @property
    def folder(self) -> Path | None:
        """The folder in which the index is kept; None if nothing is kept."""
        if self.cache_dir is None:
            return None
        if self.cache_dir == "":
            return user_cache_folder()
        return Path(self.cache_dir).expanduser()

    def look_up(self, paths: Sequence[str], place: Path) -> list[ImageHash]:
        """Returns the digest of each file. Files that are new or have changed are read.

        Args:
            paths: The files.
            place: The folder of the data set. Each folder has an index file of its own.
        """
        index_file = self.file_for(place)
        known = read_index(index_file)
        # First the stamps of all files are compared. Then several threads read the files whose
        # digest is not known.
        resolved_folders: dict[str, str] = {}
        hashes: list[ImageHash | None] = []
        unknown = []
        for position, path in enumerate(paths):
            try:
                resolved, status = resolve(path, resolved_folders)
            except (OSError, ValueError) as error:
                hashes.append(replace(unreadable(path, error), is_missing=True))
                continue
            entry = known.get(resolved)
            stamp = Stamp.of(status)
            if entry is not None and entry.stamp == stamp:
                hashes.append(entry)
            else:
                hashes.append(None)
                unknown.append((position, resolved))

        now = time.time_ns()  # before hashing, which may take longer than a file needs to settle
        settled = {}
        resolved_paths = [resolved for _, resolved in unknown]
        for (position, resolved), image in zip(unknown, hash_files(resolved_paths), strict=True):
            hashes[position] = image
            if image.stamp is not None and now - image.stamp.last_change_ns >= SETTLED_NS:
                settled[resolved] = image
        if settled:
            add_to_index(index_file, settled)
        return [image for image in hashes if image is not None]

    def file_for(self, place: Path) -> Path | None:
        """The index file of a data set's folder; None if nothing is kept."""
        folder = self.folder
        if folder is None:
            return None
        name = hash_text(os.path.realpath(place)).hex()
        return folder / f"images-{name}.index"


def resolve(path: str, resolved_folders: dict[str, str]) -> tuple[str, os.stat_result]:
    """Returns the path without symbolic links, and its status.

    Args:
        path: The file.
        resolved_folders: The folders so far, each with its path without links; a new one is added.
            Resolving every path as a whole takes ten times as long.
    """
    folder, name = os.path.split(path)
    if folder not in resolved_folders:
        resolved_folders[folder] = os.path.realpath(folder)
    resolved = os.path.join(resolved_folders[folder], name)  # noqa: PTH118 - as above
    status = os.lstat(resolved)
    if stat.S_ISLNK(status.st_mode):
        resolved = os.path.realpath(resolved)
        status = os.stat(resolved)  # noqa: PTH116
    return resolved, status


def hash_files(paths: Sequence[str]) -> list[ImageHash]:
    """Hashes files in a pool of threads. Results are in the order of the files."""
    if not paths:
        return []
    starts = range(0, len(paths), FILES_PER_TASK)
    groups = [paths[start : start + FILES_PER_TASK] for start in starts]
    hashes: list[ImageHash] = []
    # No bar for what takes less than a second.
    progress = progress_bar(len(paths), "hashes of images", "img", delay=1.0)
    with ThreadPoolExecutor(thread_name_prefix="hashes") as pool, progress as bar:
        try:
            for group in pool.map(hash_group, groups):
                hashes += group
                bar.update(len(group))
        except BaseException:  # Ctrl-C
            pool.shutdown(cancel_futures=True)
            raise
    return hashes


def hash_group(paths: Sequence[str]) -> list[ImageHash]:
    """Hashes the files of one task of the pool."""
    return [hash_file(path) for path in paths]


def read_index(file: Path | None) -> dict[str, ImageHash]:
    """Reads the digests in an index file, by resolved path; {} if it is absent or damaged.

    Its first line is a checksum of the second, which is a JSON object: path -> [size, time of the
    last change of the content, time of the last change of content or attributes, inode, digest].
    """
    if file is None:
        return {}
    try:
        content = read_regular(file)
    except OSError:
        return {}
    try:
        with noticing_damage():
            checksum, _, body = content.partition(b"\n")
            if checksum.decode() != checksum_of(body):
                raise Damaged("wrong checksum")
            entries = {}
            for path, (*stamp, digest) in json.loads(body).items():
                entries[path] = ImageHash(bytes.fromhex(digest), Stamp(*stamp))
            return entries
    except Damaged as error:
        logger.info("%s is damaged (%s) and is made again", file, error)
        return {}


def add_to_index(file: Path | None, hashes: dict[str, ImageHash]) -> None:
    """Adds digests to an index file.

    It is read again first, since another process may have added some. There is no lock: where two
    write at the same moment the digests of one are lost, and hashed again later.

    Args:
        file: The index file; None = nothing is kept.
        hashes: The digests to add, by resolved path.
    """
    if file is None:
        return
    entries = {}
    for path, image in {**read_index(file), **hashes}.items():
        if image.stamp is not None:
            entries[path] = [*image.stamp, image.digest.hex()]
    body = json.dumps(entries).encode()
    try:
        write_bytes(file, checksum_of(body).encode() + b"\n" + body)
    except UserError as error:  # a full or read-only disk: the files are hashed again next time
        logger.info("digests of images are not kept (%s)", error)


def checksum_of(body: bytes) -> str:
    """Returns the checksum of the second line of an index file, which the first line holds."""
    return new_hash(body).hexdigest()
