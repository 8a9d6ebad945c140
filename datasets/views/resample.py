"""Crop, resize and flip as Pillow's `crop` and `resize` do it, to the last bit, for many boxes of one picture at once.

Pillow resizes one axis after the other. In each pass a pixel is a weighted sum of a few pixels, with weights of 22
fractional bits, rounded to 8 bits. Here a pass is a weighted sum of the picture's lines, which lies on its side while
its columns are resized: a compiled loop on a CPU, elsewhere `embedding_bag`. Sums of 8 times 22 bits do not fit a
float32; there each weight is therefore split in two parts of 11 bits, whose sums do.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import compiled
from .compiled import BITS, LEVELS

LOW_BITS = 11  # of a weight's, in the lower part
NUMBERS = 1 << 26  # float32 that a pass makes at once, outside of a CPU's loops


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
        lines.numpy(), starts, first.start + first.length, weights, taps,
        second.start, second.start + second.length, starts_2 - second.start[:, None], weights_2, taps_2,
        out.numpy(), views, turned,
    )


def by_sums(
    lines: Tensor, first: Axis, second: Axis, kind: Filter, out: Tensor, views: np.ndarray, turned: bool,
) -> None:
    """The same with tensors on any device, of as many views at once as `NUMBERS` allows."""
    size = out.shape[-1]
    at_once = max(1, NUMBERS // (2 * size * 3 * lines.shape[2]))
    for begin in range(0, len(views), at_once):
        some = np.arange(len(views))[begin : begin + at_once]
        one, two = first[some], second[some]
        top, bottom = int(two.start.min()), int((two.start + two.length).max())
        table = lines[:, :, top:bottom].transpose(0, 1).flatten(1).float()  # (A, 3 · length)
        half = weighed(table, *one.taps(size, kind), one.start + one.length)  # (n, size, 3 · length)
        half = half.view(len(some), size, 3, -1).permute(0, 3, 2, 1).reshape(-1, 3 * size)  # (n · length, 3 · size)
        starts, weights, taps = two.taps(size, kind)
        begins = np.arange(len(some)) * (bottom - top) - top
        full = weighed(half, starts + begins[:, None], weights, taps, begins + two.start + two.length)
        for view, levels in zip(views[some], full.view(len(some), size, 3, size).transpose(1, 2), strict=True):
            out[view] = levels.mT if turned else levels


def weighed(lines: Tensor, starts: np.ndarray, weights: np.ndarray, taps: np.ndarray, stops: np.ndarray) -> Tensor:
    """Σ weight · line / 2²² as Pillow rounds it: levels, (n, size, width), of lines (m, width).

    With h and l the exact sums of the upper and lower parts of the weights, ⌊(2¹¹h + l + 2²¹) / 2²²⌋ =
    ⌊h / 2¹¹ + ⌊l / 2¹¹⌋ / 2¹¹ + ½⌋, and all steps of the right side fit a float32.
    """
    n, size, most = weights.shape
    places = np.minimum(starts[..., None] + np.arange(most), stops[:, None, None] - 1)
    upper = weights >> LOW_BITS
    parts = np.stack([upper, weights - (upper << LOW_BITS)]).astype(np.float32) * np.float32(2.0**-LOW_BITS)
    both = torch.embedding_bag(
        lines, *(torch.from_numpy(array).to(lines.device, non_blocking=True) for array in (
            np.broadcast_to(places, parts.shape).ravel(), np.arange(0, parts.size, most))),
        False, 0, False, torch.from_numpy(parts.ravel()).to(lines.device, non_blocking=True),
    )[0]
    total, low = both.chunk(2)
    levels = total.add_(low.floor_(), alpha=2.0**-LOW_BITS).add_(0.5).floor_()
    return levels.clamp_(0, LEVELS - 1).view(n, size, -1)
