"""AugMix at severity 1 (Hendrycks et al., ICLR 2020), as test-time prompt tuning uses it.

x̃ = m·x + (1 − m)·Σᵢ wᵢ·chainᵢ(x) with three chains of one to three operations, w ~ Dirichlet(1, 1, 1) and
m ~ Beta(1, 1). Mixing pixels is the same as mixing after normalisation, because the weights sum to one.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CHAINS = 3
LONGEST_CHAIN = 3
LOWEST_LEVEL, SEVERITY = 0.1, 1.0  # an operation's strength is drawn between these, on a scale that ends at 10
# The operations in the order in which they are drawn: those that change pixels, and those that move them.
OPERATIONS = (
    "autocontrast", "equalize", "posterize", "rotate", "solarize", "shear x", "shear y", "translate x", "translate y",
)
POINTS = frozenset(("autocontrast", "equalize", "posterize", "solarize"))
TRANSLATIONS = frozenset(("translate x", "translate y"))

Step = tuple[str, float]  # an operation and its parameter


@dataclass(frozen=True)
class Mix:
    """What AugMix does to one view."""

    keep: float  # weight of the view itself
    chains: tuple[tuple[float, tuple[Step, ...]], ...]  # weight and steps


def draw_mix(size: int, rng: np.random.Generator) -> Mix:
    """All draws for a view of so many pixels a side."""
    weights = rng.dirichlet(np.ones(CHAINS))
    keep = rng.beta(1, 1)
    chains = []
    for weight in weights:
        steps = []
        for _ in range(rng.integers(1, LONGEST_CHAIN + 1)):
            name = OPERATIONS[rng.integers(len(OPERATIONS))]
            share, sign = rng.uniform(LOWEST_LEVEL, SEVERITY) / 10, (-1, 1)[rng.integers(2)]
            steps.append((name, parameter(name, share, sign, size)))
        effective = tuple(s for s in steps if s[1] or s[0] in POINTS)  # a rotation by 0 degrees, say, is none
        chains.append((float((1 - keep) * weight), effective))
    return Mix(keep, tuple(chains))


def parameter(name: str, share: float, sign: int, size: int) -> float:
    """An operation's own measure of its strength, drawn as a share of the greatest."""
    match name:
        case "posterize":
            return 4 - int(share * 4)  # bits kept
        case "solarize":
            return 256 - int(share * 256)  # level from which on pixels are inverted
        case "rotate":
            return sign * int(share * 30)  # degrees
        case "shear x" | "shear y":
            return sign * share * 0.3
        case "translate x" | "translate y":
            return int(sign * share * size / 3)  # pixels
    return 0


