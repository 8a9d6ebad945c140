"""Split conformal prediction: prediction sets that contain the true class with a given probability.

A threshold on a score is computed from labelled images. The coverage then holds for new, exchangeable images, whatever
the model. `p` are probabilities (N, K); scores are (N, K), lower for more probable classes.
"""
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .arrays import Array, ArrayLike, check_scores, log_softmax

PENALTY, FREE = 0.001, 1  # RAPS: the penalty per rank, and the number of ranks without one
KINDS = ("LAC", "APS", "RAPS")


class Sets(NamedTuple):
    """Evaluation of prediction sets: the share that contain the true class, their mean size, and the mean over classes
    of the distance between a class's coverage and 1 − α."""

    coverage: float
    size: float
    gap: float


def scores(p: Array, uniform: Array, kind: str) -> Array:
    """LAC: 1 − p_k. (Sadinle et al., JASA 2019.) APS: the mass of all classes before k, and a random share of p_k.
    (Romano et al., NeurIPS 2020.) RAPS: APS and a penalty on high ranks. (Angelopoulos et al., ICLR 2021.) `uniform`
    (N,) are the random shares, one per image."""
    if kind == "LAC":
        return 1 - p
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    mass = ranked.cumsum(axis=1) - (1 - uniform[:, None]) * ranked
    if kind == "RAPS":
        mass = mass + PENALTY * np.maximum(np.arange(1, p.shape[1] + 1) - FREE, 0)
    found = np.empty_like(mass)
    np.put_along_axis(found, order, mass, axis=1)
    return found


def threshold(true_scores: Array, alpha: float) -> float:
    """The ⌈(n + 1)(1 − α)⌉-th smallest score of n labelled images; infinite (sets of all classes) if n is too small."""
    rank = math.ceil((len(true_scores) + 1) * (1 - alpha) - 1e-9)
    return float(np.sort(true_scores)[rank - 1]) if rank <= len(true_scores) else math.inf


def halves(labels: Array, seed: int) -> Array:
    """Which images are for calibration: a seeded random half of each class; odd ones go to either half in turn."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[by_class[int(rng.integers(2)) :: 2]] = True
    return chosen


def conformal(logits: ArrayLike, labels: ArrayLike, kind: str, alpha: float = 0.1, seed: int = 0) -> Sets:
    """Sets for one half of the images with the threshold of the other half, whose labels it uses."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha!r}.")
    logits, labels = check_scores(logits, labels, "logits")
    if len(labels) < 2:
        raise ValueError("Two samples at least are needed, one for each half.")
    chosen = halves(labels, seed)
    uniform = np.random.default_rng([seed, 1]).uniform(size=len(labels))
    score = scores(np.exp(log_softmax(logits)), uniform, kind)
    true = score[np.arange(len(labels)), labels]
    limit = threshold(true[chosen], alpha)
    held, sizes, truth = true[~chosen] <= limit, (score[~chosen] <= limit).sum(axis=1), labels[~chosen]
    by_class = [held[truth == k].mean() for k in np.unique(truth)]
    return Sets(float(held.mean()), float(sizes.mean()), float(np.abs(np.array(by_class) - (1 - alpha)).mean()))
