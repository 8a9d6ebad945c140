"""Calibration metrics, as fractions of one, with their bootstrap intervals; and SaLS.

Every function takes arrays or tensors. Bad input (NaN, values out of range, shapes that do not fit, no samples) raises
a ValueError. `confidence` (N,) is the largest softmax probability of each sample, `correct` (N,) whether that class is
the true one, `probabilities` and `logits` are (N, K), `labels` (N,) integers below K.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from . import BINS
from .arrays import (
    Array,
    ArrayLike,
    bin_index,
    check_bins,
    check_confidence,
    check_scores,
    log_softmax,
    number_array,
    to_numpy,
    to_tensor,
)

TensorOrArray = TypeVar("TensorOrArray", torch.Tensor, Array)
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
        return self.count / self.count.sum()

    @property
    def gap(self) -> Array:
        """Mean confidence − accuracy: positive where the model is over-confident, 0 in empty bins."""
        return np.where(self.count > 0, np.nan_to_num(self.confidence - self.accuracy), 0.0)


@dataclass(frozen=True)
class Interval:
    """A value with its bootstrap confidence interval; arrays where the metric returns several values."""

    value: float | Array
    low: float | Array
    high: float | Array


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> Reliability:
    """Equal-width bins (lo, hi]; confidence 0 belongs to the first."""
    confidence, correct = check_confidence(confidence, correct)
    index = bin_index(confidence, bins)
    count = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(index, weights=correct, minlength=bins) / count
        mean = np.bincount(index, weights=confidence.astype(np.float64), minlength=bins) / count
    return Reliability(np.arange(bins + 1) / bins, count, accuracy, mean)


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Expected calibration error: |accuracy − mean confidence| of the equal-width bins, weighted by their share."""
    table = reliability(confidence, correct, bins)
    return float((table.share * np.abs(table.gap)).sum())


def squared_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """D = Σ_b (n_b/n)(ḡ_b² − s_b²/n_b), the debiased squared calibration error (Kumar, Liang and Ma, NeurIPS 2019).

    ḡ_b and s_b² are mean and unbiased variance of confidence − correct in bin b; bins with fewer than two samples are
    left out. D is 0 on average for a calibrated model, so it can be negative. ECE has no such estimator: |gap| of a bin
    with few samples is above 0 by chance.
    """
    return float(squared_errors(*bins_and_gaps(confidence, correct, bins), bins)[0])


