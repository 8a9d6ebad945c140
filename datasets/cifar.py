"""CIFAR-10, CIFAR-100, and their test images under 19 corruptions.

The clean sets are read from torchvision's files, which are pickles, the corrupted ones from the
arrays of CIFAR-10-C and CIFAR-100-C. Class names are torchvision's, with spaces.
"""
from __future__ import annotations

import io
import pickle
import threading
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .base import DATASET_REGISTRY, SEVERITIES, Datum, LazyList
from .download.fetch import Source
from .file_dataset import FileDataset, Splits
from .image_index import ImageHash, ImageIndex, new_hash, unreadable
from .imagenet_c import CorruptedDataset
from .utils.errors import DataError, first_five, reading
from .utils.files import Damaged, noticing_damage, open_regular, read_regular
from .views.images import BadImageError

ROW = "::"  # between file and row in the path of a datum: `CIFAR-10-C/fog.npy::40012`
SHAPE = (32, 32, 3)
TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
HUNDRED = (
    "apple", "aquarium fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar",
    "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch", "crab", "crocodile",
    "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox", "girl", "hamster",
    "house", "kangaroo", "keyboard", "lamp", "lawn mower", "leopard", "lion", "lizard", "lobster",
    "man", "maple tree", "motorcycle", "mountain", "mouse", "mushroom", "oak tree", "orange",
    "orchid", "otter", "palm tree", "pear", "pickup truck", "pine tree", "plain", "plate", "poppy",
    "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal",
    "shark", "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar",
    "sunflower", "sweet pepper", "table", "tank", "telephone", "television", "tiger", "tractor",
    "train", "trout", "tulip", "turtle", "wardrobe", "whale", "willow tree", "wolf", "woman",
    "worm",
)
# OpenAI's templates for CIFAR.
TEMPLATES = (
    "a photo of a {}.",
    "a blurry photo of a {}.",
    "a black and white photo of a {}.",
    "a low contrast photo of a {}.",
    "a high contrast photo of a {}.",
    "a bad photo of a {}.",
    "a good photo of a {}.",
    "a photo of a small {}.",
    "a photo of a big {}.",
    "a photo of the {}.",
    "a blurry photo of the {}.",
    "a black and white photo of the {}.",
    "a low contrast photo of the {}.",
    "a high contrast photo of the {}.",
    "a bad photo of the {}.",
    "a good photo of the {}.",
    "a photo of the small {}.",
    "a photo of the big {}.",
)
# What the pickles of CIFAR name. Before its version 2 numpy's `_core` was called `core`.
KNOWN = {
    "_codecs.encode",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.numeric._frombuffer",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.numeric._frombuffer",
}


