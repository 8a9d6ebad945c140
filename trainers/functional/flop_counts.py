"""Operations that the value of each regulariser takes, for K classes and d features.

Each addition, multiplication, division, root or comparison counts as one; sorting for SoC's δ is not counted.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Count = Callable[[int, int], int]  # (K, d) -> operations


@dataclass(frozen=True)
class Operations:
    products: Count  # in products of matrices
    singles: Count  # elementwise

    def total(self, classes: int, features: int) -> int:
        return self.products(classes, features) + self.singles(classes, features)


REGULARISERS = {
    "O-TPT, cubic": Operations(
        lambda k, d: 2 * k**2 * d + 2 * k**3,  # T Tᵀ; each row through its reflector
        # three passes over the reflectors (outer product, factor, difference from I); on S: row norms, normals, their
        # squares, the final difference and its norms
        lambda k, d: 3 * k**3 + 9 * k**2,
    ),
    "O-TPT, closed form": Operations(
        lambda k, d: 2 * k**2 * d,
        lambda k, d: 2 * k**2 + 2 * k,  # squares, their sums, roots, mean
    ),
    "SoC": Operations(
        lambda k, d: 2 * k**2 * d,
        # per pair: minimum, maximum, two of the normalisation, margin, half, difference, product, sum
        lambda k, d: 9 * k * (k - 1) // 2,
    ),
}
