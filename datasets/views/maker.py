"""The views of an image that test-time tuning looks at: the plain one first, then random crops."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .augmix import Mix, draw_mix
from .chains import augmix
from .crops import draw_crops
from .images import to_rgb
from .pixels import Pixels
from .resample import BICUBIC, BILINEAR, Axis, Filter, resize

# On a CPU, pixels that are worked on together: what that needs stays in its caches.
CPU_PIXELS = 4 * 224**2


@dataclass(frozen=True)
class Recipe:
    """All draws for an image's views."""

    boxes: np.ndarray  # (count − 1, 4): left, top, width, height
    flips: np.ndarray  # (count − 1,)
    mixes: tuple[Mix, ...]  # one a crop; none without AugMix


@dataclass(frozen=True)
class Drawn:
    """A decoded picture and all draws for its views: what is left to do is done where the model is."""

    picture: Tensor  # uint8 (H, W, 3)
    recipe: Recipe

    def pin_memory(self) -> Drawn:
        return Drawn(self.picture.pin_memory(), self.recipe)


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
        unusual = Pixels(self.size, resize=self.resize, interpolation=self.interpolation).unusual()
        return {"count": self.count, "size": self.size, "augmix": self.augmix, "seed": self.seed, **unusual}

    def __call__(self, image: Image.Image, index: int, device: torch.device | str = "cpu") -> Tensor:
        """Views (count, 3, size, size) of the RGB picture with this place in its split, as `make` makes them."""
        return self.make(self.prepare(image, index), device)

    def prepare(self, image: Image.Image, index: int) -> Drawn:
        """The part that a worker process does."""
        return Drawn(torch.from_numpy(np.array(image)), self.draw(image.size, index))

    def draw(self, size: tuple[int, int], index: int) -> Recipe:
        """The draws for a picture so wide and high."""
        rng = np.random.default_rng([self.seed, index])
        boxes, flips = draw_crops(size, self.count - 1, rng)
        return Recipe(boxes, flips, tuple(draw_mix(self.size, rng) for _ in boxes) if self.augmix else ())

    def make(self, drawn: Drawn, device: torch.device | str) -> Tensor:
        """Pixel values from 0 to 255 on `device`: uint8, or with AugMix float32, not rounded."""
        picture, recipe = drawn.picture.to(device, non_blocking=True), drawn.recipe
        at_once = max(1, CPU_PIXELS // self.size**2) if picture.device.type == "cpu" else self.count
        crops = torch.empty(self.count, 3, self.size, self.size, dtype=torch.uint8, device=picture.device)
        crops[0] = plain_view(picture, self.size, self.resize, self.interpolation)
        left, top, width, height = recipe.boxes.T
        x, y = Axis(left, width, self.size, flip=recipe.flips), Axis(top, height, self.size)
        for chosen, views in resized(picture, x, y, self.size, BILINEAR, -(-at_once // 4)):
            for i, view in zip(chosen, views, strict=True):
                crops[i + 1] = view
        if not recipe.mixes:
            return crops
        views = torch.empty_like(crops, dtype=torch.float32)
        views[0] = crops[0]
        for start in range(1, self.count, at_once):
            chosen = slice(start, start + at_once)
            views[chosen] = augmix(crops[chosen], recipe.mixes[start - 1 : start - 1 + at_once])
        return views


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
    ((_, view),) = resized(picture, x, y, size, BICUBIC if interpolation == "bicubic" else BILINEAR, 1)
    return view[0]


def resized(
    picture: Tensor, x: Axis, y: Axis, size: int, kind: Filter, at_once: int,
) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of views and the views themselves, uint8 (n, 3, size, size), of a picture (H, W, 3).

    Which axis Pillow resizes first makes a difference of one level in some pixels. Since version 13 that is the
    vertical one if it shrinks, and by more than twice as many pixels as the other.
    """
    shrinks = y.length - y.full
    rows_first = (shrinks > 0) & (shrinks > 2 * (x.length - x.full))
    for chosen, first, second, order in ((~rows_first, x, y, (2, 1, 0)), (rows_first, y, x, (2, 0, 1))):
        places = np.flatnonzero(chosen).tolist()
        if places:
            planes = picture.permute(order).contiguous()
            for start, views in enumerate(resize(planes, first[chosen], second[chosen], size, kind, at_once)):
                yield places[start * at_once :][: at_once], views if first is x else views.mT.contiguous()

