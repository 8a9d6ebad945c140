"""Temperature scaling, the classic post-hoc reference. It needs labels; SaLS, which needs none, is in `calibration`."""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from .arrays import Array, ArrayLike, check_scores


def fit_temperature(logits: ArrayLike, labels: ArrayLike, bounds: tuple[float, float] = (0.01, 100.0)) -> float:
    """The temperature T that minimises the NLL of logits / T (Guo et al., ICML 2017), within `bounds`.

    The NLL is convex in 1/T, so L-BFGS finds its one minimum; where there is none, as when every prediction is right,
    the nearer bound is taken.
    """
    logits, labels = check_scores(logits, labels, "logits")
    z, target = torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(labels.astype(np.int64))
    inverse = torch.ones((), dtype=torch.float64, requires_grad=True)  # 1/T
    optimizer = torch.optim.LBFGS([inverse], max_iter=100, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

    def nll() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(z * inverse, target)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(nll)
    return float(np.clip(1 / max(inverse.item(), 1 / bounds[1]), *bounds))


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
