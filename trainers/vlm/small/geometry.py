"""Whether the small CLIP lies as CLIP does: narrow class features, far from the images, sure as often as right."""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...functional.calibration import ece, top_class

SCALES = (1.0, 1000.0)  # between which the logit scale is looked for


@dataclass(frozen=True)
class Geometry:
    """Cosines between class features, cosines of images with their own class, and zero-shot figures in fractions."""

    lowest: float
    mean: float
    highest: float
    deviation: float
    own: float
    scale: float
    accuracy: float
    confidence: float
    ece: float

    def __str__(self) -> str:
        return (
            f"class cosines {self.lowest:.2f} to {self.highest:.2f}, mean {self.mean:.2f}, standard deviation "
            f"{self.deviation:.3f}; image and own class {self.own:.2f}; logit scale {self.scale:.1f}; zero-shot "
            f"accuracy {self.accuracy:.1%}, confidence {self.confidence:.1%}, ECE {self.ece:.1%}"
        )


def measure_geometry(text: Tensor, images: Tensor, labels: Tensor, scale: float) -> Geometry:
    """For unit class features (K, d) and unit image features (N, d) with their labels (N,)."""
    classes = len(text)
    pairs = (text @ text.T)[~torch.eye(classes, dtype=torch.bool)]
    cosines = images @ text.T  # (N, K)
    confidence, correct = top_class(scale * cosines, labels)
    return Geometry(
        pairs.min().item(), pairs.mean().item(), pairs.max().item(), pairs.std().item(),
        cosines.gather(1, labels[:, None]).mean().item(), scale,
        float(correct.mean()), float(confidence.mean()), ece(confidence, correct),
    )


def calibrated_scale(cosines: Tensor, labels: Tensor) -> float:
    """The logit scale at which the model is as sure, on average, as it is right: found by halving, to one in a million.

    Confidence grows with the scale, so there is one such scale, unless the model is never or always right: then the end
    of SCALES.
    """
    accuracy = (cosines.argmax(1) == labels).double().mean()
    low, high = SCALES
    while high / low > 1 + 1e-6:
        middle = (low * high) ** 0.5
        sure = (middle * cosines.double()).softmax(1).amax(1).mean()
        low, high = (middle, high) if sure < accuracy else (low, middle)
    return (low * high) ** 0.5
