"""Calibration metrics of one run, as fractions of one, with intervals that cover the truth.

Every function takes arrays or tensors. Bad input (NaN, values out of range, shapes that do not
fit, no samples) raises a ValueError. `confidence` (N,) is the largest softmax probability of each
sample, `correct` (N,) whether that class is the true one, `probabilities` and `logits` are (N, K),
`labels` (N,) integers below K. Each metric also takes `logits=` or `probabilities=` with `labels=`.
README.md in this folder lists all of them with their formulas. Functions with an interval also take
(N, S) of S seeds on the same images.

Metrics of other files can be imported from here too, as in version 1.0.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Unpack

import numpy as np

from . import BINS
from .arrays import (
    Array,
    ArrayLike,
    Scores,
    bin_index,
    check_bins,
    check_confidence,
    check_probabilities,
    check_seeds,
    top_class,
)
from .binned import BinnedRun, binned_run, binned_runs, influence, null_variance
from .classification import accuracy, accuracy_interval, balanced_accuracy, macro_f1
from .intervals import Interval, cluster_codes, clustered_mean, make_groups, t_quantile
from .posthoc import sals
from .scoring import brier, brier_terms, nll, nll_terms
from .selective import aurc, auroc, selective

__all__ = [
    "BINS", "Interval", "Reliability", "accuracy", "accuracy_interval", "ace", "aurc", "auroc",
    "balanced_accuracy", "brier", "brier_terms", "classwise_ece", "ece", "macro_f1", "mce", "nll",
    "nll_terms", "over_confidence", "reliability", "rms_calibration_error", "rms_interval", "sals",
    "selective", "signed_error", "smooth_ece", "squared_calibration_error", "top_class",
]

GRID = 4096  # cells of smooth ECE's grid


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram, bin by bin; empty bins have NaN for accuracy and confidence."""

    edges: Array  # (bins + 1,)
    count: Array  # (bins,)
    accuracy: Array  # (bins,)
    confidence: Array  # (bins,)

    @property
    def share(self) -> Array:
        """Share of the images in each bin, (bins,)."""
        return self.count / self.count.sum()

    @property
    def gap(self) -> Array:
        """Mean confidence − accuracy, (bins,): positive where over-confident, 0 in empty bins."""
        return np.where(self.count > 0, np.nan_to_num(self.confidence - self.accuracy), 0.0)


def reliability(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    **scores: Unpack[Scores],
) -> Reliability:
    """Accuracy and mean confidence in bins of equal width.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        bins: Number of bins `(lo, hi]`; a confidence of 0 belongs to the first.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Example:
        >>> reliability([0.9, 0.8, 0.3], [1, 0, 0], bins=2).accuracy.tolist()
        [0.0, 0.5]
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    index = bin_index(confidence, bins)
    count = np.bincount(index, minlength=bins)
    right = np.bincount(index, weights=correct, minlength=bins)
    total = np.bincount(index, weights=confidence.astype(np.float64), minlength=bins)
    with np.errstate(invalid="ignore"):
        return Reliability(np.arange(bins + 1) / bins, count, right / count, total / count)


def ece(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    **scores: Unpack[Scores],
) -> float:
    """Expected calibration error over bins of equal width.

    ECE = Σ_b (n_b / n) |accuracy_b − mean confidence_b|, with bins `(lo, hi]`; a confidence of 0
    belongs to the first. Guo et al., ICML 2017. Chance adds to |gap| of every bin, so ECE is too
    high on few images and has no interval here; see `rms_interval`.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        bins: Number of bins. Papers use 10, 15 or 20, and their values do not compare.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        A fraction from 0 to 1; tables show it in percent.

    Example:
        >>> round(ece([0.9, 0.8, 0.6], [1, 1, 0], bins=10), 3)
        0.3
    """
    table = reliability(confidence, correct, bins, **scores)
    return float((table.share * np.abs(table.gap)).sum())


def squared_calibration_error(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    **scores: Unpack[Scores],
) -> float:
    """Debiased squared calibration error D = Σ_b (n_b / n)(γ_b² − s_b² / n_b).

    γ_b and s_b² are mean and unbiased variance of confidence − correct in bin b; bins with fewer
    than two samples are left out. D is 0 on average for a calibrated model, so it can be negative.
    Kumar, Liang and Ma, NeurIPS 2019. ECE has no such estimator: |gap| of a bin with few samples
    is above 0 by chance.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        bins: Number of bins.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Example:
        >>> round(squared_calibration_error([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 1]), 3)
        0.01
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    return binned_run(confidence, correct, bins).squared_error


def rms_calibration_error(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    **scores: Unpack[Scores],
) -> float:
    """Debiased RMS calibration error √D; 0 where D is negative.

    Arguments are those of `squared_calibration_error`, which has the formula of D.

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> round(rms_calibration_error([0.9, 0.9, 0.9, 0.9], [1, 1, 1, 1]), 3)
        0.1
    """
    return max(0.0, squared_calibration_error(confidence, correct, bins, **scores)) ** 0.5


