"""AugMix at severity 1 (Hendrycks et al., ICLR 2020), as test-time prompt tuning uses it.

x̃ = m·x + (1 − m)·Σᵢ wᵢ·chainᵢ(x) with three chains of one to three operations, w ~ Dirichlet(1, 1, 1) and
m ~ Beta(1, 1). Mixing pixels is the same as mixing after normalisation, because the weights sum to one.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps

CHAINS = 3
LONGEST_CHAIN = 3
LOWEST_LEVEL, SEVERITY = 0.1, 1.0  # an operation's strength is drawn between these, on a scale that ends at 10

Operation = Callable[[Image.Image, float, float], Image.Image]  # (image, strength as a share, sign)


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


def augmix(image: Image.Image, rng: np.random.Generator) -> np.ndarray:
    """The mixed picture as uint8 (H, W, 3); every draw comes from `rng`."""
    weights = rng.dirichlet(np.ones(CHAINS))
    keep = rng.beta(1, 1)
    mixed = np.multiply(image, keep, dtype=np.float32)
    weighted = np.empty(mixed.shape)
    for weight in weights:
        chain = image
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            operation = OPERATIONS[rng.integers(len(OPERATIONS))]
            chain = operation(chain, rng.uniform(LOWEST_LEVEL, SEVERITY) / 10, rng.choice((-1, 1)))
        mixed += np.multiply(chain, (1 - keep) * weight, out=weighted)
    return mixed.round().clip(0, 255).astype(np.uint8)
