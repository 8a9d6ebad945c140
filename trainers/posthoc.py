"""Temperature scaling, the classic post-hoc reference. It needs labels; SaLS, which needs none, is in `calibration`."""
from __future__ import annotations

import numpy as np

from .arrays import Array, ArrayLike, check_scores, log_softmax


def fit_temperature(logits: ArrayLike, labels: ArrayLike, bounds: tuple[float, float] = (0.01, 100.0)) -> float:
    """The temperature T that minimises the NLL of logits / T (Guo et al., ICML 2017), within `bounds`.

    The NLL is convex in 1/T, so the root of its slope is found by Newton's method, kept within a shrinking bracket.
    """
    logits, labels = check_scores(logits, labels, "logits")
    z = logits.astype(np.float64)
    z -= z.max(axis=1, keepdims=True)  # changes no probability, but keeps the curvature's digits
    true = z[np.arange(len(labels)), labels]
    low, high = 1 / bounds[1], 1 / bounds[0]
    beta = 1.0  # 1/T
    for _ in range(100):
        p = np.exp(log_softmax(z * beta))
        mean = (p * z).sum(axis=1)
        slope = (mean - true).mean()
        if slope == 0:
            break
        curvature = ((p * z**2).sum(axis=1) - mean**2).mean()
        low, high = (beta, high) if slope < 0 else (low, beta)
        step = beta - slope / curvature if curvature > 0 else low
        following = step if low < step < high else np.sqrt(low * high)
        if abs(following - beta) <= 1e-9 * beta:
            break
        beta = following
    return float(1 / beta)


def cross_fit_temperature(logits: ArrayLike, labels: ArrayLike, seed: int = 0) -> tuple[Array, tuple[float, float]]:
    """Temperature scaling without a second data set: each half is divided by the T fitted on the other half.

    Returns the scaled logits and both temperatures. It sees labels, which test-time tuning never does: a reference.
    """
    logits, labels = check_scores(logits, labels, "logits")
    if len(labels) < 2:
        raise ValueError("Two samples at least are needed, one for each half.")
    half = np.array_split(np.random.default_rng(seed).permutation(len(labels)), 2)
    temperatures = tuple(fit_temperature(logits[part], labels[part]) for part in half)
    scaled = logits.astype(np.float64)
    for part, temperature in zip(half, reversed(temperatures), strict=True):
        scaled[part] /= temperature
    return scaled, temperatures
