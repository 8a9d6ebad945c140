"""Arrays on disk that are never trusted unless whole.

An array is two files: the numbers (`.npy`) and then, as the mark that they are complete, a note (`.json`) with their
checksum, of shape, type and facts as well, and whatever facts belong to them.
"""
from __future__ import annotations

import hashlib
import json
import logging
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import Damaged, noticing_damage, read_json, write_atomically, write_json

logger = logging.getLogger(__name__)


class ArrayCache:
    """A folder of arrays that all depend on the same facts: other facts mean another folder."""

    def __init__(self, root: str | Path, kind: str, key: Mapping) -> None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = Path(root).expanduser() / f"{kind}-{digest}"
        self.key = key

    def reserve(self, size: int, what: str) -> None:
        """Says how large `what` will be, and refuses if the disk cannot hold it."""
        write_json(self.folder / "key.json", dict(self.key))
        logger.info("%s take %.2f GB in %s", what, size / 1e9, self.folder)
        free = shutil.disk_usage(self.folder).free
        if size > free:
            raise UserError(f"{what} take {size / 1e9:.1f} GB but {self.folder} has {free / 1e9:.1f} GB free: "
                            f"choose another CACHE.DIR, or turn the cache off with CACHE.DIR \"\"")

    def write(self, name: str, array: np.ndarray, facts: Mapping) -> None:
        array = np.ascontiguousarray(array)
        write_atomically(self.folder / f"{name}.npy", lambda file: np.save(file, array))
        write_json(self.folder / f"{name}.json", {"crc32": checksum(array, facts), "facts": dict(facts)})

    def read(self, name: str) -> tuple[np.ndarray, dict] | None:
        """The array and its facts; None if it is not there or damaged. It is read whole: one that stays mapped ends the
        process with SIGBUS if somebody cuts the file short."""
        path = self.folder / f"{name}.npy"
        note = read_json(self.folder / f"{name}.json")
        if note is None or not path.is_file():
            return None
        try:
            with noticing_damage():
                array = np.load(path, allow_pickle=False)
                if checksum(array, note["facts"]) == note["crc32"]:
                    return array, note["facts"]
                reason = "wrong checksum"
        except Damaged as error:
            reason = str(error)
        logger.warning("%s is damaged (%s) and is made again", path, reason)
        return None


def checksum(array: np.ndarray, facts: Mapping) -> int:
    """Of the numbers and of all that gives them a meaning."""
    return zlib.crc32(json.dumps([array.dtype.str, array.shape, facts]).encode(), zlib.crc32(array))
