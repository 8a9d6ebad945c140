"""Images that are rows of an array in a file, not files of their own."""
from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from .base import Datum
from .file_dataset import FileDataset
from .utils.errors import DataError, first_five, reading
from .views.images import BadImageError

ROW = "::"  # between file and row in the path of a datum: `CIFAR-10-C/fog.npy::40012`


class ArrayDataset(FileDataset):
    """A reader defines `load_pixels`. Each array is read into memory once, when its first image is."""

    lock = threading.Lock()  # two threads do not read the same array

    @cached_property
    def arrays(self) -> dict[str, tuple[int, np.ndarray]]:
        """What `load_pixels` returned, by file."""
        return {}

    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        """The row of the file at which the array begins, and the array (N, H, W, 3) of bytes."""
        raise TypeError(f"{type(self).__name__} must define load_pixels()")

    def list_rows(self, path: Path, first: int, labels: Sequence[int], classnames: Sequence[str]) -> list[Datum]:
        """The images of a file from row `first` on."""
        wrong = [f"row {row} has {label}" for row, label in enumerate(labels, first)
                 if not 0 <= label < len(classnames)]
        if wrong:
            raise DataError(f"{path} has labels that are not 0 to {len(classnames) - 1}: {first_five(wrong)}")
        return [Datum(f"{path}{ROW}{row}", label, classname=classnames[label])
                for row, label in enumerate(labels, first)]

    @reading()
    def pixels(self, item: Datum) -> np.ndarray:
        """The bytes (H, W, 3) of an image."""
        path, _, row = item.impath.rpartition(ROW)
        with self.lock:
            if path not in self.arrays:
                self.arrays[path] = self.load_pixels(Path(path))
        first, array = self.arrays[path]
        if not row.isdecimal() or not 0 <= int(row) - first < len(array):
            raise BadImageError(f"cannot read image {item.impath}: rows {first} to {first + len(array) - 1} are read")
        return array[int(row) - first]

    def read_image(self, datum: Datum) -> Image.Image:
        return Image.fromarray(self.pixels(datum))

    def file_size(self, item: Datum) -> int | None:
        path = Path(item.impath.rpartition(ROW)[0])
        return path.stat().st_size if path.is_file() else None

    def check_files(self, items: Sequence[Datum]) -> list[int]:
        """Checksums of the images: all files of such a set have the same size."""
        return [zlib.crc32(self.pixels(item).data) for item in items]
