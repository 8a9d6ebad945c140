"""Keeps arrays on disk, and reads them only if they are complete.

A file holds some arrays, each with a checksum. It is written under another name and then renamed,
so that a reader sees the old file or the new one, and never half of one.
"""
from __future__ import annotations

import hashlib
import io
import json
import logging
import shutil
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import (
    Damaged,
    make_folder,
    noticing_damage,
    open_regular,
    read_arrays,
    write_arrays,
    write_json,
    writing,
)
from ...datasets.utils.lock import FolderLock

logger = logging.getLogger(__name__)

LOCK_SECONDS = 30.0  # longest wait for the lock, after which a file is written without it
RETRY_SECONDS = 0.05  # between two attempts to get the lock


class ArrayCache:
    """A folder of files that depend on the same `key`: another key means another folder."""

    def __init__(self, root: str | Path, kind: str, key: Mapping[str, object]) -> None:
        """
        Args:
            root: The folder of all caches, CACHE.DIR.
            kind: A word for the arrays, with which the folder's name begins.
            key: Everything that the arrays depend on, as JSON values.
        """
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = Path(root).expanduser() / f"{kind}-{digest}"
        self.key = key

    def file(self, name: str) -> Path:
        """The path of a file, whether it exists or not."""
        return self.folder / f"{name}.npz"

    def reserve(self, size: int, what: str) -> None:
        """Logs how large a cache will be, and refuses if the disk cannot hold it.

        Args:
            size: Number of bytes that will be written.
            what: A name of the arrays in the plural, for messages.
        """
        write_json(self.folder / "key.json", dict(self.key))
        if size >= 1e8:
            size_in_words = f"{size / 1e9:.2f} GB"
        elif size >= 1e5:
            size_in_words = f"{size / 1e6:.1f} MB"
        else:
            size_in_words = f"{size / 1e3:.0f} kB"
        logger.info("%s take %s in %s", what, size_in_words, self.folder)
        with writing(self.folder):  # another process may remove it
            free = shutil.disk_usage(self.folder).free
        if size > free:
            raise UserError(
                f"{what} take {size / 1e9:.1f} GB but {self.folder} has "
                f"{free / 1e9:.1f} GB free: choose another CACHE.DIR, or turn the cache "
                f'off with CACHE.DIR ""'
            )

    def has(self, name: str) -> bool:
        """Whether there is such a file, whole or damaged."""
        return self.file(name).is_file()

    def write(self, name: str, **arrays: np.ndarray) -> None:
        """Writes the arrays of a file, in place of those that it had."""
        write_arrays(self.file(name), **arrays)

    def read(self, name: str, *array_names: str) -> dict[str, np.ndarray] | None:
        """Reads the arrays of a file.

        They are read whole: a memory-mapped file that another process cuts short would end this one
        with SIGBUS.

        Args:
            name: Name of the file.
            array_names: Names of the arrays that it must have; with others it counts as damaged.

        Returns:
            The arrays by name; None if the file is absent or damaged.
        """
        if not self.has(name):
            return None
        try:
            arrays = read_arrays(self.file(name))
            if set(arrays) != set(array_names):
                raise Damaged(f"it has {', '.join(arrays) or 'nothing'}")
            return arrays
        except Damaged as error:
            if self.has(name):  # it was not removed in the meantime
                logger.warning("%s is damaged (%s) and is made again", self.file(name), error)
            return None

    def read_array(self, name: str, array_name: str) -> np.ndarray | None:
        """Reads one array of a file without the others. Returns None if it is absent or damaged.

        Args:
            name: Name of the file.
            array_name: Name of the array in it.
        """
        try:
            with noticing_damage(), open_regular(self.file(name)) as file:
                content = zipfile.ZipFile(file).read(f"{array_name}.npy")  # compares the checksum
                return np.load(io.BytesIO(content), allow_pickle=False)
        except Damaged:
            return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder's lock while a file is read, completed and written.

        Another process that holds it is waited for, but not longer than a file takes to write.
        Without the lock files stay whole too; only what two processes add at the same moment may
        be lost, and is made again when it is needed.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        with ExitStack() as stack:
            while time.monotonic() < deadline:
                make_folder(self.folder)  # another process may have removed it
                try:
                    stack.enter_context(FolderLock(self.folder).held())
                    break
                except UserError as error:
                    # No lock can be made here. What is wrong is said when the file is written.
                    if isinstance(error.__cause__, OSError):
                        break
                time.sleep(RETRY_SECONDS)
            yield