def bins_and_gaps(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> tuple[Array, Array]:
    """The bin and confidence − correct of each sample, both (N,): all that D needs."""
    confidence, correct = check_confidence(confidence, correct)
    return bin_index(confidence, bins), confidence.astype(np.float64) - correct


def squared_errors(index: Array, gap: Array, bins: int) -> Array:
    """D of each of M models (M,), given the bins and gaps of N samples, (N, M) or (N,)."""
    index, gap = index.reshape(len(index), -1), gap.reshape(len(gap), -1)
    models = gap.shape[1]
    cell, values = (index + bins * np.arange(models)).ravel(), gap.ravel()
    count = np.bincount(cell, minlength=bins * models)
    total, squares = (np.bincount(cell, value, minlength=bins * models) for value in (values, values**2))
    mean = total / np.maximum(count, 1)
    variance = (squares - count * mean**2) / np.maximum(count - 1, 1)
    return np.where(count > 1, count * mean**2 - variance, 0).reshape(models, bins).sum(axis=1) / len(gap)


def rms_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """√D, the root mean square calibration error without the bias of chance; 0 where D is negative."""
    return max(0.0, squared_calibration_error(confidence, correct, bins)) ** 0.5


def rms_interval(
    confidence: ArrayLike, correct: ArrayLike, bins: int = BINS, repeats: int = 1000, level: float = 0.95,
) -> Interval:
    """√D with an interval that covers the true value in at least about `level` of all samples: the resamples of D are
    shifted to have D as their mean, and the ends are clipped to [0, 1]."""
    found = bootstrap(lambda index, gap: float(squared_errors(index, gap, bins)[0]),
                      *bins_and_gaps(confidence, correct, bins), repeats=repeats, level=level, centred=True)
    return Interval(*(float(np.clip(end, 0, 1)) ** 0.5 for end in (found.value, found.low, found.high)))


def smooth_ece(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Smooth ECE (Błasiok and Nakkiran, 2023): the width σ at which ∫|smoothed gap| equals σ. It has no bins.

    The gap, confidence − correct, is smoothed over [0, 1] by a Gaussian of width σ that is reflected at both ends. On
    the even extension of a fine grid that is a product of Fourier coefficients. The integral falls as σ grows, so σ is
    found by bisection, between 0.001 and 1 as in the authors' package.
    """
    confidence, correct = check_confidence(confidence, correct)
    gap = (confidence.astype(np.float64) - correct) / len(correct)
    place = (confidence * GRID - 0.5).clip(0, GRID - 1)  # in cells, whose centres are at (k + 0.5) / GRID
    left = np.minimum(place.astype(int), GRID - 2)
    grid = (np.bincount(left, gap * (left + 1 - place), minlength=GRID)
            + np.bincount(left + 1, gap * (place - left), minlength=GRID))
    wave = np.fft.rfft(np.concatenate([grid, grid[::-1]]))
    damping = (np.pi * np.arange(GRID + 1)) ** 2 / 2

    def error(sigma: float) -> float:
        return float(np.abs(np.fft.irfft(wave * np.exp(-damping * sigma**2))[:GRID]).sum())

    low, high = 0.001, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if error(middle) > middle else (low, middle)
    return error(high)


def mce(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Maximum calibration error: the largest |accuracy − mean confidence| of any bin that has samples."""
    return float(np.abs(reliability(confidence, correct, bins).gap).max())


def ace(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> float:
    """Adaptive calibration error: as ECE, in bins of equal mass by rank (ties keep their order in the input). With
    fewer samples than bins, every sample is a bin."""
    confidence, correct = check_confidence(confidence, correct)
    check_bins(bins)
    order = np.argsort(confidence, kind="stable")
    gaps = np.array_split((confidence.astype(np.float64) - correct)[order], min(bins, len(order)))
    return float(sum(abs(gap.sum()) for gap in gaps) / len(order))


def signed_error(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Mean confidence − accuracy: positive for an over-confident model, negative for an under-confident one."""
    confidence, correct = check_confidence(confidence, correct)
    return float(confidence.mean(dtype=np.float64) - correct.mean())


def accuracy(confidence: ArrayLike, correct: ArrayLike) -> float:
    """The share of correct samples; takes confidence too, as the other metrics do."""
    return float(check_confidence(confidence, correct)[1].mean())


def auroc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """The probability that a correct sample is more confident than a wrong one (ties count half); NaN without both."""
    confidence, correct = check_confidence(confidence, correct)
    positives = correct.sum()
    negatives = len(correct) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, tie, size = np.unique(confidence, return_inverse=True, return_counts=True)
    rank = (np.cumsum(size) - (size - 1) / 2)[tie]  # the mean rank of equal values
    return float((rank[correct == 1].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk–coverage curve: the error rate of the k most confident samples, averaged over k = 1..N.
    Samples of equal confidence count with their mean error, the expectation over all orders of the tie."""
    confidence, correct = check_confidence(confidence, correct)
    _, tie, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    error = np.repeat(np.bincount(tie, weights=1 - correct) / size, size)  # most confident first
    return float((np.cumsum(error) / np.arange(1, len(error) + 1)).mean())


def selective(confidence: ArrayLike, correct: ArrayLike, thresholds: ArrayLike) -> tuple[Array, Array]:
    """Accuracy and coverage of the samples whose confidence exceeds each threshold; the accuracy of none is NaN."""
    confidence, correct = check_confidence(confidence, correct)
    thresholds = number_array(thresholds, "thresholds", ndim=1)
    order = np.argsort(confidence, kind="stable")
    first = np.searchsorted(confidence[order], thresholds.astype(confidence.dtype), side="right")
    kept = len(order) - first
    right = np.append(np.cumsum(correct[order][::-1])[::-1], 0)[first]
    with np.errstate(invalid="ignore"):
        return right / kept, kept / len(order)


def classwise_ece(probabilities: ArrayLike, labels: ArrayLike, bins: int = BINS) -> float:
    """The ECE of each class's probability against membership of that class, averaged over the classes."""
    probabilities, labels = check_scores(probabilities, labels, "probabilities")
    total = 0.0
    for k in range(probabilities.shape[1]):
        index = bin_index(probabilities[:, k], bins)
        gap = probabilities[:, k].astype(np.float64) - (labels == k)
        total += np.abs(np.bincount(index, weights=gap)).sum()
    return float(total / probabilities.size)


def brier(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """The squared distance between the probabilities and the one-hot truth, summed over classes (0 to 2)."""
    return float(brier_terms(probabilities, labels).mean())


def brier_terms(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """Each sample's share of the Brier score, (N,)."""
    probabilities, labels = check_scores(probabilities, labels, "probabilities")
    p = probabilities.astype(np.float64)
    true = p[np.arange(len(labels)), labels]
    return (p**2).sum(axis=1) - 2 * true + 1


def nll(logits: ArrayLike, labels: ArrayLike) -> float:
    """Mean −log p of the true class, computed from logits, so that it is finite where softmax saturates."""
    return float(nll_terms(logits, labels).mean())


def nll_terms(logits: ArrayLike, labels: ArrayLike) -> Array:
    """−log p of each sample's true class, (N,)."""
    logits, labels = check_scores(logits, labels, "logits")
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def top_class(logits: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    """`confidence` and `correct` of logits, the arguments of most metrics."""
    logits, labels = check_scores(logits, labels, "logits")
    return np.exp(log_softmax(logits).max(axis=-1)).clip(0, 1), logits.argmax(axis=-1) == labels


def bootstrap(
    metric: Callable[..., float | Array], *samples: ArrayLike, repeats: int = 1000, level: float = 0.95, seed: int = 0,
    centred: bool = False,
) -> Interval:
    """`metric(*samples)` with a percentile interval over `repeats` resamples of the rows with replacement.

    A metric may return one value or an array of them, as `selective` does; NaN resamples are ignored. With `centred`
    they are shifted to have the value as their mean, which removes the bias that resampling adds to D; without it, the
    interval is widened where needed to contain the value. Neither removes the bias of ECE itself, so an interval of ECE
    covers the expected measured ECE, not the true one: use `rms_interval`.
    """
    if repeats < 1 or not 0 < level < 1:
        raise ValueError(f"Needs repeats ≥ 1 and a level between 0 and 1, got {repeats} and {level}.")
    drawn = resamples(metric, *samples, repeats=repeats, seed=seed)
    value = drawn[0]
    drawn = np.where(np.isnan(value), 0, drawn)  # its interval becomes NaN below
    low, high = np.nanquantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=0)
    if centred:
        bias = np.nanmean(drawn, axis=0) - np.where(np.isnan(value), 0, value)
        low, high = low - bias, high - bias
    found = value, np.minimum(low, value), np.maximum(high, value)
    return Interval(*(map(float, found) if value.ndim == 0 else found))


def resamples(metric: Callable[..., float | Array], *samples: ArrayLike, repeats: int, seed: int = 0) -> Array:
    """`metric(*samples)`, then its values on `repeats` resamples of the rows: (1 + repeats, ...)."""
    rows = [to_numpy(sample) for sample in samples]
    if not rows or len({len(row) for row in rows}) != 1 or len(rows[0]) == 0:
        raise ValueError(f"The samples need one common length above 0, got {[len(row) for row in rows]}.")
    generator, n = np.random.default_rng(seed), len(rows[0])
    draws = (generator.integers(n, size=n) for _ in range(repeats))
    return np.array([metric(*rows), *(metric(*(row[draw] for row in rows)) for draw in draws)], dtype=np.float64)


def sals(logits: TensorOrArray, zero_shot_logits: ArrayLike) -> TensorOrArray:
    """SaLS (Murugesan et al., ECCV 2024): each sample's logits (..., K) rescaled to the range of its zero-shot logits.
    The predicted class never changes; constant logits become the middle of the zero-shot range. Tensors give a tensor,
    arrays an array, in the input's precision, at least fp32."""
    z: torch.Tensor = to_tensor(logits)
    z0: torch.Tensor = to_tensor(zero_shot_logits)
    if z.ndim == 0 or z.shape != z0.shape or z.numel() == 0:
        raise ValueError(f"Logits and zero-shot logits need one shape (..., K), got {(*z.shape,)} and {(*z0.shape,)}.")
    if not (torch.isfinite(z).all() and torch.isfinite(z0).all()):
        raise ValueError("Logits must be finite.")
    dtype = torch.promote_types(z.dtype, torch.float32)
    z, z0 = z.double(), z0.double()
    low, span = z.amin(-1, keepdim=True), z.amax(-1, keepdim=True) - z.amin(-1, keepdim=True)
    low0, span0 = z0.amin(-1, keepdim=True), z0.amax(-1, keepdim=True) - z0.amin(-1, keepdim=True)
    unit = torch.where(span > 0, (z - low) / span.clamp_min(torch.finfo(torch.float64).tiny), 0.5)
    scaled = (unit * span0 + low0).to(dtype)
    # Rounding may merge the two highest logits; then the winner is raised to the next floating-point number.
    winner = z.argmax(-1, keepdim=True)
    top = scaled.amax(-1, keepdim=True)
    above = torch.nextafter(top, torch.full_like(top, torch.inf))
    scaled = scaled.scatter(-1, winner, torch.where(scaled.argmax(-1, keepdim=True) == winner, top, above))
    return scaled if isinstance(logits, torch.Tensor) else scaled.numpy()
