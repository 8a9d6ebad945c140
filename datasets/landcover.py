"""Aerial tiles of 24 kinds of land, drawn by code: a data set for which nothing is downloaded and nothing stored.

The classes come in families that are close in meaning and in look: crops, green land, built land, water, ways, bare
land. A datum's path, such as `landcover/test/vineyard/00012.png`, is no file but the seed of a drawing.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np
from PIL import Image

from .base import DATASET_REGISTRY, Dataset, Datum
from .fewshot import draw, select_classes
from .synthetic.tiles import CLASSNAMES, GENERATOR_VERSION, shifted_tile, tile
from .utils.errors import DataError


@DATASET_REGISTRY.register()
class LandCover(Dataset):
    """Two tiles in five are clear, the others under weather, season, bad light or a poor sensor; 40 a class to test."""

    folder = "landcover"
    embedded = True
    per_class: ClassVar[dict[str, int]] = {"train": 32, "val": 8, "test": 40}
    draw_tile: ClassVar[Callable[[str, str, int], np.ndarray]] = staticmethod(tile)

    def __init__(
        self, root: str | Path = "", num_shots: int = -1, seed: int = 0, subsample_classes: str = "all",
    ) -> None:
        super().__init__(root, num_shots, seed, subsample_classes)
        splits = {split: self.items(split) for split in ("train", "val", "test")}
        if num_shots > 0:
            if not splits["train"]:
                raise DataError(f"{type(self).__name__} has no training images for DATASET.NUM_SHOTS {num_shots}")
            splits.update(draw(splits["train"], splits["val"], num_shots, seed))
        self.classnames, (self.train, self.val, self.test) = select_classes(
            CLASSNAMES, list(splits.values()), subsample_classes,
        )

    def items(self, split: str) -> list[Datum]:
        """The tiles of a split, class by class."""
        return [
            Datum(f"{self.folder}/{split}/{name.replace(' ', '_')}/{number:05d}.png", label, classname=name)
            for label, name in enumerate(CLASSNAMES)
            for number in range(self.per_class.get(split, 0))
        ]

    def read_image(self, datum: Datum) -> Image.Image:
        """Draws the tile that the path names."""
        folder, split, name, file = PurePosixPath(datum.impath).parts
        if folder != self.folder:
            raise DataError(f"{datum.impath} is no tile of {type(self).__name__}: its tiles are {self.folder}/…")
        return Image.fromarray(self.draw_tile(split, name.replace("_", " "), int(PurePosixPath(file).stem)))

    def fingerprint(self, items: Sequence[Datum]) -> str:
        """A hash of the generator's version, the class names and the items in order; there are no files to look at."""
        lines = [f"generator {GENERATOR_VERSION}", *self.classnames, *(f"{i.impath}\t{i.label}" for i in items)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@DATASET_REGISTRY.register()
class LandCoverShift(LandCover):
    """The same classes turned, partly covered by other tiles, in wrong colours, haze, noise or blur; to test only."""

    folder = "landcover_shift"
    per_class: ClassVar[dict[str, int]] = {"test": 40}
    draw_tile: ClassVar[Callable[[str, str, int], np.ndarray]] = staticmethod(shifted_tile)
