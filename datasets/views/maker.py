"""Makes the views of an image: the plain one first, then random crops, with AugMix or without."""
from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from . import reference
from .geometry import Pixels, ViewSpec, draw_crops
from .images import to_rgb
from .kernel_cache import compiled_kernels, numba_works


@dataclass(frozen=True)
class ViewMaker(ViewSpec):
    """Makes the views of an image."""

    # Memory of earlier views that no tensor refers to any more. New memory would take an eighth of
    # the time or more.
    free: deque[np.ndarray] = field(default_factory=deque, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, num_views: int, pixels: Pixels, augmix: bool, seed: int) -> ViewMaker:
        """Returns a maker of views for a backbone.

        Args:
            num_views: Number of views per image, the plain one included.
            pixels: The image tower's input.
            augmix: Whether the random views are mixed by AugMix.
            seed: Seed of the random views.
        """
        return cls(
            num_views=num_views,
            size=pixels.size,
            augmix=augmix,
            seed=seed,
            resize=pixels.resize,
            interpolation=pixels.interpolation,
        )

    def key(self) -> dict[str, object]:
        """Returns what the views depend on, apart from the image and its index."""
        pixels = Pixels(self.size, resize=self.resize, interpolation=self.interpolation)
        return {
            "num_views": self.num_views,
            "size": self.size,
            "augmix": self.augmix,
            "seed": self.seed,
            **pixels.non_default(),
        }

    def __call__(self, image: Image.Image, index: int, out: np.ndarray | None = None) -> Tensor:
        """Makes the views of an RGB image.

        Args:
            image: The image.
            index: Position of the image in its split, from which the random views are drawn.
            out: Memory for the views, as `new_memory` makes it; None = memory that is used again
                when no tensor refers to it any more.

        Returns:
            Pixel values from 0 to 255 (num_views, 3, size, size): uint8, or float32 that AugMix has
            not rounded.
        """
        if not numba_works():
            pillow_views = reference.make_views(image, index, self)
            if out is None:
                return pillow_views
            return torch.from_numpy(out).copy_(pillow_views)

        views = out
        if views is None:
            views = self.memory()
        # One row per view. View 0 is the plain one: the whole image, resized, then cut from its
        # centre. The others are crops, resized to the size of a view.
        crop = np.zeros((self.num_views, 4), np.int64)  # left, top, width, height in the image
        resized = np.full((self.num_views, 2), self.size)  # width and height after resizing
        offset = np.zeros((self.num_views, 2), np.int64)  # first column and row that are used
        flips = np.zeros(self.num_views, bool)  # whether a view is mirrored

        rng = np.random.default_rng([self.seed, index])
        crop[0] = (0, 0, *image.size)
        resized[0], offset[0] = self.plain_geometry(image.size)
        crop[1:], flips[1:] = draw_crops(image.size, self.num_views - 1, rng)
        boxes = np.concatenate([crop, resized, offset], axis=1)

        square = (3, self.size, self.size)
        if self.augmix:
            # The crops are needed only until they are mixed. AugMix has three of them in memory.
            crops = np.empty((3, *square), np.uint8)
            mixed = views
        else:
            crops = views
            mixed = np.empty((0, *square), np.float32)
        write_views = compiled_kernels()
        is_bicubic = self.interpolation == "bicubic"
        write_views(np.array(image), boxes, flips, is_bicubic, rng, crops, mixed)
        return torch.from_numpy(views)

    def new_memory(self) -> np.ndarray:
        """Allocates an array for the views of one image."""
        dtype = np.float32 if self.augmix else np.uint8
        return np.empty((self.num_views, 3, self.size, self.size), dtype)

    def memory(self) -> np.ndarray:
        """Returns an array for the views of one image, new or used before.

        It is used again after the last tensor that refers to it is gone.
        """
        try:
            owner = self.free.pop()
        except IndexError:
            owner = self.new_memory()
        # A tensor made of `views` keeps it alive. When it is gone, the memory behind it is free for
        # the views of another image; at the end of the process nobody needs it any more.
        views = owner.view()
        weakref.finalize(views, self.free.append, owner).atexit = False
        return views


def make_views(
    image: Image.Image, index: int, count: int = 64, size: int = 224, augmix: bool = True,
    seed: int = 0, out: Tensor | None = None,
) -> Tensor:
    """Makes the views of an image as a run does.

    The 64 views of an image take 38.5 MB. A loop over images is faster when it gives the same `out`
    to every call: the system hands out new memory page by page, and with eight threads that takes
    half of the time again. Each thread needs an `out` of its own, whose views must have been used
    before the next call:

        out = None
        for index, image in enumerate(images):
            out = make_views(image, index, out=out)
            features = encode(out)

    Args:
        image: A PIL image of any mode.
        index: Position of the image in its split, from which the random views are drawn.
        count: Number of views, the plain one included.
        size: Number of pixels per side.
        augmix: Whether the random views are mixed by AugMix.
        seed: Seed of the random views.
        out: Views of an earlier call with the same count, size and augmix, which are overwritten;
            None = new memory.

    Returns:
        Pixel values from 0 to 255 (count, 3, size, size), the plain view first: uint8, or float32
        with AugMix.
    """
    maker = ViewMaker(num_views=count, size=size, augmix=augmix, seed=seed)
    if out is None:
        return maker(to_rgb(image), index)
    dtype = torch.float32 if augmix else torch.uint8
    shape = (count, 3, size, size)
    is_plain_memory = out.device.type == "cpu" and out.is_contiguous()
    if tuple(out.shape) != shape or out.dtype != dtype or not is_plain_memory:
        raise ValueError(
            f"out must be a contiguous {dtype} tensor {shape} on the CPU, as make_views "
            f"returns it, not {out.dtype} {tuple(out.shape)} on {out.device}"
        )
    maker(to_rgb(image), index, out.numpy())
    return out
