"""Crop, resize and flip as Pillow's `crop` and `resize` do it, to the last bit, for many boxes of one picture at once.

Pillow resizes one axis after the other. In each pass a pixel is a weighted sum of a few pixels, with weights of 22
fractional bits, rounded to 8 bits. Here a pass is a weighted sum of rows of a matrix (`embedding_bag`), so the picture
lies on its side while its columns are resized. Sums of 8 times 22 bits do not fit a float32; each weight is therefore
split in two parts of 11 bits, whose sums do.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
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
        weight = np.trunc(weight * (1 << BITS) + np.copysign(0.5, weight)).astype(np.int32)
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
    """The weighted sums of one pass, for all views: rows of a table made of one block a colour (first pass), or one a
    view and colour (second)."""

    place: Tensor  # (n, 3, size, taps)
    weight: Tensor  # (2, n, 3, size, taps), upper and lower parts
    used: list[int]  # taps of each view

    @classmethod
    def of(cls, axis: Axis, size: int, kind: Filter, block: np.ndarray, device: torch.device) -> Sums:
        """`block` (n, 3): the row at which the view's colour starts."""
        place, weight, used = axis.taps(size, kind)
        place = place[:, None] + block[..., None, None]
        upper = weight >> LOW_BITS
        parts = np.stack([upper, (weight - (upper << LOW_BITS)) * 2.0**-LOW_BITS]).astype(np.float32)
        parts = np.repeat(parts[:, :, None], 3, axis=2)
        place, parts = torch.from_numpy(place), torch.from_numpy(parts)
        return cls(place.to(device, non_blocking=True), parts.to(device, non_blocking=True), used.tolist())

    def __call__(self, table: Tensor, views: slice) -> Tensor:
        """Σ weight·table[place] / 2²² as Pillow rounds it, numbers whose integer part counts: (views·3·size, width).

        With h and l the exact sums of the upper and lower parts, ⌊(2¹¹h + l + 2²¹) / 2²²⌋ =
        ⌊(h + ⌊l / 2¹¹⌋ + 2¹⁰) / 2¹¹⌋, and all steps of the right side fit a float32.
        """
        taps = max(self.used[views])
        place = self.place[views, ..., :taps].reshape(-1)
        upper, lower = self.weight[:, views, ..., :taps].reshape(2, -1)
        offsets = torch.arange(0, len(place), taps, device=place.device)
        total = torch.embedding_bag(table, place, offsets, False, 0, False, upper)[0]
        total += torch.embedding_bag(table, place, offsets, False, 0, False, lower)[0].floor_()
        return total.mul_(2.0**-LOW_BITS).add_(0.5)


def resize(planes: Tensor, first: Axis, second: Axis, size: int, kind: Filter, at_once: int) -> Iterator[Tensor]:
    """Views of a picture, uint8, `at_once` at a time: (at_once, 3, size, size).

    `planes` (3, A, B) are its colours; the axis A is resized first, then B, and the result has B before A.
    """
    groups = make_groups(first, second, at_once, planes.shape[2])
    colour, device = np.arange(3), planes.device
    # where in a group's table each view's colours start, less where the part of the picture starts
    starts = [
        (first.start[g.views, None] - g.start + colour * (g.stop - g.start),
         second.start[g.views, None] - g.top
         + (np.arange(len(first.start[g.views]))[:, None] * 3 + colour) * (g.bottom - g.top))
        for g in groups
    ]
    one = Sums.of(first, size, kind, np.concatenate([a for a, _ in starts]), device)
    two = Sums.of(second, size, kind, np.concatenate([b for _, b in starts]), device)
    for g in groups:
        region = planes[:, g.start : g.stop, g.top : g.bottom].to(torch.float32, memory_format=torch.contiguous_format)
        half = one(region.flatten(0, 1), g.views).floor_()
        if kind.overshoots:
            half.clamp_(0, 255)
        full = two(half.view(-1, size, g.bottom - g.top).mT.reshape(-1, size), g.views)
        if kind.overshoots:
            full.clamp_(0, 255)
        yield to_bytes(full).view(-1, 3, size, size)


def to_bytes(numbers: Tensor) -> Tensor:
    """The integer parts of numbers from 0 to 255. By way of int16, which is a quarter of the time on a CPU."""
    return numbers.to(torch.int16).to(torch.uint8)
