"""The views of an image for test-time adaptation: the plain one first, then random crops, with AugMix or without."""
from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import reference
from .geometry import ViewSpec, draw_crops
from .images import to_rgb
from .kernel_cache import compiled_kernels, numba_works
from .pixels import Pixels


@dataclass(frozen=True)
class ViewMaker(ViewSpec):
    """Makes the views of an image."""

    # Memory of earlier views that no tensor refers to any more. New memory would take an eighth of the time or more.
    free: deque[np.ndarray] = field(default_factory=deque, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, num_views: int, pixels: Pixels, augmix: bool, seed: int) -> ViewMaker:
        """Views as a backbone needs them."""
        return cls(num_views, pixels.size, augmix, seed, pixels.resize, pixels.interpolation)

    def key(self) -> dict[str, object]:
        """What the views depend on, apart from the image and its index."""
        other = Pixels(self.size, resize=self.resize, interpolation=self.interpolation).non_default()
        return {"num_views": self.num_views, "size": self.size, "augmix": self.augmix, "seed": self.seed, **other}

    def warm_up(self) -> None:
        """Compiles the kernels if that is necessary. In the main thread Ctrl-C can interrupt it."""
        if numba_works():
            compiled_kernels()

    def __call__(self, image: Image.Image, index: int) -> Tensor:
        """Views (num_views, 3, size, size) of the RGB image at position `index` of its split: pixel values from 0 to
        255, uint8, or float32 that AugMix has not rounded."""
        if not numba_works():
            return reference.make_views(image, index, self)
        rng = np.random.default_rng([self.seed, index])
        boxes, flips = np.zeros((self.num_views, 8), np.int64), np.zeros(self.num_views, bool)
        boxes[0, 2:] = *image.size, *self.plain_box(image.size)
        boxes[1:, :4], flips[1:] = draw_crops(image.size, self.num_views - 1, rng)
        boxes[1:, 4:6] = self.size
        views = self.memory()
        square = 3, self.size, self.size
        crops, mixed = (np.empty((3, *square), np.uint8), views) if self.augmix else (
            views, np.empty((0, *square), np.float32))
        compiled_kernels()(np.array(image), boxes, flips, self.interpolation == "bicubic", rng, crops, mixed)
        return torch.from_numpy(views)

    def memory(self) -> np.ndarray:
        """An array for the views. It is used again after the last tensor that refers to it is gone."""
        try:
            owner = self.free.pop()
        except IndexError:
            dtype = np.float32 if self.augmix else np.uint8
            owner = np.empty((self.num_views, 3, self.size, self.size), dtype)
        lent = owner.view()
        weakref.finalize(lent, self.free.append, owner).atexit = False
        return lent


def make_views(
    image: Image.Image, index: int, count: int = 64, size: int = 224, augmix: bool = True, seed: int = 0,
) -> Tensor:
    """The views of a PIL image at position `index` of its data set: pixel values from 0 to 255 (count, 3, size, size),
    the plain view first; uint8, or float32 with AugMix."""
    return ViewMaker(count, size, augmix, seed)(to_rgb(image), index)
