"""Where random crops lie."""
from __future__ import annotations

import numpy as np

SCALE = (0.08, 1.0)  # share of the picture's area that a crop covers
RATIO = (3 / 4, 4 / 3)  # width by height of a crop
ATTEMPTS = 10  # draws of a crop that fits, before the largest central one is taken


def draw_crops(size: tuple[int, int], count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (count, 4) as left, top, width, height, and flips (count,), distributed as torchvision's
    RandomResizedCrop and RandomHorizontalFlip(0.5) draw them, all at once."""
    width, height = size
    area = width * height * rng.uniform(*SCALE, (count, ATTEMPTS))
    ratio = np.exp(rng.uniform(*np.log(RATIO), (count, ATTEMPTS)))
    widths, heights = np.sqrt(area * ratio).round().astype(int), np.sqrt(area / ratio).round().astype(int)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first, row = fits.argmax(axis=1), np.arange(count)
    corner = rng.random((count, 2))
    flips = rng.random(count) < 0.5

    central = largest_central(width, height)
    found = fits[row, first]
    w = np.where(found, widths[row, first], central[0])
    h = np.where(found, heights[row, first], central[1])
    left = np.where(found, (corner[:, 0] * (width - w + 1)).astype(int), (width - w) // 2)
    top = np.where(found, (corner[:, 1] * (height - h + 1)).astype(int), (height - h) // 2)
    return np.stack([left, top, w, h], axis=1), flips


def largest_central(width: int, height: int) -> tuple[int, int]:
    """The largest box whose ratio is allowed: for pictures so long that no random crop fits."""
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    return (width, max(round(width / ratio), 1)) if width / height < ratio else (max(round(height * ratio), 1), height)
