"""Crop, resize and flip as Pillow's `crop` and `resize` do it, to the last bit, for many boxes of one picture at once.

Pillow resizes one axis after the other. In each pass a pixel is a weighted sum of a few pixels, with weights of 22
fractional bits, rounded to 8 bits. Here a pass is a weighted sum of rows of a matrix (`embedding_bag`), a row being all
colours of a line of the picture, which lies on its side while its columns are resized. Sums of 8 times 22 bits do not
fit a float32; each weight is therefore split in two parts of 11 bits, whose sums do.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 22  # of a weight's fraction, as in Pillow
LOW_BITS = 11  # of these, in the lower part
LENGTH_STEP = 16  # rows are lengthened to multiples, so that few kernels have to be made


def triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def cubic(x: np.ndarray) -> np.ndarray:
    """Keys' kernel with a = −1/2."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, (((x - 5) * x + 8) * x - 4) * -0.5, 0))


@dataclass(frozen=True)
class Filter:
    kernel: Callable[[np.ndarray], np.ndarray]
    support: float  # beyond which it vanishes
    overshoots: bool  # has negative parts, so that sums may leave 0–255


BILINEAR, BICUBIC = Filter(triangle, 1.0, False), Filter(cubic, 2.0, True)


@dataclass(frozen=True)
class Axis:
    """One axis of n views of a picture: view i shows `length[i]` input pixels from `start[i]` on, resized to `full`
    pixels, of which those from `first` on are wanted; backwards where `flip[i]`."""

    start: np.ndarray  # (n,)
    length: np.ndarray  # (n,)
    full: int
    first: int = 0
    flip: np.ndarray | None = None  # (n,); None: nowhere

    def __getitem__(self, views: np.ndarray) -> Axis:
        """Of some views only."""
        flip = None if self.flip is None else self.flip[views]
        return Axis(self.start[views], self.length[views], self.full, self.first, flip)

    def taps(self, size: int, kind: Filter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The input pixels that each of `size` output pixels is made of, counted from the view's start, and their
        weights, (n, size, taps), 0 at the end where a view needs fewer; how many each view needs, (n,).
        These are Pillow's. Shrinking widens the kernel, which is its antialiasing."""
        length = self.length[:, None]
        scale = length / self.full
        stretch = np.maximum(scale, 1.0)
        reach = kind.support * stretch
        centre = (np.arange(self.first, self.first + size) + 0.5) * scale  # (n, size)
        low = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
        high = np.minimum((centre + reach + 0.5).astype(np.int64), length)
        used = (high - low).max(axis=1)
        place = low[..., None] + np.arange(used.max())  # (n, size, taps)
        weight = kind.kernel((place - centre[..., None] + 0.5) * (1 / stretch)[..., None])
        weight[place >= high[..., None]] = 0
        weight /= weight.cumsum(axis=-1)[..., -1:]  # summed one by one, as Pillow does: numpy's sum rounds otherwise
        weight = (weight * (1 << BITS) + np.copysign(0.5, weight)).astype(np.int32)
        place = np.minimum(place, length[..., None] - 1)
        if self.flip is not None:
            place[self.flip], weight[self.flip] = place[self.flip, ::-1], weight[self.flip, ::-1]
        return place, weight, used


@dataclass(frozen=True)
class Group:
    """Views that are resized together, and the part of the picture that they need."""

    views: slice
    start: int  # of the axis that is resized first
    stop: int
    top: int  # of the other one
    bottom: int


def make_groups(first: Axis, second: Axis, at_once: int, longest: int) -> list[Group]:
    groups = []
    for begin in range(0, len(first.start), at_once):
        views = slice(begin, begin + at_once)
        top, bottom = int(second.start[views].min()), int((second.start + second.length)[views].max())
        bottom = min(top + -(-(bottom - top) // LENGTH_STEP) * LENGTH_STEP, longest)
        stop = int((first.start + first.length)[views].max())
        groups.append(Group(views, int(first.start[views].min()), stop, top, bottom))
    return groups


@dataclass(frozen=True)
class Sums:
    """The weighted sums of one pass, for all views."""

    place: np.ndarray  # (2, n, size, taps), rows of a group's table; twice the same
    weight: np.ndarray  # (2, n, size, taps), upper and lower parts
    used: np.ndarray  # (n,), taps of each view

    @classmethod
    def of(cls, axis: Axis, size: int, kind: Filter, begins: np.ndarray) -> Sums:
        """`begins` (n): the row of the table at which the view starts."""
        place, weight, used = axis.taps(size, kind)
        place += begins[:, None, None]
        upper = weight >> LOW_BITS
        parts = np.stack([upper, weight - (upper << LOW_BITS)]).astype(np.float32)
        parts *= np.float32(2.0**-LOW_BITS)
        return cls(np.broadcast_to(place, (2, *place.shape)), parts, used)

    def __call__(self, table: Tensor, views: slice) -> Tensor:
        """Σ weight·table[place] / 2²² as Pillow rounds it, numbers whose integer part counts: (views·size, width).

        With h and l the exact sums of the upper and lower parts, ⌊(2¹¹h + l + 2²¹) / 2²²⌋ =
        ⌊h / 2¹¹ + ⌊l / 2¹¹⌋ / 2¹¹ + ½⌋, and all steps of the right side fit a float32.
        """
        taps = int(self.used[views].max())
        place, weight = (
            torch.from_numpy(part[:, views, :, :taps].ravel()).to(table.device, non_blocking=True)
            for part in (self.place, self.weight)
        )
        both = torch.embedding_bag(table, place, every(taps, len(place), table.device), False, 0, False, weight)[0]
        total, low = both.chunk(2)
        return total.add_(low.floor_(), alpha=2.0**-LOW_BITS).add_(0.5)


@lru_cache(maxsize=64)
def every(step: int, stop: int, device: torch.device) -> Tensor:
    return torch.arange(0, stop, step, device=device)


def resize(rows: Tensor, first: Axis, second: Axis, size: int, kind: Filter, at_once: int) -> Iterator[Tensor]:
    """Views of a picture `at_once` at a time: numbers whose integer part counts, (at_once, size, 3, size).

    `rows` (A, B, 3) is the picture; the axis A is resized first, then B, and the result has B before A.
    """
    groups = make_groups(first, second, at_once, rows.shape[1])
    # the row of a group's table at which each view starts
    ones = np.concatenate([first.start[g.views] - g.start for g in groups])
    twos = np.concatenate([
        second.start[g.views] - g.top + np.arange(len(second.start[g.views])) * (g.bottom - g.top) for g in groups
    ])
    one, two = Sums.of(first, size, kind, ones), Sums.of(second, size, kind, twos)
    for g in groups:
        region = rows[g.start : g.stop, g.top : g.bottom].to(torch.float32, memory_format=torch.contiguous_format)
        half = one(region.flatten(1), g.views).floor_()
        if kind.overshoots:
            half.clamp_(0, 255)
        full = two(half.view(-1, size, 3 * (g.bottom - g.top)).mT.reshape(-1, 3 * size), g.views)
        if kind.overshoots:
            full.clamp_(0, 255)
        yield full.view(-1, size, 3, size)


def resize_bytes(picture: Tensor, x: Axis, y: Axis) -> Iterator[Tensor]:
    """Whole views of a picture (H, W, 3), uint8 (3, y, x), one by one by torch's own resizing of bytes, which is only
    for CPUs and bilinear. Its weights have 15 bits, and columns always come first."""
    mirrored = picture.flip(1)
    for left, width, top, height, flip in zip(x.start, x.length, y.start, y.length, x.flip, strict=True):
        start = picture.shape[1] - left - width if flip else left
        box = (mirrored if flip else picture)[top : top + height, start : start + width].permute(2, 0, 1)[None]
        box = box.contiguous(memory_format=torch.channels_last)  # what the fast kernel is for
        yield F.interpolate(box, (y.full, x.full), mode="bilinear", antialias=True)[0]


def to_bytes(numbers: Tensor) -> Tensor:
    """The integer parts of numbers from 0 to 255. By way of int16, which is a quarter of the time on a CPU."""
    return numbers.to(torch.int16).to(torch.uint8)
