"""The same views made by Pillow: the reference of tests and benchmark, and the fallback where numba
does not work.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from .geometry import ViewSpec, draw_crops

CHAINS, LONGEST_CHAIN = 3, 3
LOWEST_LEVEL, SEVERITY = 0.1, 1.0
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC


def affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=BILINEAR)


def translate(image: Image.Image, right: float, down: float) -> Image.Image:
    """Moves the content by whole pixels, given as shares of a third of the width.

    Black where nothing is left.
    """
    left, top = int(right * image.width / 3), int(down * image.width / 3)
    return image.crop((left, top, left + image.width, top + image.height))


# (image, strength as a share, sign)
OPERATIONS: tuple[Callable[[Image.Image, float, int], Image.Image], ...] = (
    lambda image, share, sign: ImageOps.autocontrast(image),
    lambda image, share, sign: ImageOps.equalize(image),
    lambda image, share, sign: ImageOps.posterize(image, 4 - int(share * 4)),
    lambda image, share, sign: image.rotate(sign * int(share * 30), resample=BILINEAR),
    lambda image, share, sign: ImageOps.solarize(image, 256 - int(share * 256)),
    lambda image, share, sign: affine(image, (1, sign * share * 0.3, 0, 0, 1, 0)),  # shear x
    lambda image, share, sign: affine(image, (1, 0, 0, sign * share * 0.3, 1, 0)),  # shear y
    lambda image, share, sign: translate(image, sign * share, 0),
    lambda image, share, sign: translate(image, 0, sign * share),
)


def chains(image: Image.Image, rng: np.random.Generator) -> Iterator[tuple[float, Image.Image]]:
    """The parts that AugMix sums: the image and its weight, then the result of each chain and its
    weight.
    """
    weights = rng.dirichlet(np.ones(CHAINS))
    keep = rng.beta(1, 1)
    yield keep, image
    for weight in weights:
        chain = image
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            chain = operation(
                chain, rng.uniform(LOWEST_LEVEL, SEVERITY) / 10, (-1, 1)[rng.integers(2)]
            )
        yield (1 - keep) * weight, chain


def plain_view(image: Image.Image, spec: ViewSpec) -> Image.Image:
    width, height, left, top = spec.plain_box(image.size)
    whole = image.resize((width, height), BICUBIC if spec.interpolation == "bicubic" else BILINEAR)
    return whole.crop((left, top, left + spec.size, top + spec.size))


def crops(
    image: Image.Image,
    count: int,
    size: int,
    rng: np.random.Generator,
    resample: Image.Resampling = BILINEAR,
) -> Iterator[Image.Image]:
    """Random crops, flipped half of the time.

    They are cropped before they are resized, as torchvision does: resizing a box would let the
    filter see what lies around it.
    """
    for (left, top, width, height), flip in zip(*draw_crops(image.size, count, rng), strict=True):
        view = image.crop((left, top, left + width, top + height)).resize((size, size), resample)
        yield view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view


def to_tensor(image: Image.Image) -> Tensor:
    """uint8 (3, H, W)"""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def make_views(image: Image.Image, index: int, spec: ViewSpec) -> Tensor:
    """As `ViewMaker`, up to the last bits of mixed views, which are summed in float64 here."""
    rng = np.random.default_rng([spec.seed, index])
    views = [plain_view(image, spec), *crops(image, spec.num_views - 1, spec.size, rng)]
    if not spec.augmix:
        return torch.stack([to_tensor(view) for view in views])
    mixed = [to_tensor(views[0]).float()]
    for view in views[1:]:
        parts = [weight * to_tensor(part).double() for weight, part in chains(view, rng)]
        mixed.append(torch.stack(parts).sum(0).float())
    return torch.stack(mixed)
