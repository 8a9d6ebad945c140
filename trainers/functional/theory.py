"""The SoC paper's geometry of confidence: coherence, confidence floor, and what a step does to
cosines.

`features` is the K × d matrix T of unit class prototypes, `similarity` S = T Tᵀ. Everything is
computed in float64.
"""
from __future__ import annotations

import numpy as np

from .arrays import Array, ArrayLike, number_array


def similarity(features: ArrayLike) -> Array:
    """S = T Tᵀ of the row-normalised features, (K, d) -> (K, K).

    Example:
        >>> similarity([[2.0, 0.0], [0.0, 3.0]]).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    t = number_array(features, "features", ndim=2).astype(np.float64)
    norm = np.linalg.norm(t, axis=1, keepdims=True)
    if (norm == 0).any():
        raise ValueError("features must not hold a zero row.")
    t = t / norm
    return t @ t.T


def pairs(matrix: ArrayLike) -> Array:
    """The entries above the diagonal, one for each pair i < j."""
    matrix = _square(matrix)
    return matrix[np.triu_indices(len(matrix), k=1)]


def coherence(matrix: ArrayLike) -> float:
    """μ = max over i ≠ j of s_ij, the worst-case similarity.

    Example:
        >>> coherence([[1.0, 0.6], [0.6, 1.0]])
        0.6
    """
    return float(pairs(matrix).max())


def confidence_floor(mu: ArrayLike, classes: int, scale: float) -> Array:
    """1 / (1 + (K − 1) exp(−α (1 − μ))), Proposition 1 of the SoC paper.

    Its proof takes the image feature v to be the winning prototype itself: the floor holds for
    v = t_i*, **not** for every unit vector v.

    Args:
        mu: Coherence μ.
        classes: K.
        scale: α, CLIP's logit scale.

    Example:
        >>> round(float(confidence_floor(1.0, 4, 100.0)), 3)     # equal prototypes: chance
        0.25
    """
    return 1 / (1 + (classes - 1) * np.exp(-scale * (1 - np.asarray(mu, dtype=np.float64))))


def huber_slope(matrix: ArrayLike, delta: float) -> Array:
    """g_δ(s) = min(s, δ), element by element.

    Args:
        matrix: S, (K, K).
        delta: Margin δ of the Huber loss.
    """
    return np.minimum(_square(matrix), delta)


def shift_orthogonal(matrix: ArrayLike, step: float) -> Array:
    """First-order Δs_ij of one step along O-TPT's printed gradient 2 Σ_{k≠i} s_ik t_k: −4η (S²)_ij.

    The sum excludes k = i, so one factor of the product has a zero diagonal.

    Args:
        matrix: S, (K, K).
        step: Step size η.

    Returns:
        (K, K).
    """
    matrix = _square(matrix)
    return -4 * step * (_hollow(matrix) @ matrix)


def shift_huber(matrix: ArrayLike, step: float, delta: float) -> Array:
    """First-order Δs_ij of one gradient step on Σ_{i<j} Huber(s_ij, δ) (SoC): −2η (GS)_ij.

    G is g_δ(S) without its diagonal. G S is not symmetric in general; a step changes s_ij by the
    mean of (GS)_ij and (GS)_ji.

    Args:
        matrix: S, (K, K).
        step: Step size η.
        delta: Margin δ.

    Returns:
        (K, K).
    """
    matrix = _square(matrix)
    product = _hollow(huber_slope(matrix, delta)) @ matrix
    return -step * (product + product.T)


def on_sphere(matrix: ArrayLike, shift: ArrayLike) -> Array:
    """First-order Δs once the moved prototypes are normalised again, as CLIP's features are.

    A cosine divides by both lengths, whose own shift is half of Δs_ii and Δs_jj.

    Args:
        matrix: S, (K, K).
        shift: Δs before normalisation, (K, K).
    """
    matrix = _square(matrix)
    shift = _square(shift)
    length = np.diag(shift) / 2
    return shift - matrix * (length[:, None] + length[None, :])


def step_features(features: ArrayLike, weights: ArrayLike, step: float) -> Array:
    """Prototypes after one gradient step t_i − η Σ_{k≠i} w_ik t_k, not normalised again.

    This is the paper's analysis.

    Args:
        features: T, (K, d).
        weights: w, (K, K): 2S for O-TPT's printed loss, g_δ(S) for the Huber loss.
        step: Step size η.
    """
    t = number_array(features, "features", ndim=2).astype(np.float64)
    return t - step * (_hollow(weights) @ t)


def _square(matrix: ArrayLike) -> Array:
    """The matrix in double precision; refuses one that is not K × K with K ≥ 2."""
    matrix = number_array(matrix, "similarity", ndim=2).astype(np.float64)
    if matrix.shape[0] != matrix.shape[1] or len(matrix) < 2:
        raise ValueError(f"similarity must be K×K with K ≥ 2, got shape {matrix.shape}.")
    return matrix


def _hollow(matrix: ArrayLike) -> Array:
    """A copy of the matrix with a zero diagonal, for sums over k ≠ i."""
    matrix = _square(matrix).copy()
    np.fill_diagonal(matrix, 0.0)
    return matrix