def rms_interval(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    *,
    level: float = 0.95,
    **scores: Unpack[Scores],
) -> Interval:
    """Debiased RMS calibration error √D with its score interval.

    The interval holds every τ ≥ 0 that D does not contradict: (D − τ)² ≤ z² (κ τ + H), so
    τ = D + z² κ / 2 ± z √(κ D + H + z² κ² / 4), of which the roots are taken. κ τ + H is the
    variance of D if its true value is τ. H is the part that remains at τ = 0 (`null_variance`), at
    least 2 (σ̄² / n)². κ is 4 σ̄² / n, or (P − 2 H) / D if that is larger and D > 2 √H, P the
    variance of the influence values. σ̄² is the mean of s_b² weighted by n_b, at least 1 / (n + 4).

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,), or (N, S) for S seeds.
        correct: Whether the prediction is right, 0 or 1, in the same shape.
        bins: Number of bins.
        level: Share of intervals that contain the true value, at least about.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        Value and ends as fractions from 0 to 1.

    Example:
        >>> interval = rms_interval([0.9, 0.9, 0.8, 0.8] * 50, [1, 0, 1, 1] * 50)
        >>> round(interval.low, 2), round(interval.value, 2), round(interval.high, 2)
        (0.26, 0.31, 0.38)
    """
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}.")
    confidence, correct = check_seeds(confidence, correct, scores)
    runs = binned_runs(confidence, correct, bins)
    squared_error = float(np.mean([run.squared_error for run in runs]))
    value = max(0.0, squared_error) ** 0.5
    n = len(confidence)
    if n < 2:
        return Interval(value, 0.0, 1.0)

    weights = [1 / len(runs)] * len(runs)
    gap_variance = _mean_gap_variance(runs, n)  # σ̄²
    remaining = max(null_variance(runs, weights), 2 * (gap_variance / n) ** 2)  # H
    slope = 4 * gap_variance / n  # κ
    if squared_error > 2 * math.sqrt(remaining):
        spread = clustered_mean([influence(runs, weights)], make_groups([n])).variance  # P
        slope = max(slope, (spread - 2 * remaining) / squared_error)

    z = NormalDist().inv_cdf((1 + level) / 2)
    low, high = _score_ends(squared_error, slope, remaining, z)
    return Interval(value, min(value, low), max(value, high))


def _mean_gap_variance(runs: list[BinnedRun], n: int) -> float:
    """σ̄²: variance of gaps within bins, weighted by n_b, mean over runs; at least 1 / (n + 4)."""
    variances = []
    for run in runs:
        count = np.where(run.count > 1, run.count, 0)
        variances.append(float((count * run.variance).sum()) / max(1, int(count.sum())))
    return max(float(np.mean(variances)), 1 / (n + 4))


def _score_ends(
    squared_error: float, slope: float, remaining: float, z: float,
) -> tuple[float, float]:
    """Roots of the smallest and largest τ in [0, 1] with (D − τ)² ≤ z² (κ τ + H)."""
    under_root = slope * squared_error + remaining + (z * slope) ** 2 / 4
    centre = squared_error + z**2 * slope / 2
    if under_root < 0 or centre + z * math.sqrt(under_root) < 0:
        # By chance D is so far below 0 that no τ fits it. The ends are those of D = 0.
        return _score_ends(0.0, slope, remaining, z)
    half = z * math.sqrt(under_root)
    low = min(1.0, max(0.0, centre - half)) ** 0.5
    high = min(1.0, centre + half) ** 0.5
    return low, high


