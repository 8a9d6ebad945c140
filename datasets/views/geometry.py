"""Says what images a backbone takes, what views are made of an image, and where they are cut.

This module does not import torch, so that a config can be read and a cache be found without it.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..utils.errors import ConfigError

# Mean and standard deviation of red, green and blue in OpenAI's training data
OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
RESIZES = ("shortest", "squash")
INTERPOLATIONS = ("bicubic", "bilinear")
SCALE = (0.08, 1.0)  # share of the image's area that a crop covers
RATIO = (3 / 4, 4 / 3)  # width by height of a crop
ATTEMPTS = 10  # draws of a crop that fits, before the largest central one is taken


@dataclass(frozen=True)
class Pixels:
    """How the plain view is made, and how every view is normalised. The defaults are OpenAI's."""

    size: int  # pixels per side
    mean: tuple[float, ...] = OPENAI_MEAN
    std: tuple[float, ...] = OPENAI_STD
    # shortest: the shorter side becomes `size`, then the central square is cut. squash: both sides
    # become `size`.
    resize: str = "shortest"
    interpolation: str = "bicubic"

    @classmethod
    def checked(
        cls, size: int, mean: Sequence[float], std: Sequence[float], resize: str,
        interpolation: str,
    ) -> Pixels:
        """Returns the values of a user or of a model's files; refuses those that cannot be used.

        Args:
            size: Number of pixels per side.
            mean: Means of red, green and blue.
            std: Standard deviations of red, green and blue.
            resize: One of RESIZES.
            interpolation: One of INTERPOLATIONS.
        """
        means = tuple(map(float, mean))
        deviations = tuple(map(float, std))
        if len(means) != 3 or len(deviations) != 3 or min(deviations) <= 0:
            raise ConfigError(
                f"pixels need three means and three positive deviations, not {means}, {deviations}")
        for value, choices in ((resize, RESIZES), (interpolation, INTERPOLATIONS)):
            if value not in choices:
                raise ConfigError(
                    f"'{value}' is not a supported way to resize images: use {' or '.join(choices)}"
                )
        return cls(size, means, deviations, resize, interpolation)

    def non_default(self) -> dict[str, object]:
        """The fields that differ from OpenAI's, apart from the size."""
        default = asdict(Pixels(self.size))
        return {name: value for name, value in asdict(self).items() if value != default[name]}


@dataclass(frozen=True)
class ViewSpec:
    """Specification of the views of an image.

    Random numbers depend on (seed, index) alone, never on order or thread.
    """

    num_views: int  # number of views per image, the plain one included
    size: int  # pixels per side
    augmix: bool
    seed: int
    resize: str = "shortest"  # way in which the plain view is resized, see Pixels
    interpolation: str = "bicubic"

    def plain_geometry(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Computes how the plain view of an image is cut.

        Args:
            size: Width and height of the image.

        Returns:
            The width and height to which the image is resized, and the first column and row of the
            result that are used.
        """
        if self.resize == "squash":
            return (self.size, self.size), (0, 0)
        shortest = min(size)
        width = int(self.size * size[0] / shortest)
        height = int(self.size * size[1] / shortest)
        left = round((width - self.size) / 2)
        top = round((height - self.size) / 2)
        return (width, height), (left, top)


def draw_crops(
    size: tuple[int, int], count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draws crops as torchvision's RandomResizedCrop and RandomHorizontalFlip(0.5) do, all at once.

    Args:
        size: Width and height of the image.
        count: Number of crops.
        rng: Source of the random numbers.

    Returns:
        The boxes (count, 4) as left, top, width, height in the image; and whether each is mirrored,
        (count,).
    """
    width, height = size
    # Every crop has as many attempts as the last one may need, of which the first that fits is
    # used. Arrays have the shape (count, ATTEMPTS).
    area = width * height * rng.uniform(*SCALE, (count, ATTEMPTS))
    # Uniform in the logarithm, so that a ratio and its inverse are equally likely.
    lowest, highest = np.log(RATIO)
    ratio = np.exp(rng.uniform(lowest, highest, (count, ATTEMPTS)))
    widths = np.sqrt(area * ratio).round().astype(int)
    heights = np.sqrt(area / ratio).round().astype(int)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.argmax(axis=1)  # 0 too where none fits
    row = np.arange(count)
    corner = rng.random((count, 2))
    flips = rng.random(count) < 0.5

    # Images so long that no crop fits: the largest central box whose ratio is allowed.
    limit = min(max(width / height, RATIO[0]), RATIO[1])
    if width / height < limit:
        central_width = width
        central_height = max(round(width / limit), 1)
    else:
        central_width = max(round(height * limit), 1)
        central_height = height

    has_fit = fits[row, first]
    w = np.where(has_fit, widths[row, first], central_width)
    h = np.where(has_fit, heights[row, first], central_height)
    left = np.where(has_fit, (corner[:, 0] * (width - w + 1)).astype(int), (width - w) // 2)
    top = np.where(has_fit, (corner[:, 1] * (height - h + 1)).astype(int), (height - h) // 2)
    return np.stack([left, top, w, h], axis=1), flips
