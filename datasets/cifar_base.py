"""CIFAR in torchvision's files, which are pickles, and the arrays of CIFAR-10-C and CIFAR-100-C."""
from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
            raw, kind, shape, order = self.content
        else:
            _, shape, kind, by_columns, raw = self.state
            order = "F" if by_columns else "C"
        if kind.content[0] not in (b"u1", "u1"):
            raise Damaged(f"it has an array of type {kind.content[0]}")
        return np.frombuffer(raw, np.uint8).reshape(shape, order=order)


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
            labels, rows = list(named[label_key]), named["data"].array()  # (N, 3072), the red pixels first
            if any(type(label) is not int for label in labels) or rows.shape[1:] not in ((3072,), (3, 32, 32)):
                raise Damaged(f"it has labels that are not whole numbers, or images of shape {rows.shape[1:]}")
            images = np.ascontiguousarray(rows.reshape(len(labels), 3, 32, 32).transpose(0, 2, 3, 1))
    except Damaged as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise DataError(f"{path} is no file of CIFAR or is damaged ({error}): download it again") from error
    return labels, images


def map_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A .npy file of bytes whose rows have this shape. Copy what is needed: a mapped file that is cut short later ends
    the process."""
    open_regular(path).close()  # not a pipe
    try:
        with noticing_damage():
            array = np.lib.format.open_memmap(path, mode="r")
    except Damaged as error:
        raise DataError(f"{path} is no complete .npy file of bytes ({error}): download it again") from error
    if array.dtype != np.uint8 or array.ndim != 1 + len(shape) or array.shape[1:] != shape:
        rows = ", ".join(map(str, ("N", *shape)))
        raise DataError(f"{path} must be an array of bytes (uint8) of shape ({rows}), not {array.dtype} {array.shape}")
    return array


class CIFAR(ArrayDataset):
    """What the four sets share. They are in one file, so each names its yaml after itself."""

    expected_test = 10_000
    names: Sequence[str] = ()  # by label
    ensemble = TEMPLATES
    has_val = False

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
        if len(map_array(path, SHAPE)) % len(SEVERITIES):
            raise DataError(f"{path} must have the test images {len(SEVERITIES)} times, severity by severity")
        return SEVERITIES

    def read(self) -> Splits:
        path, labels_path = self.dataset_dir / f"{self.corruption}.npy", self.dataset_dir / "labels.npy"
        first, images = self.arrays[str(path)] = self.load_pixels(path)
        labels = map_array(labels_path, ())
        if len(labels) != len(SEVERITIES) * len(images):
            raise DataError(f"{labels_path} has {len(labels):,} labels for {len(SEVERITIES) * len(images):,} images in "
                            f"{path}; download both again")
        own = labels[first : first + len(images)].tolist()
        return Splits(list(self.names), self.list_rows(path, first, own, self.names))

    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        """Only the images of the severity are read."""
        array = map_array(path, SHAPE)
        count = len(array) // len(SEVERITIES)
        first = (self.severity - 1) * count
        return first, np.array(array[first : first + count], order="C")
