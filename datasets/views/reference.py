"""Makes the same views as the kernels by Pillow: reference of tests, and fallback without numba."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from .geometry import ViewSpec, draw_crops

# AugMix at severity 1, see `kernels`
CHAINS = 3
LONGEST_CHAIN = 3
LOWEST_LEVEL = 0.1
SEVERITY = 1.0
BILINEAR = Image.Resampling.BILINEAR
BICUBIC = Image.Resampling.BICUBIC


# AugMix's operations, with the ranges of its public code: 4 bits, 30 degrees, 256 levels, shears of
# 0.3 and a third of the width. All have the same arguments: the image, the strength as a share of
# the greatest one, and the direction, 1 or -1; some do not need all of them.


def autocontrast(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Stretches the levels of each colour to the whole range."""
    return ImageOps.autocontrast(image)


def equalize(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Spreads the levels of each colour evenly."""
    return ImageOps.equalize(image)


def posterize(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Keeps the highest bits of each level: four, or fewer where the share is large."""
    return ImageOps.posterize(image, 4 - int(share * 4))


def rotate(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Rotates by up to 30 degrees."""
    return image.rotate(sign * int(share * 30), resample=BILINEAR)


def solarize(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Inverts the levels above a threshold."""
    return ImageOps.solarize(image, 256 - int(share * 256))


def shear_x(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Shears along x by up to 0.3."""
    return affine(image, (1, sign * share * 0.3, 0, 0, 1, 0))


def shear_y(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Shears along y by up to 0.3."""
    return affine(image, (1, 0, 0, sign * share * 0.3, 1, 0))


def translate_x(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Moves along x by up to a third of the width."""
    return translate(image, sign * share, 0)


def translate_y(image: Image.Image, share: float, sign: int) -> Image.Image:
    """Moves along y by up to a third of the width."""
    return translate(image, 0, sign * share)


# In this order: a random number is the index of an operation.
OPERATIONS: tuple[Callable[[Image.Image, float, int], Image.Image], ...] = (
    autocontrast,
    equalize,
    posterize,
    rotate,
    solarize,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)


def affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    """Returns an image whose pixel (x, y) shows what lies at (a·x + b·y + c, d·x + e·y + f).

    Args:
        image: An RGB image.
        matrix: The numbers (a, b, c, d, e, f).
    """
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=BILINEAR)


def translate(image: Image.Image, right: float, down: float) -> Image.Image:
    """Moves the content by whole pixels. Black where nothing is left.

    Args:
        image: A square RGB image.
        right: Share of a third of the width by which the cut moves to the right.
        down: Share of a third of the width by which the cut moves down.
    """
    # The width counts on both axes, because views are square.
    left = int(right * image.width / 3)
    top = int(down * image.width / 3)
    return image.crop((left, top, left + image.width, top + image.height))


def chains(image: Image.Image, rng: np.random.Generator) -> Iterator[tuple[float, Image.Image]]:
    """Yields the parts that AugMix sums: the image, then the result of each chain, with weights.

    Args:
        image: An RGB view.
        rng: Source of the random numbers.
    """
    weights = rng.dirichlet(np.ones(CHAINS))
    image_weight = rng.beta(1, 1)
    yield image_weight, image
    for weight in weights:
        chain = image
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            # Drawn in the order in which the kernels draw.
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            share = rng.uniform(LOWEST_LEVEL, SEVERITY) / 10
            sign = (-1, 1)[rng.integers(2)]
            chain = operation(chain, share, sign)
        yield (1 - image_weight) * weight, chain


def plain_view(image: Image.Image, spec: ViewSpec) -> Image.Image:
    """Resizes an image and cuts its centre, as CLIP's own preprocessing does.

    Args:
        image: An RGB image.
        spec: The specification of the views.
    """
    resized_size, (left, top) = spec.plain_geometry(image.size)
    resample = BICUBIC if spec.interpolation == "bicubic" else BILINEAR
    resized = image.resize(resized_size, resample)
    return resized.crop((left, top, left + spec.size, top + spec.size))


def crops(
    image: Image.Image,
    count: int,
    size: int,
    rng: np.random.Generator,
    resample: Image.Resampling = BILINEAR,
) -> Iterator[Image.Image]:
    """Yields random crops, flipped half of the time.

    They are cropped before they are resized, as torchvision does: resizing a box would let the
    filter see what lies around it.

    Args:
        image: An RGB image.
        count: Number of crops.
        size: Number of pixels per side of a crop after resizing.
        rng: Source of the random numbers.
        resample: Pillow's filter.
    """
    boxes, flips = draw_crops(image.size, count, rng)
    for (left, top, width, height), flip in zip(boxes, flips, strict=True):
        crop = image.crop((left, top, left + width, top + height))
        view = crop.resize((size, size), resample)
        if flip:
            view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        yield view


def to_tensor(image: Image.Image) -> Tensor:
    """Returns an RGB image as uint8 (3, H, W)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def make_views(image: Image.Image, index: int, spec: ViewSpec) -> Tensor:
    """Makes the views of `ViewMaker`, up to the last bits of mixed ones, which float64 sums here.

    Args:
        image: An RGB image.
        index: Position of the image in its split, from which the random views are drawn.
        spec: The specification of the views.

    Returns:
        Pixel values from 0 to 255, (num_views, 3, size, size).
    """
    rng = np.random.default_rng([spec.seed, index])
    views = [plain_view(image, spec), *crops(image, spec.num_views - 1, spec.size, rng)]
    if not spec.augmix:
        return torch.stack([to_tensor(view) for view in views])
    mixed = [to_tensor(views[0]).float()]
    for view in views[1:]:
        parts = [weight * to_tensor(part).double() for weight, part in chains(view, rng)]
        mixed.append(torch.stack(parts).sum(0).float())
    return torch.stack(mixed)
