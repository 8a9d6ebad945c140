"""What views are made, and where in an image they are cut."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SCALE = (0.08, 1.0)  # share of the image's area that a crop covers
RATIO = (3 / 4, 4 / 3)  # width by height of a crop
ATTEMPTS = 10  # draws of a crop that fits, before the largest central one is taken


@dataclass(frozen=True)
class ViewSpec:
    """What the views of an image are.

    Draws depend on (seed, index) alone, never on order or thread.
    """

    num_views: int  # per image, the plain one included
    size: int  # pixels per side
    augmix: bool
    seed: int
    resize: str = "shortest"  # how the plain view gets its size, see Pixels
    interpolation: str = "bicubic"

    def plain_box(self, size: tuple[int, int]) -> tuple[int, int, int, int]:
        """The plain view of an image of this width and height.

        Returns:
            The width and height to which the image is resized, and the first column and row that
            are kept.
        """
        if self.resize == "squash":
            return self.size, self.size, 0, 0
        width, height = (int(self.size * side / min(size)) for side in size)
        return width, height, round((width - self.size) / 2), round((height - self.size) / 2)


def draw_crops(
    size: tuple[int, int], count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes (count, 4) as left, top, width, height, and flips (count,), distributed as
    torchvision's RandomResizedCrop and RandomHorizontalFlip(0.5) draw them, all at once.
    """
    width, height = size
    area = width * height * rng.uniform(*SCALE, (count, ATTEMPTS))
    lowest, highest = np.log(RATIO)
    ratio = np.exp(rng.uniform(lowest, highest, (count, ATTEMPTS)))
    widths, heights = (
        np.sqrt(area * ratio).round().astype(int),
        np.sqrt(area / ratio).round().astype(int),
    )
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first, row = fits.argmax(axis=1), np.arange(count)
    corner = rng.random((count, 2))
    flips = rng.random(count) < 0.5

    # Images so long that no crop fits: the largest central box whose ratio is allowed.
    limit = min(max(width / height, RATIO[0]), RATIO[1])
    is_tall = width / height < limit
    central = (
        (width, max(round(width / limit), 1))
        if is_tall
        else (max(round(height * limit), 1), height)
    )
    found = fits[row, first]
    w = np.where(found, widths[row, first], central[0])
    h = np.where(found, heights[row, first], central[1])
    left = np.where(found, (corner[:, 0] * (width - w + 1)).astype(int), (width - w) // 2)
    top = np.where(found, (corner[:, 1] * (height - h + 1)).astype(int), (height - h) // 2)
    return np.stack([left, top, w, h], axis=1), flips
