"""The views as Pillow makes them, one after the other: what the tensors of datasets/views are compared with.

The draws are those of the real thing; all else is Pillow's and torchvision's own.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image, ImageOps
from promptcal.datasets.views.crops import draw_crops
from torch import Tensor
from torchvision.transforms import InterpolationMode

CHAINS, LONGEST_CHAIN = 3, 3
LOWEST_LEVEL, SEVERITY = 0.1, 1.0

Operation = Callable[[Image.Image, float, int], Image.Image]  # (image, strength as a share, sign)


def affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


def translate(image: Image.Image, right: float, down: float) -> Image.Image:
    """What lies that share of a third of the width further on, black beyond the border. By whole pixels, so that a
    crop does it and nothing is interpolated."""
    left, top = int(right * image.width / 3), int(down * image.width / 3)
    return image.crop((left, top, left + image.width, top + image.height))


OPERATIONS: tuple[Operation, ...] = (
    lambda image, share, sign: ImageOps.autocontrast(image),
    lambda image, share, sign: ImageOps.equalize(image),
    lambda image, share, sign: ImageOps.posterize(image, 4 - int(share * 4)),
    lambda image, share, sign: image.rotate(sign * int(share * 30), resample=Image.Resampling.BILINEAR),
    lambda image, share, sign: ImageOps.solarize(image, 256 - int(share * 256)),
    lambda image, share, sign: affine(image, (1, sign * share * 0.3, 0, 0, 1, 0)),  # shear x
    lambda image, share, sign: affine(image, (1, 0, 0, sign * share * 0.3, 1, 0)),  # shear y
    lambda image, share, sign: translate(image, sign * share, 0),
    lambda image, share, sign: translate(image, 0, sign * share),
)


def chains(image: Image.Image, rng: np.random.Generator) -> Iterator[tuple[float, Image.Image]]:
    """AugMix's parts: the weight that the image itself keeps, then each chain's weight and result."""
    weights = rng.dirichlet(np.ones(CHAINS))
    keep = rng.beta(1, 1)
    yield keep, image
    for weight in weights:
        chain = image
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            chain = operation(chain, rng.uniform(LOWEST_LEVEL, SEVERITY) / 10, rng.choice((-1, 1)))
        yield (1 - keep) * weight, chain


def pixels(image: Image.Image) -> Tensor:
    """uint8 (3, H, W)"""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def plain_view(image: Image.Image, size: int) -> Image.Image:
    """CLIP's own preprocessing."""
    return F.center_crop(F.resize(image, size, InterpolationMode.BICUBIC), size)


def crops(image: Image.Image, count: int, size: int, rng: np.random.Generator) -> Iterator[Image.Image]:
    for (left, top, width, height), flip in zip(*draw_crops(image.size, count, rng), strict=True):
        view = image.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
        yield view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else view


def make_views(image: Image.Image, index: int, count: int, size: int, augmix: bool, seed: int) -> Tensor:
    """float32 (count, 3, size, size), from 0 to 255."""
    rng = np.random.default_rng([seed, index])
    views = [pixels(plain_view(image, size)).float()]
    for view in list(crops(image, count - 1, size, rng)):
        parts = chains(view, rng) if augmix else [(1, view)]
        views.append(sum(weight * pixels(part).double() for weight, part in parts).float())
    return torch.stack(views)
