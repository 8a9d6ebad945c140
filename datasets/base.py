"""What every data set is: three lists of labelled images and a class name for each label."""
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from .utils.errors import ConfigError, reading
from .utils.registry import Registry, nearest
from .views.images import open_image

DATASET_REGISTRY = Registry("data set", Path(__file__).parent, __package__)
SUBSAMPLES = ("all", "base", "new")


@dataclass(frozen=True)
class Datum:
    """One labelled image, as in Dassl."""

    impath: str
    label: int
    domain: int = 0
    classname: str = ""


class Dataset:
    """A data set. Subclasses fill `train`, `val`, `test` (lists of Datum) and `classnames` (by label).

    Readers of files derive from `FileDataset`, which does the checks; sets that draw their images derive from this.
    """

    train: list[Datum]
    val: list[Datum]
    test: list[Datum]
    classnames: list[str]

    label = ""  # on paper; "" = the class's name
    display_order = 1000  # place among the columns of a table, lowest first
    embedded = False  # drawn by code to try things on; no benchmark
    template = "a photo of a {}."  # the hand-written prompt of CoOp's zero-shot baseline
    augmix = True  # whether the public test-time scripts mix augmentations on this set: what TTA.AUGMIX auto means

    fewshot_dir: str | Path = ""  # where lists of few-shot samples are kept; "" = with the data

    def __init__(
        self, root: str | Path, num_shots: int = -1, seed: int = 0, subsample_classes: str = "all",
    ) -> None:
        if subsample_classes not in SUBSAMPLES:
            hint = nearest(str(subsample_classes), SUBSAMPLES)
            raise ConfigError(
                f"DATASET.SUBSAMPLE_CLASSES is '{subsample_classes}'; it must be one of {', '.join(SUBSAMPLES)}.{hint}"
            )
        if num_shots == 0 or num_shots < -1:
            raise ConfigError(f"DATASET.NUM_SHOTS is {num_shots}; it must be -1 (all images) or at least 1")
        self.root = Path(root).expanduser()
        self.num_shots = num_shots
        self.seed = seed
        self.subsample_classes = subsample_classes

    @classmethod
    def run_name(cls, root: str | Path) -> str:
        """What a data set is called in run folders and results. Its class's name, unless that says too little."""
        return cls.__name__

    def read_image(self, datum: Datum) -> Image.Image:
        """The RGB picture behind a datum. Procedural sets draw it instead of opening a file."""
        return open_image(datum.impath)

    def check_files(self, items: Sequence[Datum]) -> None:
        """Raises DataError if images of `items` are absent. Sets without files have nothing to check."""

    @reading()
    def fingerprint(self, items: Sequence[Datum]) -> str:
        """A hash of what a result depends on: names, labels and file sizes, in order, wherever the root lies.

        Content is told by name, label and size only: another picture of the same size under the same name goes
        unnoticed. To tell more, a benchmark of 50,000 images on a network disk would have to be read whole before
        every run.
        """
        digest = hashlib.sha256()
        for name in self.classnames:
            digest.update(f"{name}\n".encode())
        for item in items:
            path = Path(item.impath)
            size = path.stat().st_size
            relative = path.relative_to(self.root) if path.is_relative_to(self.root) else path
            digest.update(f"{relative.as_posix()}\t{item.label}\t{size}\n".encode())
        return digest.hexdigest()[:16]


def run_name(name: str, root: str | Path) -> str:
    """What the data set `name` below `root` is called in run folders and results."""
    return DATASET_REGISTRY.get(name).run_name(root) if name in DATASET_REGISTRY else name


@dataclass(frozen=True)
class DatasetInfo:
    """What tables and figures need to know about a data set, registered here or not."""

    name: str
    label: str  # in tables and figures
    order: tuple[int, str]  # sorts data sets as the papers' tables do
    embedded: bool  # drawn by code and shipped with the project


def dataset_info(name: str) -> DatasetInfo:
    """Facts about a data set by its registered name; one that is not registered sorts last."""
    cls = DATASET_REGISTRY.get(name) if name in DATASET_REGISTRY else Dataset
    return DatasetInfo(name, cls.label or name, (cls.display_order, name), cls.embedded)


def dataset_order(name: str) -> tuple[int, str]:
    """Sort key for data set names."""
    return dataset_info(name).order


def build_dataset(
    name: str, root: str | Path, num_shots: int = -1, seed: int = 0, subsample_classes: str = "all",
    fewshot_dir: str | Path = "",
) -> Dataset:
    """The registered data set `name`, read from `root`."""
    cls = DATASET_REGISTRY.get(name)
    dataset = cls.__new__(cls)
    dataset.fewshot_dir = fewshot_dir  # before it is read: readers that users have written take the other four only
    dataset.__init__(root, num_shots, seed, subsample_classes)
    return dataset
