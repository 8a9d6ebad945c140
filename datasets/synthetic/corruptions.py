"""Four corruptions of LandCover's tiles at five severities: one of each group of ImageNet-C.

The names and the idea are those of Hendrycks and Dietterich (ICLR 2019); the strengths are chosen for these tiles.
"""
from __future__ import annotations

import numpy as np
from numpy.random import Generator

from .canvas import SIZE, fractal_noise

# By severity, 1 to 5.
STRENGTHS = {
    "gaussian_noise": (0.03, 0.06, 0.09, 0.12, 0.16),  # standard deviation; white is 1
    "defocus_blur": (1.5, 2.5, 3.5, 5.0, 7.0),  # radius of the disc in pixels
    "fog": (0.15, 0.25, 0.35, 0.45, 0.58),  # mean cover
    "contrast": (0.7, 0.55, 0.42, 0.32, 0.22),  # what is left of it
}


def corrupt(tile: np.ndarray, corruption: str, severity: int, rng: Generator) -> np.ndarray:
    """A tile (SIZE, SIZE, 3) of bytes under a corruption. With equal generators, severities differ only in strength."""
    image, strength = tile.astype(np.float64) / 255, STRENGTHS[corruption][severity - 1]
    match corruption:
        case "gaussian_noise":
            image = image + rng.normal(0, strength, image.shape)
        case "defocus_blur":
            image = blurred(image, strength)
        case "fog":
            cover = strength * (0.7 + 0.6 * fractal_noise(rng, SIZE, 2, 3)[..., None])
            image = image + np.clip(cover, 0, 1) * (0.85 - image)
        case "contrast":
            image = (image - image.mean((0, 1))) * strength + image.mean((0, 1))
    return (np.clip(image, 0, 1) * 255).round().astype(np.uint8)


def blurred(image: np.ndarray, radius: float) -> np.ndarray:
    """The mean over a disc with a soft edge; beyond the image its border is repeated."""
    reach = int(np.ceil(radius))
    padded = np.pad(image, ((reach, reach), (reach, reach), (0, 0)), mode="edge")
    offsets = np.arange(-reach, reach + 1)
    disc = np.clip(radius + 0.5 - np.hypot(*np.meshgrid(offsets, offsets)), 0, 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, disc.shape, axis=(0, 1))  # (SIZE, SIZE, 3, w, w)
    return np.einsum("hwcij,ij->hwc", windows, disc / disc.sum())
