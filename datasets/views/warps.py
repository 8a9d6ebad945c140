"""AugMix's operations that move pixels: shears and rotations as Pillow's bilinear `transform` does them.

Pillow works in float64, cuts fractions off, and is black where it would look outside the picture. So does this, in
float64 where what follows would magnify a difference of one level, else in float32. Images are uint8; the results are
whole numbers in that type.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

GUARD = {torch.float32: 1e-4, torch.float64: 1e-9}  # keeps 100 from being computed, and cut off, as 99.999…
BLOCK = 32  # columns: a shear moves neighbours by less than 1/32 pixel more, so a block by two whole numbers at most


def margin(size: int) -> int:
    """Pixels that a shear (3 % of the side) reaches beyond the border, at most."""
    return size // 25 + 2


def on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def shear(images: Tensor, name: str, slopes: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Row y (shear x) or column x (shear y) of an image moves by slope·(y + ½) pixels: between two pixels, with the
    same weights all along it. The slopes are all positive or all negative. (n, 3, S, S)"""
    n, _, size, _ = images.shape
    sideways, device = name == "shear x", images.device
    by = np.array(slopes)[:, None] * (np.arange(size) + 0.5)
    whole = np.floor(by).astype(np.int64)  # (n, S)
    part = by - whole
    pairs = row_pairs(images, whole) if sideways else column_pairs(images, whole)
    weight = on(device, part.astype(str(dtype).removeprefix("torch.")))
    weight = weight[:, None, :, None] if sideways else weight[:, None, None]
    axis = -1 if sideways else -2
    moved = torch.empty(images.shape, dtype=dtype, device=device)
    for some in at_once(n, device):
        pair = pairs[some].to(dtype)
        torch.lerp(pair.narrow(axis, 0, size), pair.narrow(axis, 1, size), weight[some], out=moved[some]).floor_()
    # half a pixel beyond the border Pillow still shows the pixel at the border, then black
    forward = slopes[0] > 0
    place = np.repeat((size - 1 - whole if forward else -1 - whole)[:, None], 3, axis=1)  # where that is, (n, 3, S)
    shown = on(device, ((part < 0.5) == forward)[:, None])
    edge = (images.select(axis, size - 1 if forward else 0) * shown).to(dtype)
    return moved.scatter_(axis, on(device, place).unsqueeze(axis), edge.unsqueeze(axis))


def at_once(n: int, device: torch.device) -> list[slice]:
    """Images that are interpolated together: one by one on a CPU, in whose cache they then stay."""
    return [slice(i, i + 1) for i in range(n)] if device.type == "cpu" else [slice(n)]


def row_pairs(images: Tensor, shift: np.ndarray) -> Tensor:
    """Row y of image i from column shift[i, y] on, and one column more; black beyond the border. (n, 3, S, S + 1)

    All rows with all shifts are windows of one long vector, so one `index_select` copies them whole.
    """
    n, colours, size, _ = images.shape
    border = margin(size)
    wide = F.pad(images, (border, border + 1))
    table = wide.view(-1).as_strided((wide.numel() - size, size + 1), (1, 1))
    start = np.arange(n * colours * size).reshape(n, colours, size) * wide.shape[-1] + (shift + border)[:, None]
    return table.index_select(0, on(images.device, start.reshape(-1))).view(n, colours, size, size + 1)


def column_pairs(images: Tensor, shift: np.ndarray) -> Tensor:
    """Column x of image i from row shift[i, x] on, and one row more; black beyond the border. (n, 3, S + 1, S)

    One `index_select` copies blocks of columns from where their least moved one starts; those that move one pixel more
    are then taken from the next row.
    """
    n, colours, size, _ = images.shape
    border, blocks = margin(size), -(-size // BLOCK)
    least = np.minimum.reduceat(shift, np.arange(0, size, BLOCK), axis=1)  # (n, blocks)
    further = (shift > np.repeat(least, BLOCK, axis=1)[:, :size]) * np.uint8(255)
    tall = F.pad(images, (0, blocks * BLOCK - size, border, border + 2))
    row = np.arange(n * colours).reshape(n, colours, 1, 1) * tall.shape[2] + np.arange(size + 2)[:, None]
    place = (row + (least + border)[:, None, None]) * blocks + np.arange(blocks)  # (n, 3, S + 2, blocks)
    rows = tall.view(-1, BLOCK).index_select(0, on(images.device, place.reshape(-1)))
    rows = rows.view(n, colours, size + 2, blocks * BLOCK)[..., :size]
    here, below = rows[:, :, :-1], rows[:, :, 1:]
    # `torch.where` with bits, which is ten times as fast on a CPU
    return (here ^ below).bitwise_and_(on(images.device, further)[:, None, None]).bitwise_xor_(here)


def rotate(images: Tensor, degrees: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Turned counter-clockwise about the centre, one after the other. (n, 3, S, S)"""
    grid, mask = rotation(images.shape[-1], degrees, dtype, images.device)
    for some in at_once(len(images), images.device):
        turned = F.grid_sample(
            images[some].to(dtype), grid.expand(len(images[some]), -1, -1, -1), padding_mode="border",
            align_corners=False,
        )
        yield from turned.add_(GUARD[dtype]).floor_().mul_(mask)


@lru_cache(maxsize=64)
def rotation(size: int, degrees: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each pixel looks, (1, S, S, 2), in `grid_sample`'s terms, and 1 where that lies in the picture, else 0."""
    angle = -math.radians(degrees % 360)
    cos, sin = round(math.cos(angle), 15), round(math.sin(angle), 15)
    row, column = torch.meshgrid(*[torch.arange(size, dtype=torch.float64) + 0.5] * 2, indexing="ij")
    centre = size / 2
    x = cos * column + sin * row + (cos * -centre + sin * -centre + centre)
    y = -sin * column + cos * row + (-sin * -centre + cos * -centre + centre)
    mask = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    grid = torch.stack([x, y], dim=-1) * 2 / size - 1
    return grid[None].to(dtype).to(device), mask.to(dtype).to(device)
