"""Split conformal prediction: prediction sets that contain the true class with a given probability.

A threshold on a score is computed from labelled images. The coverage then holds for new,
exchangeable images, whatever the model. `p` are probabilities (N, K); scores are (N, K), lower for
more probable classes.
"""
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .arrays import Array, ArrayLike, check_scores, log_softmax
from .intervals import Interval, mean_interval, wilson

PENALTY = 0.001  # that RAPS adds to a score for each rank after the first FREE ones
FREE = 1
KINDS = ("LAC", "APS", "RAPS")


class Sets(NamedTuple):
    """Evaluation of prediction sets.

    Attributes:
        coverage: Share of sets that contain the true class.
        size: Mean number of classes in a set.
        gap: Mean over classes of the distance between a class's coverage and 1 − α.
        coverage_interval: Coverage with Wilson's 95 % interval, for this threshold.
        size_interval: Mean size with its t interval.
    """

    coverage: float
    size: float
    gap: float
    coverage_interval: Interval
    size_interval: Interval


def scores(p: Array, uniform: Array, kind: str) -> Array:
    """Scores of all classes; a set holds the classes whose score is at most the threshold.

    LAC: 1 − p_k (Sadinle et al., JASA 2019). APS: the mass of all classes before k, and a random
    share of p_k (Romano et al., NeurIPS 2020). RAPS: APS and a penalty on high ranks (Angelopoulos
    et al., ICLR 2021).

    Args:
        p: Probabilities, (N, K).
        uniform: Random shares of APS and RAPS, from 0 to 1, one per image, (N,).
        kind: One of `KINDS`.

    Returns:
        Scores, (N, K).

    Example:
        >>> scores(np.array([[0.5, 0.2, 0.3]]), np.array([0.4]), "APS").round(2).tolist()
        [[0.2, 0.88, 0.62]]
    """
    if kind == "LAC":
        return 1 - p
    order = np.argsort(-p, axis=1, kind="stable")
    ranked = np.take_along_axis(p, order, axis=1)
    mass = ranked.cumsum(axis=1) - (1 - uniform[:, None]) * ranked
    if kind == "RAPS":
        mass = mass + PENALTY * np.maximum(np.arange(1, p.shape[1] + 1) - FREE, 0)
    by_class = np.empty_like(mass)
    np.put_along_axis(by_class, order, mass, axis=1)
    return by_class


def threshold(true_scores: Array, alpha: float) -> float:
    """The ⌈(n + 1)(1 − α)⌉-th smallest score of n labelled images.

    It is infinite, and every set holds all classes, if n is too small.

    Args:
        true_scores: Score of the true class of each labelled image, (n,).
        alpha: Share of sets that may miss the truth.

    Example:
        >>> threshold(np.arange(1, 20) / 20, 0.1)     # the 18th of 19
        0.9
    """
    # In floating point a product such as (n + 1)(1 − α) = 9 may come out slightly above 9.
    rank = math.ceil((len(true_scores) + 1) * (1 - alpha) - 1e-9)
    if rank > len(true_scores):
        return math.inf
    return float(np.sort(true_scores)[rank - 1])


def halves(labels: Array, seed: int) -> Array:
    """Draws the images that set the threshold: a random half of each class.

    In classes with an odd number of images, the two halves take turns in having one more.

    Args:
        labels: True class of each image, (N,).
        seed: Seed of the random draw.

    Returns:
        Whether each image is in that half, (N,).
    """
    rng = np.random.default_rng(seed)
    # Shuffled, then sorted by class: every second image is a random half of each class. The start
    # is random, so that either half may have the additional image of an odd number.
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[by_class[int(rng.integers(2)) :: 2]] = True
    return chosen


def conformal(
    logits: ArrayLike, labels: ArrayLike, kind: str, alpha: float = 0.1, seed: int = 0,
) -> Sets:
    """Sets for one half of the images with the threshold of the other half, whose labels it uses.

    Args:
        logits: (N, K), N at least 2.
        labels: True class of each image, (N,).
        kind: One of `KINDS`.
        alpha: Share of sets that may miss the truth.
        seed: Seed of the split into halves and of the random shares.

    Example:
        >>> sets = conformal(np.eye(4)[[0, 1, 2, 3] * 50] * 9, [0, 1, 2, 3] * 50, "LAC")
        >>> sets.coverage, sets.size, round(sets.coverage_interval.low, 2)
        (1.0, 1.0, 0.96)
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha!r}.")
    logits, labels = check_scores(logits, labels, "logits")
    if len(labels) < 2:
        raise ValueError("Two samples at least are needed, one for each half.")
    chosen = halves(labels, seed)
    uniform = np.random.default_rng([seed, 1]).uniform(size=len(labels))  # not the halves' stream
    score = scores(np.exp(log_softmax(logits)), uniform, kind)
    true_score = score[np.arange(len(labels)), labels]
    limit = threshold(true_score[chosen], alpha)

    covered = true_score[~chosen] <= limit
    sizes = (score[~chosen] <= limit).sum(axis=1)
    truth = labels[~chosen]
    class_gaps = []
    for k in np.unique(truth):
        class_gaps.append(abs(float(covered[truth == k].mean()) - (1 - alpha)))
    coverage = float(covered.mean())
    return Sets(
        coverage=coverage,
        size=float(sizes.mean()),
        gap=float(np.mean(class_gaps)),
        coverage_interval=wilson(coverage, len(covered)),
        size_interval=mean_interval(sizes, low=0.0, high=float(logits.shape[1])),
    )
