"""The views of an image that test-time tuning looks at: the plain one first, then random crops."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode

from .augmix import augmix
from .pixels import Pixels

SCALE = (0.08, 1.0)  # share of the picture's area that a crop covers
RATIO = (3 / 4, 4 / 3)  # width by height of a crop
ATTEMPTS = 10  # draws of a crop that fits, before the largest central one is taken


@dataclass(frozen=True)
class ViewMaker:
    """Makes the views of an image. The draws depend on (seed, index) alone, never on order or process."""

    count: int  # views an image, the plain one included
    size: int  # pixels a side
    augmix: bool
    seed: int
    resize: str = "shortest"  # how the plain view gets its size, see Pixels
    interpolation: str = "bicubic"

    @classmethod
    def of(cls, count: int, pixels: Pixels, augmix: bool, seed: int) -> ViewMaker:
        """Views as a backbone wants them."""
        return cls(count, pixels.size, augmix, seed, pixels.resize, pixels.interpolation)

    def key(self) -> dict[str, object]:
        """What tells the views of two makers apart; what is OpenAI's way, the only one of version 0.1, goes unsaid."""
        unusual = Pixels(self.size, resize=self.resize, interpolation=self.interpolation).unusual()
        return {"count": self.count, "size": self.size, "augmix": self.augmix, "seed": self.seed, **unusual}

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """uint8 views (count, 3, size, size) of the RGB picture with this place in its split."""
        rng = np.random.default_rng([self.seed, index])
        views = [np.asarray(plain_view(image, self.size, self.resize, self.interpolation))]
        for (left, top, width, height), flip in zip(*draw_crops(image.size, self.count - 1, rng), strict=True):
            view = image.crop((left, top, left + width, top + height))
            view = view.resize((self.size, self.size), Image.Resampling.BILINEAR)
            if flip:
                view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            views.append(augmix(view, rng) if self.augmix else np.asarray(view))
        return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()


def plain_view(
    image: Image.Image, size: int, resize: str = "shortest", interpolation: str = "bicubic",
) -> Image.Image:
    """CLIP's own preprocessing: shorter side to `size` (bicubic), then the central square; or as a backbone has it."""
    shape = [size, size] if resize == "squash" else size
    return F.center_crop(F.resize(image, shape, InterpolationMode(interpolation)), size)


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
