"""What a context learns from: unit features of labelled images in batches, new crops each epoch or fixed views."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...datasets.base import Dataset, Datum
from ...datasets.utils.errors import DataError
from ...datasets.views.crops import draw_crops
from ...datasets.views.loader import Maker, ViewBatch, view_loader
from ...datasets.views.maker import ViewMaker
from ..vlm.backbone import Backbone
from ..vlm.image_tower import encode_views

# Independent streams of random numbers for one seed.
ORDER, CROPS = 1, 2


def epoch_batches(count: int, size: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of an epoch: all images in random order. As in Dassl, an incomplete last batch is left out unless it
    is the only one."""
    order = np.random.default_rng([seed, ORDER, epoch]).permutation(count).tolist()
    whole = max(count - count % size, min(count, size))
    return [order[start : start + size] for start in range(0, whole, size)]


@dataclass(frozen=True)
class TrainingCrop:
    """CoOp's training view: a random crop (bicubic) that is flipped half of the time, drawn by seed and index alone."""

    size: int  # pixels a side
    seed: int

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """A uint8 view (1, 3, size, size)."""
        rng = np.random.default_rng([self.seed, CROPS, index])
        ((left, top, width, height),), (flip,) = draw_crops(image.size, 1, rng)
        # First cropped, as torchvision does: resizing a box would let the filter see what lies around it.
        view = image.crop((left, top, left + width, top + height))
        view = view.resize((self.size, self.size), Image.Resampling.BICUBIC)
        if flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(view)).permute(2, 0, 1)[None].contiguous()


def nothing(image: Image.Image, index: int) -> Tensor:
    """The view for a pass that only finds out which images can be read."""
    return torch.empty(0)


class Repeated(Sequence[Datum]):
    """The same items again in every epoch: place epoch · n + i is item i."""

    def __init__(self, items: Sequence[Datum], times: int) -> None:
        self.items, self.times = items, times

    def __len__(self) -> int:
        return self.times * len(self.items)

    def __getitem__(self, place: int) -> Datum:
        return self.items[place % len(self.items)]


@dataclass
class TrainingImages:
    """The labelled images of a data set as seen by a frozen image tower."""

    backbone: Backbone
    dataset: Dataset
    items: Sequence[Datum]
    fixed: bool  # every image's plain view, encoded once, instead of a new crop in each epoch
    batch: int  # images a step
    seed: int
    precision: str
    workers: int

    @property
    def views(self) -> str:
        return "fixed plain views" if self.fixed else "new random crops in each epoch"

    def leave_out_unreadable(self) -> list[str]:
        """Drops the images that cannot be read, and tells what is wrong with them."""
        places = range(len(self.items))
        bad: dict[int, str] = {}
        for found in self.load(self.items, nothing, [list(places[i : i + 64]) for i in places[::64]]):
            bad.update(found.bad)
        self.items = [item for place, item in enumerate(self.items) if place not in bad]
        if not self.items:
            raise DataError(f"no training image can be read: {next(iter(bad.values()))}")
        return list(bad.values())

    def epochs(self, start: int, stop: int) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """For each epoch its batches of unit features (B, d) and labels (B,)."""
        count = len(self.items)
        labels = torch.tensor([item.label for item in self.items], device=self.backbone.device)
        plan = {epoch: epoch_batches(count, self.batch, self.seed, epoch) for epoch in range(start, stop)}
        if self.fixed:
            features = self.plain_features()
            for batches in plan.values():
                yield ((features[batch], labels[batch]) for batch in batches)
            return
        # One loader for the whole training: its workers prepare the next epoch while this one ends.
        places = [[epoch * count + i for i in batch] for epoch, batches in plan.items() for batch in batches]
        loaded = self.load(Repeated(self.items, stop), TrainingCrop(self.backbone.pixels.size, self.seed), places)
        for batches in plan.values():
            yield ((self.encode(next(loaded).views), labels[batch]) for batch in batches)

    def plain_features(self) -> Tensor:
        """Features (n, d) of every image's plain view, encoded once."""
        places = range(len(self.items))
        maker = ViewMaker.of(1, self.backbone.pixels, augmix=False, seed=self.seed)
        batches = self.load(self.items, maker, [list(places[i : i + 32]) for i in places[::32]])
        return torch.cat([self.encode(batch.views) for batch in batches])

    def load(self, items: Sequence[Datum], maker: Maker, batches: Sequence[Sequence[int]]) -> Iterator[ViewBatch]:
        pinned = self.backbone.device.type == "cuda"
        return view_loader(self.dataset, items, maker, batches, self.workers, pinned)

    def encode(self, views: Tensor) -> Tensor:
        return encode_views(self.backbone, views, self.precision)[:, 0]
