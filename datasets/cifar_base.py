"""CIFAR in torchvision's files, which are pickles, and the arrays of CIFAR-10-C and CIFAR-100-C."""
from __future__ import annotations

import io
import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .array_dataset import ArrayDataset
from .base import SEVERITIES, Datum, LazyList
from .corrupted import CorruptedDataset
from .file_dataset import Splits
from .utils.errors import DataError, reading
from .utils.files import Damaged, noticing_damage, open_regular, read_regular

SHAPE = (32, 32, 3)
TEMPLATES = tuple(
    f"a {kind}photo of {article} {size}{{}}." for article in ("a", "the")
    for kind, size in (("", ""), ("blurry ", ""), ("black and white ", ""), ("low contrast ", ""),
                       ("high contrast ", ""), ("bad ", ""), ("good ", ""), ("", "small "), ("", "big ")))


class Pickled:
    """In place of numpy's functions, arrays and types: holds what the file says of them."""

    def __init__(self, *content: Any) -> None:
        self.content = content

    def __setstate__(self, state: tuple) -> None:
        self.state = state

    def array(self) -> np.ndarray:
        """The state of an array is (version, shape, type, order, bytes); protocol 5 has (bytes, type, shape, order)."""
        if len(self.content) == 4:
            raw, kind, shape = self.content[:3]
        else:
            _, shape, kind, _, raw = self.state
        if kind.content[0] not in (b"u1", "u1"):
            raise Damaged(f"it has an array of type {kind.content[0]}")
        return np.frombuffer(raw, np.uint8).reshape(shape)


KNOWN: Mapping[str, Callable[..., Any]] = {
    "numpy.core.multiarray._reconstruct": Pickled, "numpy.core.numeric._frombuffer": Pickled, "numpy.ndarray": Pickled,
    "numpy.dtype": Pickled, "_codecs.encode": lambda text, _: text.encode("latin1"),
}


class ArrayUnpickler(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """Reads dicts, lists, numbers, text and arrays of bytes. Nothing that a file names is imported or called. It is the
    unpickler in Python: the one in C allocates what a few bytes of a file ask for."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        found = KNOWN.get(f"{module.replace('numpy._core', 'numpy.core')}.{name}")
        if found is None:
            raise Damaged(f"it names {module}.{name}, which no file of CIFAR does")
        return found


def read_batch(path: Path, label_key: str) -> tuple[list[int], np.ndarray]:
    """The labels and images (N, 32, 32, 3) of one of CIFAR's pickles."""
    try:
        with noticing_damage():
            content = ArrayUnpickler(io.BytesIO(read_regular(path)), encoding="bytes").load()
            named = {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
            labels = [int(label) for label in named[label_key]]
            rows = named["data"].array()  # (N, 3072), the red pixels first
            images = np.ascontiguousarray(rows.reshape(len(labels), 3, 32, 32).transpose(0, 2, 3, 1))
    except Damaged as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise DataError(f"{path} is no file of CIFAR or is damaged ({error}): download it again") from error
    return labels, images


def count_rows(file: BinaryIO, path: Path, shape: tuple[int, ...]) -> int:
    """The number of rows of a .npy file of bytes, whose rows must have this shape. Reads its header."""
    try:
        with noticing_damage():
            version = np.lib.format.read_magic(file)
            formats = np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0
            found, fortran, dtype = formats[version != (1, 0)](file)
    except Damaged as error:
        raise DataError(f"{path} is no .npy file ({error}): download it again") from error
    if dtype != np.uint8 or fortran or not found or found[1:] != shape:
        rows = ", ".join(map(str, ("N", *shape)))
        raise DataError(f"{path} must be an array of bytes (uint8) of shape ({rows}), not {dtype} {found}")
    if os.fstat(file.fileno()).st_size != file.tell() + math.prod(found):
        raise DataError(f"{path} is damaged: its size is not that of {found[0]:,} rows; download it again")
    return found[0]


class CIFAR(ArrayDataset):
    """What the four sets share. They are in one file, so each names its yaml after itself."""

    expected_test = 10_000
    names: Sequence[str] = ()  # by label
    ensemble = TEMPLATES

    @classmethod
    def key(cls) -> str:
        return cls.__name__.lower().replace("0c", "0_c")


class PickledCIFAR(CIFAR):
    """torchvision's folder. The pickles are read by an unpickler of our own, which runs nothing in them."""

    label_key = "labels"
    test_file = "test_batch"
    train_files: Sequence[str] = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5")

    def read(self) -> Splits:
        train = LazyList(lambda: [item for file in self.train_files for item in self.list_batch(file)])
        return Splits(list(self.names), self.list_batch(self.test_file), train)

    @reading()
    def list_batch(self, name: str) -> list[Datum]:
        path = self.dataset_dir / name
        if not path.exists():
            raise DataError(f"{self.name()}: {path} is missing; {self.remedy()}")
        labels, images = read_batch(path, self.label_key)
        self.arrays[str(path)] = 0, images
        return self.list_rows(path, 0, labels, self.names)

    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        return 0, read_batch(path, self.label_key)[1]


class CorruptedCIFAR(CorruptedDataset, CIFAR):
    """`<corruption>.npy` has the test images five times, severity by severity, and `labels.npy` their labels."""

    def severities(self, corruption: str) -> tuple[int, ...]:
        path = self.dataset_dir / f"{corruption}.npy"
        if not path.exists():
            return ()
        with open_regular(path) as file:
            if count_rows(file, path, SHAPE) % len(SEVERITIES):
                raise DataError(f"{path} must have the test images {len(SEVERITIES)} times, severity by severity")
        return SEVERITIES

    def read(self) -> Splits:
        path, labels_path = self.dataset_dir / f"{self.corruption}.npy", self.dataset_dir / "labels.npy"
        first, images = self.arrays[str(path)] = self.load_pixels(path)
        with open_regular(labels_path) as file:
            count = count_rows(file, labels_path, ())
            if count != len(SEVERITIES) * len(images):
                raise DataError(f"{labels_path} has {count:,} labels for {len(SEVERITIES) * len(images):,} images in "
                                f"{path}; download both again")
            file.seek(first, os.SEEK_CUR)
            return Splits(list(self.names), self.list_rows(path, first, list(file.read(len(images))), self.names))

    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        """Only the images of the severity are read."""
        with open_regular(path) as file:
            count = count_rows(file, path, SHAPE) // len(SEVERITIES)
            first = (self.severity - 1) * count
            file.seek(first * math.prod(SHAPE), os.SEEK_CUR)
            return first, np.frombuffer(file.read(count * math.prod(SHAPE)), np.uint8).reshape(count, *SHAPE)
