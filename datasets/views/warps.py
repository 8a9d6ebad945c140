"""AugMix's operations that move pixels: shears and rotations as Pillow's bilinear `transform` does them, to the bit.

Pillow works in float64, cuts fractions off, and is black where it would look outside the picture.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from . import compiled
from .compiled import Matrix

GUARD = 1e-9  # keeps 100 from being computed, and cut off, as 99.999…
AT_ONCE = 32  # images, outside of a CPU's loops


def matrix(name: str, value: float, size: int) -> Matrix:
    """Of an operation on images of so many pixels a side: a shear's slope, or degrees counter-clockwise."""
    match name:
        case "shear x":
            return 1.0, value, 0.0, 0.0, 1.0, 0.0
        case "shear y":
            return 1.0, 0.0, 0.0, value, 1.0, 0.0
    angle, centre = -math.radians(value % 360), size / 2
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    return cos, sin, cos * -centre + sin * -centre + centre, -sin, cos, -sin * -centre + cos * -centre + centre


def transform(images: Sequence[Tensor], matrices: Sequence[Matrix]) -> list[Tensor]:
    """Images, uint8 (3, S, S), each moved by its matrix."""
    if compiled.serves(images[0].device):
        moved = [torch.empty_like(image) for image in images]
        for image, by, result in zip(images, matrices, moved, strict=True):
            compiled.transform(image.numpy(), by, result.numpy())
        return moved
    return [image for start in range(0, len(images), AT_ONCE)
            for image in sampled(torch.stack(images[start : start + AT_ONCE]), matrices[start : start + AT_ONCE])]


def sampled(images: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """The same of tensors on any device. (n, 3, S, S)"""
    size, device = images.shape[-1], images.device
    middle = torch.arange(size, dtype=torch.float64, device=device) + 0.5
    a, b, c, d, e, f = torch.tensor(matrices, dtype=torch.float64).to(device, non_blocking=True).T[..., None, None]
    x, y = a * middle + b * middle[:, None] + c, d * middle + e * middle[:, None] + f  # (n, S, S)
    seen = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    grid = torch.stack([x, y], dim=-1) * 2 / size - 1
    levels = F.grid_sample(images.double(), grid, padding_mode="border", align_corners=False).add_(GUARD)
    return levels.mul_(seen[:, None]).byte()
