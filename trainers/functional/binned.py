"""The debiased squared calibration error D of runs on the same images, with its variance.

D = Σ_b (n_b / n)(γ_b² − s_b² / n_b) over bins b of confidence, where γ_b and s_b² are mean and
unbiased variance of the gap, confidence − correct (Kumar, Liang and Ma, NeurIPS 2019). Bins with
fewer than two images count as 0. D is 0 on average for a calibrated model, so it can be negative.

Its variance has two parts. One comes from gaps γ_b that differ from 0 (`influence`), the other
remains where all of them are 0 (`null_variance`).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arrays import Array, bin_index


@dataclass(frozen=True)
class BinnedRun:
    """One run's gaps by bins of confidence.

    Attributes:
        bins: Number of bins B.
        index: Bin of each image, (N,).
        count: Images in each bin n_b, (B,).
        mean: Mean gap of each bin γ_b, (B,); 0 in bins with fewer than two images.
        variance: Unbiased variance of the gaps s_b², (B,); 0 in bins with fewer than two images.
        residual: Gap minus the mean gap of its bin, (N,); 0 in bins with fewer than two images.
        squared_error: D.
        expected_variance: M = (2/n²) Σ_b n_b / (n_b − 1) q_b², where q_b is the mean of c (1 − c)
            of the confidences c in the bin: the variance that D of a calibrated run would have.
    """

    bins: int
    index: Array
    count: Array
    mean: Array
    variance: Array
    residual: Array
    squared_error: float
    expected_variance: float


def binned_run(confidence: Array, correct: Array, bins: int) -> BinnedRun:
    """Sorts one run into bins.

    Args:
        confidence: Checked, from 0 to 1, (N,).
        correct: 0 or 1, (N,).
        bins: Number of bins of equal width, `(lo, hi]`.

    Example:
        >>> run = binned_run(np.array([0.9, 0.9, 0.3]), np.array([1.0, 0.0, 1.0]), bins=10)
        >>> run.mean[8].round(3), run.residual.round(3).tolist()      # 0.3 is alone in its bin
        (np.float64(0.4), [-0.5, 0.5, 0.0])
    """
    n = len(confidence)
    index = bin_index(confidence, bins)
    confidence = confidence.astype(np.float64)
    gap = confidence - correct
    count = np.bincount(index, minlength=bins)
    used = count > 1  # a variance needs two images
    fewer = np.maximum(count - 1, 1)

    mean = np.where(used, np.bincount(index, gap, minlength=bins) / np.maximum(count, 1), 0.0)
    residual = np.where(used[index], gap - mean[index], 0.0)
    variance = np.bincount(index, residual**2, minlength=bins) / fewer
    squared_error = float((count * mean**2 - variance).sum() / n)

    spread = confidence * (1 - confidence)
    mean_spread = np.bincount(index, spread, minlength=bins) / np.maximum(count, 1)
    expected_terms = np.where(used, count / fewer * mean_spread**2, 0.0)
    expected_variance = float(2 / n**2 * expected_terms.sum())
    return BinnedRun(
        bins=bins, index=index, count=count, mean=mean, variance=variance, residual=residual,
        squared_error=squared_error, expected_variance=expected_variance)


def binned_runs(confidence: Array, correct: Array, bins: int) -> list[BinnedRun]:
    """Sorts each of S seeds into bins.

    Args:
        confidence: Checked, from 0 to 1, (N, S).
        correct: 0 or 1, (N, S).
        bins: Number of bins of equal width, `(lo, hi]`.
    """
    runs = []
    for seed in range(confidence.shape[1]):
        runs.append(binned_run(confidence[:, seed], correct[:, seed], bins))
    return runs


def influence(runs: Sequence[BinnedRun], weights: Sequence[float]) -> Array:
    """Influence of each image on Σ_runs w D: ψ_i = Σ_runs w (2 γ_b r_i + γ_b²), (N,).

    Args:
        runs: Runs on the same N images.
        weights: Weight w of each run, such as −1/S and 1/S for a difference of two methods.
    """
    total = np.zeros(len(runs[0].index))
    for run, weight in zip(runs, weights, strict=True):
        mean = run.mean[run.index]
        total += weight * (2 * mean * run.residual + mean**2)
    return total


def null_variance(runs: Sequence[BinnedRun], weights: Sequence[float]) -> float:
    """Variance H of Σ_runs w D where all mean gaps γ_b are 0.

    With ρ_i = r_i √n_b / (n_b − 1), and for runs k and l the B × B table
    C_ab = Σ_{i in bin a of k and bin b of l} ρ_ki ρ_li,
    H = (2/n²) Σ_kl w_k w_l (Σ_ab C_ab² − Σ_i ρ_ki² ρ_li²), at least 0.

    Where errors are rare, the residuals of small bins are all alike and H is too small. It is
    multiplied by max(1, M̄ / H̄), where H̄ is the mean over runs of H of one run and M̄ that of the
    variance M that a calibrated run would have. If H̄ is 0, H = M̄ Σ w².

    Args:
        runs: Runs on the same N images.
        weights: Weight w of each run.
    """
    scaled = []  # ρ of each run, (N,)
    for run in runs:
        factor = np.sqrt(run.count) / np.maximum(run.count - 1, 1)
        scaled.append(run.residual * factor[run.index])

    total = 0.0
    alone = []
    for k, run in enumerate(runs):
        # A run against itself: only the diagonal of the table is not 0. The squares are subtracted
        # because D has products of different images only, which is what makes it unbiased.
        squares = scaled[k] ** 2
        by_bin = np.bincount(run.index, squares, minlength=run.bins)
        term = float((by_bin**2).sum() - (squares**2).sum())
        alone.append(max(0.0, term))
        total += weights[k] ** 2 * term
        for m in range(k):
            other = runs[m]
            product = scaled[k] * scaled[m]
            cell = run.index * other.bins + other.index
            table = np.bincount(cell, product, minlength=run.bins * other.bins)
            term = float((table**2).sum() - (product**2).sum())
            total += 2 * weights[k] * weights[m] * term

    scale = 2 / len(runs[0].index) ** 2
    mean_alone = scale * float(np.mean(alone))
    mean_expected = float(np.mean([run.expected_variance for run in runs]))
    if mean_alone == 0:
        return mean_expected * sum(weight**2 for weight in weights)
    return scale * max(0.0, total) * max(1.0, mean_expected / mean_alone)
