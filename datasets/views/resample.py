"""Crop, resize and flip as Pillow's `crop` and `resize` do it, to the last bit, for many boxes of one picture at once.

Pillow resizes one axis after the other. In each pass a pixel is a weighted sum of a few pixels, with weights of 22
fractional bits, rounded to 8 bits. Here a pass is a weighted sum of the picture's lines, which lies on its side while
its columns are resized: a compiled loop on a CPU, elsewhere `embedding_bag`, in float64, because 8 times 22 bits fit no
float32.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import compiled
from .compiled import BITS, LEVELS
from .devices import sent

NUMBERS = 1 << 25  # float64 that a pass has at once, outside of a CPU's loops


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


BILINEAR, BICUBIC = Filter(triangle, 1.0), Filter(cubic, 2.0)


@dataclass(frozen=True)
class Axis:
    """One axis of n views of a picture: view i shows `length[i]` input pixels from `start[i]` on, resized to `full`
    pixels, of which those from `first` on are wanted; backwards where `flip[i]`."""

    start: np.ndarray  # (n,)
    length: np.ndarray  # (n,)
    full: int
    first: int = 0
    flip: np.ndarray | None = None  # (n,); None: nowhere

    @property
    def stop(self) -> np.ndarray:
        return self.start + self.length

    def __getitem__(self, views: np.ndarray) -> Axis:
        """Of some views only."""
        flip = None if self.flip is None else self.flip[views]
        return Axis(self.start[views], self.length[views], self.full, self.first, flip)

    def taps(self, size: int, kind: Filter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first of the input pixels that each of `size` output pixels is made of, (n, size); the weights of it and
        those that follow, (n, size, taps), 0 where fewer are needed; how many each view needs, (n,), an even number.
        These are Pillow's. Shrinking widens the kernel, which is its antialiasing."""
        length = self.length[:, None]
        scale = length / self.full
        stretch = np.maximum(scale, 1.0)
        reach = kind.support * stretch
        centre = (np.arange(self.first, self.first + size) + 0.5) * scale  # (n, size)
        low = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
        high = np.minimum((centre + reach + 0.5).astype(np.int64), length)
        used = (high - low).max(axis=1)
        used += used % 2
        weights = np.empty((used.max(), *low.shape))
        for k, weight in enumerate(weights):  # each contiguous: a quarter of the time of all at once
            weight[:] = kind.kernel((low + k - centre + 0.5) * (1 / stretch))
            weight[low + k >= high] = 0
        weights /= sum(weights)
        whole = np.empty((*low.shape, len(weights)), np.int32)
        for k, weight in enumerate(weights):
            whole[..., k] = weight * (1 << BITS) + np.copysign(0.5, weight)
        first = low + self.start[:, None]
        if self.flip is not None:
            first[self.flip], whole[self.flip] = first[self.flip, ::-1], whole[self.flip, ::-1]
        return first, whole, used


def resize(picture: Tensor, x: Axis, y: Axis, kind: Filter, out: Tensor) -> None:
    """Writes views of a picture (H, W, 3), uint8, into `out`, uint8 (n, 3, size, size).

    Which axis Pillow resizes first makes a difference of one level in some pixels. Since version 13 that is the
    vertical one if it shrinks, and by more than twice as many pixels as the other.
    """
    shrinks = y.length - y.full
    rows_first = (shrinks > 0) & (shrinks > 2 * (x.length - x.full))
    in_passes = by_loops if compiled.serves(picture.device) else by_sums
    for chosen, first, second in ((~rows_first, x, y), (rows_first, y, x)):
        views = np.flatnonzero(chosen)
        if len(views):
            lines = picture.permute(2, 1, 0) if first is x else picture.permute(2, 0, 1)
            in_passes(lines.contiguous(), first[views], second[views], kind, out, views, first is y)


def by_loops(
    lines: Tensor, first: Axis, second: Axis, kind: Filter, out: Tensor, views: np.ndarray, turned: bool,
) -> None:
    """Resizes the axis A of a picture (3, A, B) first, then B, which goes before A in `out`, or `turned` after it."""
    size = out.shape[-1]
    starts, weights, taps = first.taps(size, kind)
    starts_2, weights_2, taps_2 = second.taps(size, kind)
    compiled.resize(
        lines.numpy(), starts, first.stop, weights, taps,
        second.start, second.stop, starts_2 - second.start[:, None], weights_2, taps_2,
        out.numpy(), views, turned,
    )


def by_sums(
    lines: Tensor, first: Axis, second: Axis, kind: Filter, out: Tensor, views: np.ndarray, turned: bool,
) -> None:
    """The same with tensors on any device, of as many views and pixels at once as `NUMBERS` allows."""
    size, length = out.shape[-1], lines.shape[2]
    at_once = max(1, NUMBERS // (3 * size * length))
    for begin in range(0, len(views), at_once):
        places = views[begin : begin + at_once]
        n, some = len(places), np.arange(begin, begin + len(places))
        one, two = first[some], second[some]
        starts, weights, _ = one.taps(size, kind)
        width = max(1, NUMBERS // (3 * (lines.shape[1] + n * size)))
        half = torch.cat([
            weighed(part.transpose(0, 1).flatten(1), starts, weights, one.stop).unflatten(-1, (3, -1))
            for part in lines.split(width, dim=2)
        ], dim=-1)  # (n, size, 3, length)
        starts, weights, _ = two.taps(size, kind)
        table = half.permute(0, 3, 2, 1).reshape(n * length, 3 * size)
        begins = np.arange(n) * length  # of each view in the table
        full = weighed(table, starts + begins[:, None], weights, two.stop + begins)
        for place, levels in zip(places, full.view(n, size, 3, size).transpose(1, 2), strict=True):
            out[place] = levels.mT if turned else levels


def weighed(lines: Tensor, starts: np.ndarray, weights: np.ndarray, stops: np.ndarray) -> Tensor:
    """Σ weight · line / 2²² as Pillow rounds it: uint8 (n, size, width), of lines (m, width)."""
    n, size, taps = weights.shape
    places = np.minimum(starts[..., None] + np.arange(taps), stops[:, None, None] - 1)
    sums = torch.embedding_bag(
        lines.double(), sent(places.ravel(), lines.device), sent(np.arange(0, places.size, taps), lines.device), False,
        0, False, sent(weights.astype(np.float64).ravel(), lines.device),
    )[0]
    return sums.add_(1 << BITS - 1).div_(1 << BITS).floor_().clamp_(0, LEVELS - 1).byte().view(n, size, -1)