def smooth_ece(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> float:
    """Smooth ECE: the width σ at which ∫|smoothed gap| equals σ. Błasiok and Nakkiran, 2023.

    It has no bins. The gap, confidence − correct, is smoothed over [0, 1] by a Gaussian of width σ
    that is reflected at both ends. On the even extension of a fine grid that is a product of
    Fourier coefficients. The integral falls as σ grows, so σ is found by bisection, between 0.001
    and 1 as in the authors' package.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> round(smooth_ece([0.9] * 10, [1] * 6 + [0] * 4), 3)     # one confidence: |gap|
        0.3
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    gap = (confidence.astype(np.float64) - correct) / len(correct)
    # Each gap is shared between the two cells whose centres, (k + 0.5) / GRID, are next to it.
    position = (confidence * GRID - 0.5).clip(0, GRID - 1)
    left = np.minimum(position.astype(int), GRID - 2)
    share = position - left
    grid = np.bincount(left, gap * (1 - share), minlength=GRID)
    grid = grid + np.bincount(left + 1, gap * share, minlength=GRID)
    # The even extension has period 2, so its k-th coefficient belongs to cos(π k x). A Gaussian of
    # width σ multiplies that coefficient by exp(−(π k σ)² / 2).
    wave = np.fft.rfft(np.concatenate([grid, grid[::-1]]))
    damping = (np.pi * np.arange(GRID + 1)) ** 2 / 2

    def error(sigma: float) -> float:
        return float(np.abs(np.fft.irfft(wave * np.exp(-damping * sigma**2))[:GRID]).sum())

    low = 0.001
    high = 1.0
    for _ in range(20):  # halvings: σ is known to 1e-6
        middle = (low + high) / 2
        if error(middle) > middle:
            low = middle
        else:
            high = middle
    return error(high)


def mce(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    **scores: Unpack[Scores],
) -> float:
    """Maximum calibration error: max_b |accuracy_b − mean confidence_b| over bins with samples.

    Bins and arguments are those of `ece`.

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> round(mce([0.9, 0.8, 0.6], [1, 1, 0], bins=10), 3)
        0.6
    """
    return float(np.abs(reliability(confidence, correct, bins, **scores).gap).max())


def ace(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    bins: int = BINS,
    **scores: Unpack[Scores],
) -> float:
    """Adaptive calibration error: Σ_b (n_b / n) |accuracy_b − mean confidence_b|, as ECE.

    Its bins have equal mass: the samples are sorted by confidence and divided by rank. Equal
    confidences keep their order in the input. With fewer samples than bins, every sample is a bin.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        bins: Number of bins of equal mass.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> round(ace([0.9, 0.6, 0.7], [1, 0, 1]), 3)     # (0.1 + 0.6 + 0.3) / 3
        0.333
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    check_bins(bins)
    order = np.argsort(confidence, kind="stable")
    sorted_gap = (confidence.astype(np.float64) - correct)[order]
    total = 0.0
    for gap in np.array_split(sorted_gap, min(bins, len(order))):
        total += abs(float(gap.sum()))
    return total / len(order)


def signed_error(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> float:
    """Mean confidence − accuracy: above 0 for an over-confident model, below 0 for the opposite.

    `over_confidence` has the same arguments and an interval.

    Returns:
        A fraction from −1 to 1.

    Example:
        >>> round(signed_error([0.9, 0.9], [1, 0]), 3)     # 0.9 − 0.5
        0.4
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    return float(confidence.mean(dtype=np.float64) - correct.mean())


def over_confidence(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    clusters: ArrayLike | None = None,
    **scores: Unpack[Scores],
) -> Interval:
    """Mean confidence − accuracy with its 95 % interval.

    The interval is the t interval of the n gaps and of four added images: two right and two wrong,
    all of mean confidence (Agresti and Coull). So a run without errors has an interval too. It has
    n + 3 degrees of freedom, or the number of clusters + 3.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,), or (N, S) for S seeds.
        correct: Whether the prediction is right, 0 or 1, in the same shape.
        clusters: For each image the group it belongs to, such as its patient: (N,) integers, text
            or bytes, (N, 16) bytes, or a list of hashable values. Without it images are
            independent.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        Value and ends as fractions from −1 to 1; positive means over-confident.

    Example:
        >>> interval = over_confidence([0.9] * 100, [1] * 80 + [0] * 20)
        >>> round(interval.value, 2), round(interval.low, 2), round(interval.high, 2)
        (0.1, 0.03, 0.19)
    """
    confidence, correct = check_seeds(confidence, correct, scores)
    confidence = confidence.astype(np.float64)
    gap = (confidence - correct).mean(axis=1)
    mean_confidence = float(confidence.mean())
    added = np.array([mean_confidence - 1, mean_confidence - 1, mean_confidence, mean_confidence])
    # Each added image is a cluster of its own, with a number that no other cluster has.
    codes = cluster_codes(clusters, len(gap))
    all_codes = np.concatenate([codes, codes.max() + 1 + np.arange(4)])
    groups = make_groups([len(all_codes)], [all_codes])
    mean = clustered_mean([np.concatenate([gap, added])], groups)

    value = float(gap.mean())
    half = t_quantile(mean.dof) * math.sqrt(mean.variance)
    low = max(-1.0, min(value, mean.value - half))
    high = min(1.0, max(value, mean.value + half))
    return Interval(value, low, high)


def classwise_ece(
    probabilities: ArrayLike = None, labels: ArrayLike = None, bins: int = BINS, *,
    logits: ArrayLike = None,
) -> float:
    """(1 / K) Σ_k ECE of the probability of class k against membership of that class.

    Args:
        probabilities: Probabilities of all classes, (N, K); each row sums to 1.
        labels: True class of each sample, (N,).
        bins: Number of bins of equal width.
        logits: Logits of all classes, in place of probabilities, (N, K).

    Example:
        >>> round(classwise_ece([[0.9, 0.1], [0.2, 0.8]], [0, 1], bins=10), 3)
        0.15
    """
    probabilities, labels = check_probabilities(probabilities, labels, logits)
    total = 0.0
    for k in range(probabilities.shape[1]):
        index = bin_index(probabilities[:, k], bins)
        gap = probabilities[:, k].astype(np.float64) - (labels == k)
        total += np.abs(np.bincount(index, weights=gap)).sum()
    return float(total / probabilities.size)
