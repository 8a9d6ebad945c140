"""AugMix's operations that move pixels: shears, rotations and translations as Pillow's bilinear `transform` does them.

Pillow works in float64, cuts fractions off, and is black where it would look outside the picture. So does this, in
float64 where what follows would magnify a difference of one level, else in float32.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .resample import to_bytes

GUARD = {torch.float32: 1e-4, torch.float64: 1e-9}  # keeps 100 from being computed, and cut off, as 99.999…


def margin(size: int) -> int:
    """Pixels that shears (3 % of the side) and translations (a thirtieth) reach beyond the border, at most."""
    return size // 25 + 2


def translate(image: Tensor, right: int, down: int) -> Tensor:
    """What lies so many pixels further on in an image (3, S, S), black beyond the border as in Pillow's `crop`."""
    size = image.shape[-1]
    here, there = [[slice(max(-by, 0), size - max(by, 0)) for by in move] for move in ((down, right), (-down, -right))]
    moved = torch.zeros_like(image)
    moved[:, *here] = image[:, *there]
    return moved


def shear_x(images: Tensor, slopes: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Row y moves by slope·(y + ½) pixels: between two pixels, with the same weights all along the row. (n, 3, S, S)"""
    size, device = images.shape[-1], images.device
    move = np.array(slopes)[:, None] * (np.arange(size) + 0.5)  # (n, S)
    whole = np.floor(move)
    part = move - whole
    shown = inside(size, device).index_select(0, on(device, whole + (part >= 0.5) + margin(size)).long().view(-1))
    pair = windows(images, whole.astype(np.int64), size + 1).to(dtype)
    left, right = pair[..., :-1], pair[..., 1:]
    between = (right - left).mul_(on(device, part).to(dtype)[:, None, :, None]).add_(left)
    return to_bytes(between).bitwise_and_(shown.view(-1, 1, size, size))


def windows(images: Tensor, shift: np.ndarray, width: int) -> Tensor:
    """Row y of image i from column shift[i, y] on; black beyond the border but for one pixel that repeats it.
    uint8 (n, 3, S, S), (n, S) -> (n, 3, S, width).

    All rows with all shifts are windows of one long vector, so one `index_select` copies them whole.
    """
    n, colours, size, _ = images.shape
    border = margin(size)
    wide = F.pad(images, (border, border + 1))
    wide[..., border - 1] = images[..., 0]
    wide[..., border + size] = images[..., -1]
    line = wide.shape[-1]
    row = np.arange(n * colours * size).reshape(n, colours, size) * line
    table = wide.view(-1).as_strided((wide.numel() - width + 1, width), (1, 1))
    start = on(images.device, (row + (shift + border)[:, None]).reshape(-1))
    return table.index_select(0, start).view(n, colours, size, width)


@lru_cache(maxsize=8)
def inside(size: int, device: torch.device) -> Tensor:
    """Row i says where a row that is moved by i − margin pixels still shows the picture: 255 there, 0 elsewhere."""
    border = margin(size)
    line = F.pad(torch.full((size,), 255, dtype=torch.uint8, device=device), (border, border))
    return line.as_strided((2 * border + 1, size), (1, 1))


def on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def shear_y(images: Tensor, slopes: Sequence[float], dtype: torch.dtype) -> Tensor:
    return shear_x(images.mT.contiguous(), slopes, dtype).mT.contiguous()


def rotate(images: Tensor, degrees: int, dtype: torch.dtype) -> Tensor:
    """Turned counter-clockwise about the centre."""
    grid, mask = rotation(images.shape[-1], degrees, dtype, images.device)
    turned = F.grid_sample(
        images.to(dtype), grid.expand(len(images), -1, -1, -1), padding_mode="border", align_corners=False,
    )
    return to_bytes(turned.add_(GUARD[dtype])).bitwise_and_(mask)


@lru_cache(maxsize=64)
def rotation(size: int, degrees: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each pixel looks, (1, S, S, 2), in `grid_sample`'s terms, and 255 where that lies in the picture."""
    angle = -math.radians(degrees % 360)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    row, column = torch.meshgrid(*[torch.arange(size, dtype=torch.float64) + 0.5] * 2, indexing="ij")
    centre = size / 2
    x = cos * column + sin * row + (cos * -centre + sin * -centre + centre)
    y = -sin * column + cos * row + (-sin * -centre + cos * -centre + centre)
    mask = ((x >= 0) & (x < size) & (y >= 0) & (y < size)).byte() * 255
    grid = torch.stack([x, y], dim=-1) * 2 / size - 1
    return grid[None].to(dtype).to(device), mask.to(device)
