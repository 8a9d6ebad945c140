"""Describes the images that a backbone takes: size, way of resizing, and normalisation.

This module does not import torch, so that a config can be read and a cache be found without it.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass

from ..utils.errors import ConfigError

# Mean and standard deviation of red, green and blue in OpenAI's training data
OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)
RESIZES = ("shortest", "squash")
INTERPOLATIONS = ("bicubic", "bilinear")


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

    def __post_init__(self) -> None:
        # Lists from json and yaml compare as tuples
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ConfigError(
                f"pixels need three means and three positive deviations, not {self.mean}, "
                f"{self.std}"
            )
        for value, choices in ((self.resize, RESIZES), (self.interpolation, INTERPOLATIONS)):
            if value not in choices:
                raise ConfigError(
                    f"'{value}' is not a supported way to resize images: use {' or '.join(choices)}"
                )

    def non_default(self) -> dict[str, object]:
        """The fields that differ from OpenAI's, apart from the size."""
        default = asdict(Pixels(self.size))
        return {name: value for name, value in asdict(self).items() if value != default[name]}
