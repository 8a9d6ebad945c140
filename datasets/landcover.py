"""Reads LandCover: aerial tiles of 24 kinds of land, drawn by code, so nothing is downloaded.

The classes are close in meaning and in look: crops, green land, built land, water, roads and rails,
bare land. The path of a datum, such as `landcover/test/vineyard/00012.png`, is not a file but the
seed of a drawing. Corrupted test tiles are called `landcover/test-fog-5/vineyard/00012.png`;
training and validation tiles are never corrupted.
"""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar

from PIL import Image

from .base import DATASET_REGISTRY, SEVERITIES, Dataset, Datum
from .image_index import ImageHash, ImageIndex, hash_text
from .synthetic import (
    CLASSNAMES,
    GENERATOR_VERSION,
    STRENGTHS,
    corrupt,
    shifted_tile,
    tile,
    tile_rng,
)
from .utils.errors import DataError


@DATASET_REGISTRY.register()
class LandCover(Dataset):
    """40 test tiles per class; two in five are clear, the others under weather, season, bad light
    or sensor noise."""

    folder = "landcover"
    embedded = True
    corruptions = tuple(STRENGTHS)
    per_class: ClassVar[dict[str, int]] = {"train": 32, "val": 8, "test": 40}
    draw_tile = staticmethod(tile)

    def __init__(
        self, root: str | Path = "", corruption: str = "", severity: int = SEVERITIES[-1],
    ) -> None:
        super().__init__(root, corruption, severity)
        self.train = self.items("train")
        self.val = self.items("val")
        self.test = self.items("test")
        self.classnames = list(CLASSNAMES)

    def items(self, split: str) -> list[Datum]:
        """The tiles of a split, class by class."""
        split_folder = split
        if self.corruption and split == "test":
            split_folder = f"{split}-{self.corruption}-{self.severity}"
        items = []
        for label, name in enumerate(CLASSNAMES):
            folder = f"{self.folder}/{split_folder}/{name.replace(' ', '_')}"
            for number in range(self.per_class.get(split, 0)):
                items.append(Datum(f"{folder}/{number:05d}.png", label, classname=name))
        return items

    def remedy(self) -> str:
        """The shifted set has no training images."""
        return "use LandCover for training"

    def read_image(self, datum: Datum) -> Image.Image:
        """Draws the tile that the path names."""
        folder, split, name, file = PurePosixPath(datum.impath).parts
        if folder != self.folder:
            raise DataError(f"{datum.impath} is not a tile of {type(self).__name__}: its tiles are "
                            f"{self.folder}/…")
        split, _, corruption = split.partition("-")
        key = split, name.replace("_", " "), int(PurePosixPath(file).stem)
        image = self.draw_tile(*key)
        if corruption:
            kind, _, severity = corruption.partition("-")
            image = corrupt(image, kind, int(severity), tile_rng(self.folder, kind, *key))
        return Image.fromarray(image)

    def check_files(self, items: Sequence[Datum]) -> None:
        """There are no files."""

    def hash_images(self, items: Sequence[Datum], index: ImageIndex) -> list[ImageHash]:
        """Hashes of the images' paths and of the version of the code.

        Together they decide every pixel: a path names the set, the split, the corruption with its
        severity, the class and the number.

        Args:
            items: The tiles.
            index: The index of files, which is not needed because there are none.
        """
        version = f"generator {GENERATOR_VERSION}"
        return [ImageHash(hash_text("LandCover", version, item.impath)) for item in items]

    def uncorrupted_name(self, item: Datum) -> str:
        """The name of the tile without corruption."""
        folder, split, name, file = PurePosixPath(item.impath).parts
        clean_split = split.partition("-")[0]
        return f"generator {GENERATOR_VERSION}: {folder}/{clean_split}/{name}/{file}"


@DATASET_REGISTRY.register()
class LandCoverShift(LandCover):
    """LandCover's classes, for testing only: rotated, mixed with others, with colour casts, haze,
    noise or blur."""

    folder = "landcover_shift"
    per_class: ClassVar[dict[str, int]] = {"test": 40}
    draw_tile = staticmethod(shifted_tile)
