"""Views of many images, made by worker processes, in batches of a given composition."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .crops import ViewMaker
from .images import BadImageError


class Pictures(Protocol):
    """What a loader needs of a data set."""

    def read_image(self, datum: Any) -> Image.Image:
        """The RGB picture behind a datum."""


@dataclass
class ViewBatch:
    """Views of the images that could be read, and the complaints about those that could not."""

    index: list[int]  # places in the split
    views: Tensor | None  # uint8 (B, V, 3, H, W); None if no image could be read
    bad: dict[int, str]  # place in the split -> what is wrong

    def pin_memory(self) -> ViewBatch:
        """Called by the loader when the views go to a GPU: pinned memory is copied without blocking."""
        return ViewBatch(self.index, None if self.views is None else self.views.pin_memory(), self.bad)


class ViewSet(TorchDataset):
    """One image's views by its place in the split; each image is decoded once."""

    def __init__(self, dataset: Pictures, items: Sequence, maker: ViewMaker) -> None:
        self.dataset, self.items, self.maker = dataset, items, maker

    def __getitem__(self, index: int) -> tuple[int, Tensor | str]:
        try:
            return index, self.maker(self.dataset.read_image(self.items[index]), index)
        except BadImageError as error:
            return index, str(error)  # exceptions lose their type on the way out of a worker


def collate(samples: list[tuple[int, Tensor | str]]) -> ViewBatch:
    good = [(index, views) for index, views in samples if isinstance(views, Tensor)]
    bad = {index: reason for index, reason in samples if isinstance(reason, str)}
    return ViewBatch([index for index, _ in good], torch.stack([v for _, v in good]) if good else None, bad)


def view_loader(
    dataset: Pictures, items: Sequence, maker: ViewMaker, batches: Sequence[Sequence[int]], workers: int,
    pin_memory: bool,
) -> Iterator[ViewBatch]:
    """A ViewBatch for each of `batches` (lists of places in `items`), in their order."""
    loader = DataLoader(
        ViewSet(dataset, items, maker), batch_sampler=batches, num_workers=min(workers, len(batches)),
        collate_fn=collate, pin_memory=pin_memory,
    )
    return noticing_lost_workers(loader) if loader.num_workers else iter(loader)


def noticing_lost_workers(loader: Iterable[ViewBatch]) -> Iterator[ViewBatch]:
    """torch tells when a worker was killed, unless it was in the middle of handing over a batch, which looks like a
    broken connection. What a worker itself raises says where it was caught."""
    try:
        yield from loader
    except (OSError, EOFError) as error:
        if "in DataLoader worker process" in str(error):
            raise
        raise RuntimeError("DataLoader worker (pid unknown) was lost") from error
