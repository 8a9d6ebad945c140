"""The views of an image that test-time tuning looks at: the plain one first, then random crops."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import resample
from .augmix import Mix, draw_mix
from .chains import augmix
from .crops import draw_crops
from .images import to_rgb
from .jpeg import Undecoded, decoded
from .pixels import Pixels
from .resample import BICUBIC, BILINEAR, Axis


@dataclass(frozen=True)
class Recipe:
    """All draws for an image's views."""

    boxes: np.ndarray  # (count − 1, 4): left, top, width, height
    flips: np.ndarray  # (count − 1,)
    mixes: tuple[Mix, ...]  # one a crop; none without AugMix


@dataclass(frozen=True)
class Drawn:
    """A picture and all draws for its views: what is left to do is done where the model is."""

    picture: Tensor  # uint8 (H, W, 3), or the bytes (n,) of a JPEG that is decoded there
    recipe: Recipe
    size: tuple[int, int]  # width, height

    def pin_memory(self) -> Drawn:
        return replace(self, picture=self.picture.pin_memory())

    def decoded(self, device: torch.device) -> Drawn:
        """With a picture, where there are only a JPEG's bytes. Raises BadImageError if nobody can decode them."""
        return self if self.picture.dim() == 3 else replace(self, picture=decoded(self.picture, self.size, device))


@dataclass(frozen=True)
class ViewMaker:
    """Makes the views of an image. The draws depend on (seed, index) alone, never on order, process or device."""

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
        unusual = Pixels(self.size, resize=self.resize, interpolation=self.interpolation).non_default()
        return {"count": self.count, "size": self.size, "augmix": self.augmix, "seed": self.seed, **unusual}

    def __call__(self, image: Image.Image, index: int, device: torch.device | str = "cpu") -> Tensor:
        """Views (count, 3, size, size) of the RGB picture with this place in its split, as `make` makes them."""
        return self.make(self.prepare(image, index), device)

    def prepare(self, image: Image.Image | Undecoded, index: int) -> Drawn:
        """The part that a worker process does."""
        pixels = np.frombuffer(bytearray(image.data), np.uint8) if isinstance(image, Undecoded) else np.array(image)
        return Drawn(torch.from_numpy(pixels), self.draw(image.size, index), image.size)

    def draw(self, size: tuple[int, int], index: int) -> Recipe:
        """The draws for a picture so wide and high."""
        rng = np.random.default_rng([self.seed, index])
        boxes, flips = draw_crops(size, self.count - 1, rng)
        return Recipe(boxes, flips, tuple(draw_mix(self.size, rng) for _ in boxes) if self.augmix else ())

    def make(self, drawn: Drawn, device: torch.device | str) -> Tensor:
        """Pixel values from 0 to 255 on `device`: uint8, or float32, not rounded, where AugMix mixed them."""
        device, recipe = torch.device(device), drawn.recipe
        picture = drawn.decoded(device).picture.to(device, non_blocking=True)
        crops = self.crop(picture, recipe)
        if not recipe.mixes:
            return crops
        views = zeros(crops.shape, torch.float32, crops.device)
        views[0] = crops[0]
        augmix(crops[1:], recipe.mixes, views[1:])
        return views

    def crop(self, picture: Tensor, recipe: Recipe) -> Tensor:
        """The plain view and the crops of a picture (H, W, 3), uint8 (count, 3, size, size)."""
        crops = zeros((self.count, 3, self.size, self.size), torch.uint8, picture.device)
        crops[0] = plain_view(picture, self.size, self.resize, self.interpolation)
        left, top, width, height = recipe.boxes.T
        x, y = Axis(left, width, self.size, flip=recipe.flips), Axis(top, height, self.size)
        resample.resize(picture, x, y, BILINEAR, crops[1:])
        return crops


def zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """As torch.zeros. On a CPU numpy's memory, which comes in huge pages: to hand out small ones takes the system a
    fifth of the time of making the views."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, dtype=str(dtype).removeprefix("torch.")))


def make_views(
    image: Image.Image, index: int, count: int = 64, size: int = 224, augmix: bool = True, seed: int = 0,
    device: torch.device | str = "cpu",
) -> Tensor:
    """The views of a PIL image that has the place `index` in its data set: pixel values from 0 to 255
    (count, 3, size, size) on `device`, the plain view first; uint8, or float32 where AugMix mixed them."""
    return ViewMaker(count, size, augmix, seed)(to_rgb(image), index, device)


def plain_view(picture: Tensor, size: int, resize: str = "shortest", interpolation: str = "bicubic") -> Tensor:
    """A uint8 picture (H, W, 3) as CLIP sees it: shorter side to `size`, then the central square; or both sides to
    `size` (`squash`). uint8 (3, size, size)"""
    height, width = picture.shape[:2]
    short = min(width, height)
    whole = [size if resize == "squash" else int(size * side / short) for side in (width, height)]
    x, y = (
        Axis(np.array([0]), np.array([side]), full, first=round((full - size) / 2))
        for side, full in zip((width, height), whole, strict=True)
    )
    view = torch.empty(1, 3, size, size, dtype=torch.uint8, device=picture.device)
    resample.resize(picture, x, y, BICUBIC if interpolation == "bicubic" else BILINEAR, view)
    return view[0]
