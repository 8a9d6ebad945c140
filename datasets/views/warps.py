"""AugMix's operations that move pixels: shears and rotations as Pillow's bilinear `transform` does them.

Pillow works in float64, cuts fractions off, and is black where it would look outside the picture. So does this; shears
get by with float32 and are Pillow's to the bit, rotations need float64 where what follows would magnify a difference of
one level. Images are uint8; the results are whole numbers in floating point.
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
MOST = 255  # that two pixels differ by


def margin(size: int) -> int:
    """Pixels that a shear (3 % of the side) reaches beyond the border, at most."""
    return size // 25 + 2


def on(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)


def batches(images: Sequence[Tensor]) -> Iterator[tuple[slice, Tensor]]:
    """Images (3, S, S) that are moved together, (n, 3, S, S), and their places: one by one on a CPU, in whose cache
    they then stay, else all at once."""
    if images[0].device.type == "cpu":
        yield from ((slice(i, i + 1), image[None]) for i, image in enumerate(images))
    else:
        yield slice(0, len(images)), torch.stack(list(images))


def shear(images: Sequence[Tensor], name: str, slopes: Sequence[float]) -> Iterator[Tensor]:
    """Row y (shear x) or column x (shear y) of an image moves by slope·(y + ½) pixels: between two pixels, with the
    same weights all along it. Each is to be used before the next is asked for, which overwrites it. (3, S, S)"""
    size, sideways, device = images[0].shape[-1], name == "shear x", images[0].device
    by = np.array(slopes)[:, None] * (np.arange(size) + 0.5)
    whole = np.floor(by)
    part, shift = by - whole, whole.astype(np.int64)  # (n, S)
    weights = on(device, safe_weights(part))[:, None]
    weights = weights[..., None] if sideways else weights[..., None, :]
    axis = -1 if sideways else -2
    # half a pixel beyond the border Pillow still shows the pixel at the border, then black
    forward = np.array(slopes)[:, None] > 0
    place = np.repeat(np.where(forward, size - 1 - shift, -1 - shift)[:, None], 3, axis=1)  # (n, 3, S)
    place = on(device, place).unsqueeze(axis)
    shown = on(device, ((part < 0.5) == forward)[:, None].astype(np.uint8)).unsqueeze(axis)
    border = on(device, np.where(forward, size - 1, 0)[..., None, None]).expand(place.shape)
    find = row_places if sideways else column_places
    found = [on(device, array) for array in find(shift, size)]
    pair = moved = None
    for some, image in batches(images):
        pairs = (row_pairs if sideways else column_pairs)(image, *(array[some] for array in found))
        if pair is None:
            pair = torch.empty(pairs.shape, device=device)
            moved = torch.empty(image.shape, device=device)
        pair.copy_(pairs)
        torch.lerp(pair.narrow(axis, 0, size), pair.narrow(axis, 1, size), weights[some], out=moved).floor_()
        edge = image.gather(axis, border[some]).mul_(shown[some])
        yield from moved.scatter_(axis, place[some], edge.float())


def safe_weights(parts: np.ndarray) -> np.ndarray:
    """Weights whose ⌊a + weight·(b − a)⌋ in float32 is what the weights given, float64, would make of any levels a, b.

    With k = b − a, ⌊k·w⌋ changes only where w passes a fraction with a denominator up to 255. Halfway between two of
    these neighbours k·w is at least 1/510 from any whole number, so that no rounding matters.
    """
    fractions = farey()
    above = np.searchsorted(fractions, parts, side="right")
    below = fractions[above - 1]
    return np.where(parts == below, parts, (below + fractions[above]) / 2).astype(np.float32)


@lru_cache(maxsize=1)
def farey() -> np.ndarray:
    """All fractions from 0 to 1 with denominators up to 255, ascending."""
    return np.unique(np.concatenate([np.arange(k + 1) / k for k in range(1, MOST + 1)]))


def row_places(shift: np.ndarray, size: int) -> tuple[np.ndarray]:
    """Where each row starts that a shear x of shift (n, S) looks at, in its padded image: (n, 3 · S)"""
    border = margin(size)
    start = np.arange(3 * size).reshape(3, size) * (size + 2 * border + 1) + (shift + border)[:, None]
    return (start.reshape(len(shift), -1),)


def row_pairs(images: Tensor, start: Tensor) -> Tensor:
    """Rows from the columns that `row_places` says, and one column more; black beyond the border. (n, 3, S, S + 1)

    All rows with all shifts are windows of one long vector, so one `index_select` copies them whole.
    """
    n, colours, size, _ = images.shape
    border = margin(size)
    wide = F.pad(images, (border, border + 1))
    table = wide.view(-1).as_strided((wide.numel() - size, size + 1), (1, 1))
    return table.index_select(0, of_all(start, wide[0].numel())).view(n, colours, size, size + 1)


def of_all(places: Tensor, step: int) -> Tensor:
    """Places (n, m) in each of n images, of `step` numbers each, as places in all of them, (n · m,)."""
    if len(places) > 1:
        places = places + step * torch.arange(len(places), device=places.device)[:, None]
    return places.reshape(-1)


def column_places(shift: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """For a shear y of shift (n, S): where blocks of columns start, from the least moved one on, in the padded image,
    (n, 3 · (S + 2) · blocks); and 255 where a column moves one pixel more, (n, 1, 1, S)."""
    border, blocks = margin(size), -(-size // BLOCK)
    least = np.minimum.reduceat(shift, np.arange(0, size, BLOCK), axis=1)  # (n, blocks)
    further = (shift > np.repeat(least, BLOCK, axis=1)[:, :size]) * np.uint8(255)
    row = np.arange(3)[:, None, None] * (size + 2 * border + 2) + np.arange(size + 2)[:, None]
    place = (row + (least + border)[:, None, None]) * blocks + np.arange(blocks)  # (n, 3, S + 2, blocks)
    return place.reshape(len(shift), -1), further[:, None, None]


def column_pairs(images: Tensor, place: Tensor, further: Tensor) -> Tensor:
    """Columns from the rows that `column_places` says, and one row more; black beyond the border. (n, 3, S + 1, S)

    One `index_select` copies blocks of columns from where their least moved one starts; those that move one pixel more
    are then taken from the next row.
    """
    n, colours, size, _ = images.shape
    border, blocks = margin(size), -(-size // BLOCK)
    tall = F.pad(images, (0, blocks * BLOCK - size, border, border + 2))
    rows = tall.view(-1, BLOCK).index_select(0, of_all(place, tall[0].numel() // BLOCK))
    rows = rows.view(n, colours, size + 2, blocks * BLOCK)[..., :size]
    here, below = rows[:, :, :-1], rows[:, :, 1:]
    # `torch.where` with bits, which is ten times as fast on a CPU
    return (here ^ below).bitwise_and_(further).bitwise_xor_(here)


def rotate(images: Sequence[Tensor], degrees: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Turned counter-clockwise about the centre. (3, S, S)"""
    grid, mask = rotation(images[0].shape[-1], degrees, dtype, images[0].device)
    for _, some in batches(images):
        turned = F.grid_sample(
            some.to(dtype), grid.expand(len(some), -1, -1, -1), padding_mode="border", align_corners=False,
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
