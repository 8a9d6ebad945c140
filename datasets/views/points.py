"""AugMix's operations that change each pixel on its own: Pillow's autocontrast, equalize, posterize and solarize.

Each is a table of 256 numbers a colour. Tables compose exactly, and so do histograms and tables: a chain of such
operations looks at the picture once.
"""
from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

LEVELS = 256
kept = threading.local()


def histogram(image: Tensor) -> Tensor:
    """How often each level occurs: uint8 (3, H, W) -> (3, 256)."""
    if image.device.type == "cpu":  # elsewhere `bincount` waits for the device
        return torch.stack([torch.bincount(plane.reshape(-1), minlength=LEVELS) for plane in image])
    return scattered(image)


def scattered(image: Tensor) -> Tensor:
    """A histogram without looking at numbers."""
    index = image.reshape(3, -1).long()
    counts = torch.zeros(3, LEVELS, dtype=torch.long, device=image.device)
    return counts.scatter_add_(1, index, torch.ones_like(index))


def look_up(images: Tensor, tables: Tensor, out: Tensor | None = None) -> Tensor:
    """Each pixel's entry in its table: uint8 (n, 3, H, W), (n, 3, 256) -> as the tables' type."""
    pixels = images.shape[-2] * images.shape[-1]
    found = None if out is None else out.view(-1, pixels)
    return torch.gather(tables.view(-1, LEVELS), 1, as_index(images).view(-1, pixels), out=found).view(images.shape)


def as_index(images: Tensor) -> Tensor:
    """int64. On a CPU in memory that each thread keeps until the next call: to be given so much anew may take
    longer than the look-up itself."""
    if images.device.type != "cpu":
        return images.long()
    if getattr(kept, "index", torch.empty(0)).shape != images.shape:
        kept.index = torch.empty(images.shape, dtype=torch.long)
    return kept.index.copy_(images)


@lru_cache(maxsize=8)
def identity(device: torch.device) -> Tensor:
    """The table that changes nothing. (256,)"""
    return torch.arange(LEVELS, device=device)


def compose(first: Tensor, then: Tensor) -> Tensor:
    """The table of one table after another. (n, 3, 256)"""
    return then.expand_as(first).gather(-1, first)


def histogram_after(counts: Tensor, tables: Tensor) -> Tensor:
    """The histogram of what a table makes of a picture with these counts."""
    return torch.zeros_like(counts).scatter_add_(-1, tables, counts)


def extremes(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The darkest and the brightest level (n, 3) of images (3, H, W)."""
    flat = [image.flatten(1) for image in images]
    return torch.stack([one.amin(1) for one in flat]), torch.stack([one.amax(1) for one in flat])


def extremes_of(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Those of pictures with these histograms (n, 3, 256)."""
    level = identity(counts.device)
    return torch.where(counts > 0, level, LEVELS).amin(-1), torch.where(counts > 0, level, -1).amax(-1)


def autocontrast(low: Tensor, high: Tensor) -> Tensor:
    """Stretches what lies between the extremes (n, 3) to 0–255, in float64 as Pillow does: (n, 3, 256)."""
    level = identity(low.device)
    low, high = low[..., None].double(), high[..., None].double()
    scale = 255.0 / (high - low).clamp(min=1)
    table = (level * scale).add_(-low * scale).trunc_().clamp_(0, 255).long()
    return torch.where(high > low, table, level)


def equalize(counts: Tensor) -> Tensor:
    """Spreads the levels so that all occur about as often. (n, 3, 256) -> (n, 3, 256)"""
    level = identity(counts.device)
    highest = torch.where(counts > 0, level, -1).amax(-1, keepdim=True)
    below = counts.cumsum(-1)
    step = (below[..., -1:] - counts.gather(-1, highest.clamp(min=0))) // 255
    table = (step // 2 + below - counts) // step.clamp(min=1)
    return torch.where(step > 0, table.clamp_(max=255), level)


@lru_cache(maxsize=64)
def posterize(bits: int, device: torch.device) -> Tensor:
    """Keeps the highest bits. (3, 256)"""
    return (identity(device) & (0xFF << (8 - bits)) & 0xFF).expand(3, -1)


@lru_cache(maxsize=512)
def solarize(threshold: int, device: torch.device) -> Tensor:
    """Inverts levels from a threshold on. (3, 256)"""
    level = identity(device)
    return torch.where(level < threshold, level, 255 - level).expand(3, -1)
