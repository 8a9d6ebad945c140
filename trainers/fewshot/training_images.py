"""Training data of a prompt: unit features of labelled images, in batches.

Each epoch encodes new random crops of the images. Alternatively their plain views are encoded once.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...datasets.base import Dataset, Datum
from ...datasets.utils.errors import DataError
from ...datasets.views.kernel_cache import compile_kernels
from ...datasets.views.loader import LoadedBatch, load_batches
from ...datasets.views.maker import ViewMaker
from ...datasets.views.reference import BICUBIC, crops, to_tensor
from ..runs.run_dir import batched
from ..vlm.backbone import Backbone
from ..vlm.image_tower import encode_views
from ..vlm.numerics import pin

# Independent streams of random numbers for one seed.
ORDER = 1
CROPS = 2

# Images that are read together where nothing depends on their order.
CHECKED_AT_ONCE = 64
ENCODED_AT_ONCE = 32

T = TypeVar("T")


def epoch_batches(count: int, size: int, seed: int, epoch: int) -> list[Sequence[int]]:
    """An epoch's batches in random order.

    As in Dassl, an incomplete last one is left out unless it is the only one.

    Args:
        count: Number of images.
        size: Images per batch.
        seed: Seed of the order.
        epoch: Number of the epoch, from 0; each epoch has its own order.

    Returns:
        Positions of images, batch by batch.
    """
    order = np.random.default_rng([seed, ORDER, epoch]).permutation(count).tolist()
    used_images = count - count % size
    if used_images == 0:
        used_images = count
    return batched(order[:used_images], size)


@dataclass(frozen=True)
class TrainingCrop:
    """CoOp's training view: a random crop (bicubic) that is flipped half of the time, drawn by seed
    and index alone.
    """

    size: int  # pixels per side
    seed: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """A uint8 view (1, 3, size, size)."""
        rng = np.random.default_rng([self.seed, CROPS, index])
        (crop,) = crops(image, 1, self.size, rng, BICUBIC)
        return to_tensor(crop)[None]


def make_nothing(image: Image.Image, index: int) -> None:
    """Makes nothing of an image, for `TrainingImages.load` where it is only read.

    Args:
        image: The decoded image.
        index: Its position.
    """


@dataclass
class TrainingImages:
    """The labelled images of a data set as seen by a frozen image tower.

    Attributes:
        backbone: Backbone whose image tower encodes them.
        dataset: Data set that reads them.
        items: The images.
        fixed: Whether every image's plain view is encoded once, in place of a new crop in each
            epoch.
        batch: Images per step.
        seed: Seed of the order and of the crops.
        precision: Precision in which images are encoded, as MODEL.PREC.
        workers: DATALOADER.NUM_WORKERS.
    """

    backbone: Backbone
    dataset: Dataset
    items: Sequence[Datum]
    fixed: bool
    batch: int
    seed: int
    precision: str
    workers: int

    @property
    def views(self) -> str:
        """What is trained on, in words, for the log and results.json."""
        if self.fixed:
            return "fixed plain views"
        return "new random crops in each epoch"

    def leave_out_unreadable(self) -> list[str]:
        """Removes the images that cannot be read from `items`.

        Returns:
            What is wrong with each of them.
        """
        problems: dict[int, str] = {}  # by position
        batches = batched(range(len(self.items)), CHECKED_AT_ONCE)
        for batch in self.load(self.items, make_nothing, batches):
            problems.update(batch.bad)
        self.items = [item for index, item in enumerate(self.items) if index not in problems]
        if not self.items:
            raise DataError(f"no training image can be read: {next(iter(problems.values()))}")
        return list(problems.values())

    def epochs(self, start: int, stop: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """The batches of each epoch.

        Args:
            start: The first epoch, from 0.
            stop: The epoch after the last one.

        Yields:
            For each epoch an iterator over its batches of unit features (B, d) and labels (B,).
            With random crops it must be exhausted before the next epoch, because one loader serves
            all epochs.
        """
        count = len(self.items)
        labels = torch.tensor([item.label for item in self.items], device=self.backbone.device)
        plan: dict[int, list[Sequence[int]]] = {}  # batches by epoch
        for epoch in range(start, stop):
            plan[epoch] = epoch_batches(count, self.batch, self.seed, epoch)
        if self.fixed:
            features = self.plain_features()
            for batches in plan.values():
                yield ((features[batch], labels[batch]) for batch in batches)
        else:
            loaded = self.load_crops(plan, stop)
            for batches in plan.values():
                yield ((self.encode(next(loaded)), labels[batch]) for batch in batches)

    def plain_features(self) -> Tensor:
        """Unit features of the plain view of every image, (n, d)."""
        maker = ViewMaker.of(1, self.backbone.pixels, augmix=False, seed=self.seed)
        compile_kernels()
        batches = batched(range(len(self.items)), ENCODED_AT_ONCE)
        loaded = self.load(self.items, maker, batches)
        return torch.cat([self.encode(batch) for batch in loaded])

    def load_crops(
        self, plan: Mapping[int, Sequence[Sequence[int]]], stop: int,
    ) -> Iterator[LoadedBatch[Tensor]]:
        """A random crop of each image of each batch.

        One loader serves the whole training: the next epoch begins while this one ends.

        Args:
            plan: The batches of each epoch.
            stop: The epoch after the last one.
        """
        count = len(self.items)
        # The loader sees the list of images once per epoch. Position epoch · n + i is image i, and
        # its crop is drawn from that position, so each epoch has other crops.
        positions = []
        for epoch, batches in plan.items():
            for batch in batches:
                positions.append([epoch * count + i for i in batch])
        crop = TrainingCrop(self.backbone.pixels.size, self.seed)
        return self.load(list(self.items) * stop, crop, positions)

    def load(
        self, items: Sequence[Datum], make: Callable[[Image.Image, int], T],
        batches: Sequence[Sequence[int]],
    ) -> Iterator[LoadedBatch[T]]:
        """Reads images and makes something of each, in threads.

        Args:
            items: The images.
            make: Called with an image and its position in `items`.
            batches: Positions in `items`, batch by batch.
        """

        def read(index: int) -> Image.Image:
            return self.dataset.read_image(items[index])

        return load_batches(read, make, batches, self.workers)

    def encode(self, batch: LoadedBatch[Tensor]) -> Tensor:
        """Unit features (B, d) of a batch with one view per image."""
        views = pin(torch.stack(batch.made), self.backbone.device)
        return encode_views(self.backbone, views, self.precision)[:, 0]