class ArrayUnpickler(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """Unpickles dicts, lists, numbers, text and arrays. Nothing else that a file names is imported
    or called.

    It derives from the unpickler in Python. The one in C allocates as much memory as a few bytes of
    a damaged file ask for.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Imports a name that CIFAR's files have, and refuses all others."""
        if f"{module}.{name}" not in KNOWN:
            raise Damaged(f"it names {module}.{name}, which no file of CIFAR does")
        return super().find_class(module, name)


def read_batch(path: Path, label_key: str) -> tuple[list[int], np.ndarray]:
    """Reads one of CIFAR's pickles.

    Args:
        path: The file.
        label_key: The name under which it has the labels.

    Returns:
        The labels, N numbers, and the images, uint8 (N, 32, 32, 3).
    """
    try:
        with noticing_damage():
            content = ArrayUnpickler(io.BytesIO(read_regular(path)), encoding="bytes").load()
            columns = {}
            for key, value in content.items():
                name = key.decode() if isinstance(key, bytes) else key
                columns[name] = value
            labels = list(columns[label_key])
            rows = np.asarray(columns["data"])  # (N, 3072), the red pixels first
            for label in labels:
                if type(label) is not int:
                    raise Damaged("it has labels that are not whole numbers")
            if rows.shape[1:] not in ((3072,), (3, 32, 32)):
                raise Damaged(f"it has images of shape {rows.shape[1:]}")
            if rows.dtype != np.uint8:
                raise Damaged(f"it has an array of type {rows.dtype}")
            # From colour by colour to pixel by pixel.
            images = rows.reshape(len(labels), 3, 32, 32).transpose(0, 2, 3, 1)
            images = np.ascontiguousarray(images)
    except Damaged as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise DataError(f"{path} is not a file of CIFAR or is damaged ({error}): download it "
                        f"again") from error
    return labels, images


def map_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """A mapped .npy file of bytes.

    Copy what is needed: if the file is cut while it is mapped, the process ends.

    Args:
        path: The file.
        shape: The shape that each row must have.
    """
    open_regular(path).close()  # not a pipe
    try:
        with noticing_damage():
            array = np.lib.format.open_memmap(path, mode="r")
    except Damaged as error:
        raise DataError(f"{path} is not a complete .npy file of bytes ({error}): download it "
                        f"again") from error
    if array.dtype != np.uint8 or array.ndim != 1 + len(shape) or array.shape[1:] != shape:
        rows = ", ".join(map(str, ("N", *shape)))
        raise DataError(f"{path} must be an array of bytes (uint8) of shape ({rows}), not "
                        f"{array.dtype} {array.shape}")
    return array


class CIFAR(FileDataset):
    """What the four sets share. Images are rows of an array in a file.

    The file is read once, together with its first image.
    """

    expected_test = 10_000
    names: Sequence[str] = ()  # by label
    family = ""  # what a set and its corruptions share
    ensemble = TEMPLATES
    has_val = False
    lock = threading.Lock()  # two threads do not read the same array

    @classmethod
    def key(cls) -> str:
        """The four readers are in one file, so each names its yaml after itself."""
        return cls.__name__.lower().replace("0c", "0_c")

    @cached_property
    def arrays(self) -> dict[str, tuple[int, np.ndarray]]:
        """What `load_pixels` returned, by file."""
        return {}

    @abstractmethod
    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        """The row of the file at which the array begins, and the array (N, H, W, 3) of bytes."""

    def list_rows(self, path: Path, first: int, labels: Sequence[int]) -> list[Datum]:
        """The images of a file from a row on.

        Args:
            path: The file.
            first: The row of the first label.
            labels: One per image.
        """
        items = []
        wrong = []
        for row, label in enumerate(labels, first):
            if 0 <= label < len(self.names):
                items.append(Datum(f"{path}{ROW}{row}", label, classname=self.names[label]))
            else:
                wrong.append(f"row {row} has {label}")
        if wrong:
            raise DataError(f"{path} has labels that are not 0 to {len(self.names) - 1}: "
                            f"{first_five(wrong)}")
        return items

    @reading()
    def pixels(self, item: Datum) -> np.ndarray:
        """The bytes (H, W, 3) of an image."""
        path, _, row = item.impath.rpartition(ROW)
        with self.lock:
            if path not in self.arrays:
                self.arrays[path] = self.load_pixels(Path(path))
        first, array = self.arrays[path]
        if not row.isdecimal() or not 0 <= int(row) - first < len(array):
            raise BadImageError(f"cannot read image {item.impath}: rows {first} to "
                                f"{first + len(array) - 1} are read")
        return array[int(row) - first]

    def read_image(self, datum: Datum) -> Image.Image:
        """The image of 32 × 32 pixels at a row of its file."""
        return Image.fromarray(self.pixels(datum))

    def is_file(self, item: Datum) -> bool:
        """Whether the file that holds the image is there."""
        return Path(item.impath.rpartition(ROW)[0]).is_file()

    def check_files(self, items: Sequence[Datum]) -> None:
        """Raises DataError if an image cannot be read."""
        for item in items:
            self.pixels(item)

    def hash_images(self, items: Sequence[Datum], index: ImageIndex) -> list[ImageHash]:
        """Digests of the images' pixels, because a file holds many images.

        Args:
            items: The images.
            index: Not used: no file has the digest of one image.
        """
        hashes = []
        for item in items:
            try:
                content = self.pixels(item).tobytes()
            except BadImageError as error:
                hashes.append(unreadable(item.impath, error))
            else:
                hashes.append(ImageHash(new_hash(content).digest()))
        return hashes

    def uncorrupted_name(self, item: Datum) -> str:
        """Names the uncorrupted image by its position, as `CIFAR-10/test/12`."""
        # The arrays of corrupted images have the test images in their order, once per severity.
        path, _, row = item.impath.rpartition(ROW)
        first, _ = self.arrays[path]
        return f"{self.family}/{self.part_of(path)}/{int(row) - first}"

    def part_of(self, path: str) -> str:
        """Which of the uncorrupted images a file has, or has corrupted versions of."""
        return "test"


class PickledCIFAR(CIFAR):
    """CIFAR in torchvision's folder. `ArrayUnpickler` reads the pickles and executes nothing."""

    label_key = "labels"
    test_file = "test_batch"
    train_files: Sequence[str] = (
        "data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5",
    )

    def read(self) -> Splits:
        """Reads the test images; training images are read when they are first used."""
        test = self.list_batch(self.test_file)
        return Splits(list(self.names), test, train=LazyList(self.list_train))

    def list_train(self) -> list[Datum]:
        """The training images, from one file or several."""
        items = []
        for file in self.train_files:
            items += self.list_batch(file)
        return items

    @reading()
    def list_batch(self, name: str) -> list[Datum]:
        """The images of a file of this name; their pixels stay in memory."""
        path = self.dataset_dir / name
        if not path.exists():
            raise DataError(f"{self.name()}: {path} is missing; {self.remedy()}")
        labels, images = read_batch(path, self.label_key)
        self.arrays[str(path)] = 0, images
        return self.list_rows(path, 0, labels)

    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        """All images of a file."""
        return 0, read_batch(path, self.label_key)[1]

    def part_of(self, path: str) -> str:
        """"test", or the name of a file of training images."""
        name = Path(path).name
        if name == self.test_file:
            return "test"
        return name


class CorruptedCIFAR(CorruptedDataset, CIFAR):
    """CIFAR's corrupted test images.

    `<corruption>.npy` has the test images five times, severity by severity, and `labels.npy` their
    labels.
    """

    def severities(self, corruption: str) -> tuple[int, ...]:
        """All five, or none if the corruption's file is not there."""
        path = self.dataset_dir / f"{corruption}.npy"
        if not path.exists():
            return ()
        if len(map_array(path, SHAPE)) % len(SEVERITIES):
            raise DataError(f"{path} must have the test images {len(SEVERITIES)} times, severity "
                            f"by severity")
        return SEVERITIES

    def read(self) -> Splits:
        """Reads the images of the corruption and severity, with their labels."""
        path = self.dataset_dir / f"{self.corruption}.npy"
        labels_path = self.dataset_dir / "labels.npy"
        first, images = self.arrays[str(path)] = self.load_pixels(path)
        labels = map_array(labels_path, ())
        if len(labels) != len(SEVERITIES) * len(images):
            raise DataError(f"{labels_path} has {len(labels):,} labels for "
                            f"{len(SEVERITIES) * len(images):,} images in {path}; download both "
                            f"again")
        labels_of_severity = labels[first : first + len(images)].tolist()
        return Splits(list(self.names), self.list_rows(path, first, labels_of_severity))

    def load_pixels(self, path: Path) -> tuple[int, np.ndarray]:
        """Reads the images of the severity alone."""
        array = map_array(path, SHAPE)
        count = len(array) // len(SEVERITIES)
        first = (self.severity - 1) * count
        return first, np.array(array[first : first + count], order="C")


def source(url: str, folder: str, md5: str) -> tuple[Source, ...]:
    """The archives of a set, of which there is one."""
    file_name = url.rpartition("/")[2]
    return (Source(file_name, urls=(url,), checksum=f"md5:{md5}", places={folder: "."}),)


@DATASET_REGISTRY.register()
class CIFAR10(PickledCIFAR):
    """The ten classes, from torchvision's pickles."""

    label = "CIFAR-10"
    display_order = 20
    names = TEN
    expected_classes = 10
    family = "CIFAR-10"
    folder = "cifar-10-batches-py"
    archives = source("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", folder,
                      "c58f30108f718f92721af3b95e74349a")


@DATASET_REGISTRY.register()
class CIFAR100(PickledCIFAR):
    """The hundred fine classes, from torchvision's pickles."""

    label = "CIFAR-100"
    display_order = 21
    names = HUNDRED
    expected_classes = 100
    family = "CIFAR-100"
    folder = "cifar-100-python"
    label_key = "fine_labels"
    test_file = "test"
    train_files = ("train",)
    archives = source("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", folder,
                      "eb9058c3a382ffc7106e4002c42a8d85")


@DATASET_REGISTRY.register()
class CIFAR10C(CorruptedCIFAR):
    """CIFAR-10's test images under 19 corruptions."""

    label = "CIFAR-10-C"
    display_order = 22
    names = TEN
    expected_classes = 10
    family = "CIFAR-10"
    folder = "CIFAR-10-C"
    archives = source("https://zenodo.org/records/2535967/files/CIFAR-10-C.tar", folder,
                      "56bf5dcef84df0e2308c6dcbcbbd8499")


@DATASET_REGISTRY.register()
class CIFAR100C(CorruptedCIFAR):
    """CIFAR-100's test images under 19 corruptions."""

    label = "CIFAR-100-C"
    display_order = 23
    names = HUNDRED
    expected_classes = 100
    family = "CIFAR-100"
    folder = "CIFAR-100-C"
    archives = source("https://zenodo.org/records/3555552/files/CIFAR-100-C.tar", folder,
                      "11f0ed0f1191edbf9fa23466ae6021d3")
