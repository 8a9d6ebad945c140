"""AugMix's operations that change each pixel on its own: Pillow's autocontrast, equalize, posterize and solarize.

Each is a table of 256 numbers a colour. Tables compose exactly, and so do histograms and tables: a chain of such
operations looks at the picture once.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from . import compiled
from .compiled import LEVELS


def histogram(image: Tensor) -> Tensor:
    """How often each level occurs: uint8 (3, H, W) -> (3, 256)."""
    if compiled.serves(image.device):
        return torch.from_numpy(compiled.histogram(image.numpy()))
    index = image.reshape(3, -1).long()  # no `bincount`, which waits for the device
    counts = torch.zeros(3, LEVELS, dtype=torch.long, device=image.device)
    return counts.scatter_add_(1, index, torch.ones_like(index))


def look_up(image: Tensor, table: Tensor) -> Tensor:
    """Each pixel's entry in its colour's table, uint8 (3, 256): as the image, uint8 (3, S, S)."""
    if not compiled.serves(image.device):
        return table.gather(1, image.flatten(1).long()).view(image.shape)
    found = torch.empty_like(image)
    compiled.look_up(image.numpy(), table.numpy(), found.numpy())
    return found


def look_up_and_add(image: Tensor, table: Tensor, total: Tensor) -> None:
    """Adds the entries in a table of float32."""
    if compiled.serves(image.device):
        compiled.look_up_and_add(image.numpy(), table.numpy(), total.numpy())
    else:
        total.add_(table.gather(1, image.flatten(1).long()).view(image.shape))


def add(image: Tensor, weight: float, total: Tensor) -> None:
    """Adds an image, uint8 (3, S, S), times its weight."""
    if compiled.serves(image.device):
        compiled.add(image.numpy(), np.float32(weight), total.numpy())
    else:
        total.add_(image, alpha=weight)


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
    scale = torch.full_like(low, 255) / (high - low).clamp(min=1)  # a number by a tensor would be rounded twice
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
