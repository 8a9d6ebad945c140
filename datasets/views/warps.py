"""AugMix's operations that move pixels: shears and rotations as Pillow's bilinear `transform` does them, to the bit.

Pillow works in float64, cuts fractions off, and is black where it would look outside the picture.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from . import compiled
from .compiled import Matrix
from .devices import sent

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
    """The same with tensors on any device. (n, 3, S, S)"""
    size, device = images.shape[-1], images.device
    wide = size + 2
    padded = F.pad(images.float(), (1, 1, 1, 1), mode="replicate").flatten(2)  # half a pixel beyond, Pillow shows these
    middle = torch.arange(size, dtype=torch.float64, device=device) + 0.5
    a, b, c, d, e, f = sent(np.array(matrices).T[..., None, None], device)
    x, y = a * middle + b * middle[:, None] + c, d * middle + e * middle[:, None] + f  # (n, S, S)
    seen = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    x, y = x - 0.5, y - 0.5
    column, row = x.floor(), y.floor()
    right, down = (x - column)[:, None].flatten(2), (y - row)[:, None].flatten(2)  # weights, (n, 1, S · S)
    corner = ((row + 1) * wide + column + 1).where(seen, 0).long()[:, None].flatten(2).expand(-1, 3, -1)

    def across(start: int) -> Tensor:
        """Between two neighbours, of which the left one lies `start` beyond the corner."""
        left, other = (padded.gather(2, corner + place).double() for place in (start, start + 1))
        return left + (other - left) * right

    above, below = across(0), across(wide)
    return (above + (below - above) * down).byte().view(images.shape) * seen[:, None]
