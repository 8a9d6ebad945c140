"""Arrays on disk that are used only if they are complete.

An array is two files: the numbers (`.npy`) and then, as the mark that they are complete, a note (`.json`) with metadata
and a checksum of numbers, shape, type and metadata.
"""
from __future__ import annotations

import hashlib
import json
import logging
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import Damaged, noticing_damage, read_json, write_atomically, write_json, writing

logger = logging.getLogger(__name__)


class ArrayCache:
    """A folder of arrays that depend on the same `key`: another key means another folder."""

    def __init__(self, root: str | Path, kind: str, key: Mapping[str, object]) -> None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = Path(root).expanduser() / f"{kind}-{digest}"
        self.key = key

    def reserve(self, size: int, what: str) -> None:
        """Logs how large `what` will be, and refuses if the disk cannot hold it."""
        write_json(self.folder / "key.json", dict(self.key))
        logger.info("%s take %.2f GB in %s", what, size / 1e9, self.folder)
        with writing(self.folder):  # another process may remove it
            free = shutil.disk_usage(self.folder).free
        if size > free:
            raise UserError(f"{what} take {size / 1e9:.1f} GB but {self.folder} has {free / 1e9:.1f} GB free: "
                            f"choose another CACHE.DIR, or turn the cache off with CACHE.DIR \"\"")

    def write(self, name: str, array: np.ndarray, metadata: Mapping[str, object]) -> None:
        array = np.ascontiguousarray(array)
        write_atomically(self.folder / f"{name}.npy", lambda file: np.save(file, array))
        plain = json.loads(json.dumps(dict(metadata)))  # as it will be read
        write_json(self.folder / f"{name}.json", {"crc32": checksum(array, plain), "metadata": plain})

    def note(self, name: str) -> dict[str, Any] | None:
        """The content of an array's note, with its `metadata`; None if it or the array is absent, or the note is
        damaged. The numbers are not read."""
        note = read_json(self.folder / f"{name}.json")
        valid = isinstance(note, dict) and isinstance(note.get("metadata"), dict)
        return note if valid and (self.folder / f"{name}.npy").is_file() else None

    def read(self, name: str) -> tuple[np.ndarray, dict[str, Any]] | None:
        """The array and its metadata; None if it is absent or damaged. It is read whole: a memory-mapped file that is
        cut short ends the process with SIGBUS."""
        note, path = self.note(name), self.folder / f"{name}.npy"
        if note is None:
            return None
        try:
            with noticing_damage():
                array = np.load(path, allow_pickle=False)
                if checksum(array, note["metadata"]) != note.get("crc32"):
                    raise Damaged("wrong checksum")
                return array, note["metadata"]
        except Damaged as error:
            logger.warning("%s is damaged (%s) and is made again", path, error)
            return None


def checksum(array: np.ndarray, metadata: Mapping[str, object]) -> int:
    return zlib.crc32(json.dumps([array.dtype.str, array.shape, metadata]).encode(), zlib.crc32(array.data))
