"""Metrics of selective prediction, with intervals, and their differences between two methods.

A model that may decline answers only where it is confident. Selective accuracy is its accuracy
above a confidence, risk at coverage the error rate of its most confident share, AURC the area
under the curve of risk over coverage, AUROC how well confidence separates right from wrong.

Each metric has influence values, one per image: the metric's variance is their variance divided by
n. The difference of two methods on the same images is tested with the influence values subtracted
image by image.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from .arrays import Array, ArrayLike, Scores, check_confidence, check_seeds, number_array
from .intervals import (
    NORMAL_QUANTILE,
    Estimate,
    Interval,
    clustered_mean,
    deviations,
    estimate,
    make_groups,
    share_interval,
    t_quantile,
    wilson,
)

# An interval of AURC would cover the truth in 83 % of samples with 7 errors, in 88 % with 20.
FEWEST_ERRORS = 50
THRESHOLDS = tuple(number / 10 for number in range(10))  # of confidence, for `selective`


def auroc(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> float:
    """The probability that a correct sample is more confident than a wrong one; ties count half.

    `auroc_interval` has its interval.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        A fraction from 0 to 1; NaN if all samples are right or all are wrong.

    Example:
        >>> auroc([0.9, 0.6, 0.7, 0.5], [1, 1, 0, 0])     # 3 of 4 pairs are in order
        0.75
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    positives = correct.sum()
    negatives = len(correct) - positives
    if positives == 0 or negatives == 0:
        return float("nan")
    _, tie, size = np.unique(confidence, return_inverse=True, return_counts=True)
    rank = (np.cumsum(size) - (size - 1) / 2)[tie]  # the mean rank of equal values
    # Mann–Whitney's U: the number of pairs in which the correct sample ranks higher.
    above = rank[correct == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def aurc(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> float:
    """Area under the risk–coverage curve: (1 / N) Σ_k error rate of the k most confident samples.

    Samples of equal confidence count with their mean error, the expectation over all orders of the
    tie. `aurc_interval` has its interval.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        A fraction from 0 to 1; lower is better.

    Example:
        >>> round(aurc([0.9, 0.8, 0.7], [1, 0, 1]), 3)     # (0 + 1/2 + 1/3) / 3
        0.278
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    _, tie, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    error = np.repeat(np.bincount(tie, weights=1 - correct) / size, size)  # most confident first
    return float((np.cumsum(error) / np.arange(1, len(error) + 1)).mean())


def selective(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    thresholds: ArrayLike = THRESHOLDS,
    **scores: Unpack[Scores],
) -> tuple[Array, Array]:
    """Accuracy and coverage of the samples whose confidence exceeds each threshold.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        thresholds: Thresholds of the confidence, (T,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        Accuracy, NaN where no sample exceeds the threshold, and coverage, (T,) each.
        `selective_accuracy` has the interval for one threshold.

    Example:
        >>> [values.tolist() for values in selective([0.3, 0.6, 0.9], [0, 0, 1], [0.0, 0.6])]
        [[0.3333333333333333, 1.0], [1.0, 0.3333333333333333]]
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    thresholds = number_array(thresholds, "thresholds", ndim=1)
    order = np.argsort(confidence, kind="stable")
    # In the precision of the confidences: 0.6 in fp32 is above 0.6 in double precision.
    first = np.searchsorted(confidence[order], thresholds.astype(confidence.dtype), side="right")
    above = len(order) - first
    right = np.append(np.cumsum(correct[order][::-1])[::-1], 0)[first]
    with np.errstate(invalid="ignore"):
        return right / above, above / len(order)


@dataclass(frozen=True)
class Influence:
    """A metric of one run with the influence of each image on it, (N,), of mean 0."""

    value: float
    values: Array

    def standard_error(self) -> float:
        """√(variance of the influence values / n); NaN for one image."""
        if len(self.values) < 2:
            return math.nan
        return float(np.linalg.norm(deviations(self.values)))


def metric_difference(
    first: Influence, second: Influence, images: ArrayLike | None = None,
) -> Estimate:
    """Difference of a metric, second − first, of two methods on the same images, by t.

    Args:
        first: Influence values of the first method, such as `aurc_influence(confidence, correct)`.
        second: The same metric of the second method, for the same images in the same order.
        images: Identity or group of each image, (N,); equal ones form a cluster.

    Example:
        >>> first = aurc_influence([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0])
        >>> second = aurc_influence([0.6, 0.7, 0.8, 0.9], [1, 1, 0, 0])
        >>> round(metric_difference(first, second).value, 3)     # 0.792 − 0.208
        0.583
    """
    n = len(first.values)
    if n != len(second.values):
        raise ValueError(
            f"Both methods need the same images, got {n} and {len(second.values)}.")
    value = second.value - first.value
    identities = None
    if images is not None:
        identities = [images]
    groups = make_groups([n], identities)
    if groups[0].clusters < 2 or math.isnan(value):
        return Estimate(value, -1.0, 1.0, 1.0)
    mean = clustered_mean([second.values - first.values], groups)
    return estimate(value, mean.variance, mean.dof, groups[0].clusters)


def selective_accuracy(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    threshold: float = 0.8,
    clusters: ArrayLike | None = None,
    **scores: Unpack[Scores],
) -> Interval:
    """Accuracy of the predictions above a confidence that was fixed in advance, with its interval.

    The interval is Wilson's; with several seeds or clusters of images it has the effective number
    of predictions of `share_interval`.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,), or (N, S) for S seeds.
        correct: Whether the prediction is right, 0 or 1, in the same shape.
        threshold: Confidences must exceed it.
        clusters: For each image the group it belongs to; without it images are independent.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        Value and ends as fractions; NaN if no confidence exceeds the threshold.

    Example:
        >>> interval = selective_accuracy([0.9, 0.9, 0.9, 0.4], [1, 1, 0, 0], 0.8)
        >>> round(interval.low, 2), round(interval.value, 2), round(interval.high, 2)
        (0.21, 0.67, 0.94)
    """
    confidence, correct = check_seeds(confidence, correct, scores)
    above = confidence > np.asarray(threshold, dtype=confidence.dtype)
    return share_interval(correct, above, clusters)


def selective_accuracy_influence(
    confidence: ArrayLike, correct: ArrayLike, threshold: float,
) -> Influence:
    """Selective accuracy a, and ψ_i = (correct_i − a) / coverage for images above, else 0.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        threshold: Confidences must exceed it.
    """
    confidence, correct = check_confidence(confidence, correct)
    above = confidence > np.asarray(threshold, dtype=confidence.dtype)
    coverage = float(above.mean())
    if coverage == 0:
        return Influence(math.nan, np.zeros(len(correct)))
    value = float(correct[above].mean())
    return Influence(value, np.where(above, (correct - value) / coverage, 0.0))


@dataclass(frozen=True)
class Selection:
    """The most confident images of a run.

    Attributes:
        count: Their number m.
        coverage: m / n.
        risk: Their error rate r. Images that tie at the threshold count with their mean error.
        edge_risk: Error rate ρ of the 2 √n images around the threshold.
        weight: Share of each image that is selected, (N,): 1, 0, or a fraction in a tie.
    """

    count: int
    coverage: float
    risk: float
    edge_risk: float
    weight: Array


def select_most_confident(confidence: Array, correct: Array, coverage: float) -> Selection:
    """Selects the m = ⌈coverage · n⌉ most confident images.

    Args:
        confidence: Checked, from 0 to 1, (N,).
        correct: 0 or 1, (N,).
        coverage: Share of the images that is selected, above 0 and at most 1.
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must lie above 0 and be at most 1, got {coverage!r}.")
    n = len(correct)
    count = math.ceil(coverage * n - 1e-9)  # 0.1 · 30 is above 3 in floating point
    _, tie, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    before = np.cumsum(size) - size  # images that are more confident than each tie
    selected_share = np.clip((count - before) / size, 0, 1)
    weight = selected_share[tie]
    error = 1 - correct
    mean_error = np.bincount(tie, weights=error) / size
    ranked_error = np.repeat(mean_error, size)  # most confident first
    half_width = max(1, math.isqrt(n))
    around = ranked_error[max(0, count - half_width) : count + half_width]
    return Selection(
        count=count,
        coverage=count / n,
        risk=float((weight * error).sum()) / count,
        edge_risk=float(around.mean()),
        weight=weight,
    )


def risk_at_coverage(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    coverage: float = 0.8,
    **scores: Unpack[Scores],
) -> Interval:
    """Error rate of the most confident share of the images, with its interval.

    The threshold depends on the images, which adds to the variance where images around it are more
    often wrong than those above: (r (1 − r) + (1 − q)(ρ − r)²) / m for the m = ⌈q n⌉ most confident
    images, their error rate r, and the error rate ρ of the 2 √n images around the threshold. The
    interval is Wilson's with n_eff = m r (1 − r) / (r (1 − r) + (1 − q)(ρ − r)²), m if r is 0 or 1.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        coverage: Share q of the images that are answered, above 0 and at most 1.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Example:
        >>> interval = risk_at_coverage([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0], 0.5)
        >>> round(interval.low, 2), interval.value, round(interval.high, 2)
        (0.09, 0.5, 0.91)
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    selection = select_most_confident(confidence, correct, coverage)
    spread = selection.risk * (1 - selection.risk)
    if spread <= 0:
        return wilson(min(1.0, max(0.0, selection.risk)), selection.count)
    distance = selection.edge_risk - selection.risk
    inflated = spread + (1 - selection.coverage) * distance**2
    return wilson(selection.risk, selection.count * spread / inflated)


def risk_influence(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> Influence:
    """Risk at coverage q, and ψ_i = selected_i (error_i − ρ) / q, centred.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        coverage: Share q of the images that are answered, above 0 and at most 1.
    """
    confidence, correct = check_confidence(confidence, correct)
    selection = select_most_confident(confidence, correct, coverage)
    values = selection.weight * ((1 - correct) - selection.edge_risk) / selection.coverage
    return Influence(selection.risk, values - values.mean())


def aurc_influence(confidence: ArrayLike, correct: ArrayLike) -> Influence:
    """Area under the risk–coverage curve with its influence values.

    With rank k by falling confidence and error e: w_k = Σ_{j ≥ k} 1/j, AURC = mean of e_k w_k, and
    ψ_k = e_k w_k − Σ_{j ≥ k} e_j / j. Images of equal confidence share the mean of their ranks'
    terms.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).

    Example:
        >>> round(aurc_influence([0.9, 0.8, 0.7], [1, 0, 1]).value, 3)     # (0 + 1/2 + 1/3) / 3
        0.278
    """
    confidence, correct = check_confidence(confidence, correct)
    n = len(correct)
    error = 1 - correct
    _, tie, size = np.unique(-confidence, return_inverse=True, return_counts=True)
    ends = np.cumsum(size)
    starts = ends - size

    ranks = np.arange(1, n + 1)
    mean_error = np.bincount(tie, weights=error) / size
    ranked_error = np.repeat(mean_error, size)
    weight = _sum_from(1 / ranks)
    later = _sum_from(ranked_error / ranks)
    tie_weight = np.add.reduceat(weight, starts) / size
    tie_later = np.add.reduceat(later, starts) / size

    values = error * tie_weight[tie] - tie_later[tie]
    value = float((error * tie_weight[tie]).mean())
    return Influence(value, values - values.mean())


def _sum_from(terms: Array) -> Array:
    """Sum of each term and all later ones, (N,)."""
    return np.cumsum(terms[::-1])[::-1]


def aurc_interval(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> Interval:
    """Area under the risk–coverage curve with its t interval; NaN ends with fewer than 50 errors.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Example:
        >>> confidence = np.linspace(0.2, 1, 400)
        >>> interval = aurc_interval(confidence, np.arange(400) % 5 > 0)
        >>> round(interval.low, 2), round(interval.value, 2), round(interval.high, 2)
        (0.14, 0.19, 0.25)
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    aurc = aurc_influence(confidence, correct)
    errors = len(correct) - int(correct.sum())
    if errors < FEWEST_ERRORS:
        return Interval(aurc.value, math.nan, math.nan)
    half = t_quantile(len(aurc.values) - 1) * aurc.standard_error()
    return Interval(aurc.value, max(0.0, aurc.value - half), min(1.0, aurc.value + half))


def auroc_influence(confidence: ArrayLike, correct: ArrayLike) -> Influence:
    """AUROC A with its influence values by DeLong's placements.

    A right image's placement is the share of wrong images below it, a wrong image's the share of
    right images above it; ties count half. ψ_i = (placement_i − A) / share of images of its kind.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).

    Returns:
        NaN, with influences of 0, if all images are right or all wrong.

    Example:
        >>> auroc_influence([0.9, 0.6, 0.7, 0.5], [1, 1, 0, 0]).value
        0.75
    """
    confidence, correct = check_confidence(confidence, correct)
    n = len(correct)
    right_count = float(correct.sum())
    wrong_count = n - right_count
    if right_count == 0 or wrong_count == 0:
        return Influence(math.nan, np.zeros(n))
    _, tie = np.unique(confidence, return_inverse=True)
    right_in_tie = np.bincount(tie, weights=correct)
    wrong_in_tie = np.bincount(tie, weights=1 - correct)
    wrong_below = (np.cumsum(wrong_in_tie) - wrong_in_tie / 2)[tie] / wrong_count
    right_above = 1 - (np.cumsum(right_in_tie) - right_in_tie / 2)[tie] / right_count
    value = float(wrong_below[correct == 1].mean())
    of_right = (wrong_below - value) * n / right_count
    of_wrong = (right_above - value) * n / wrong_count
    return Influence(value, np.where(correct == 1, of_right, of_wrong))


def auroc_interval(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> Interval:
    """AUROC with DeLong's interval on the logit scale, which keeps the ends between 0 and 1.

    Where confidence separates right and wrong images perfectly, the variance is 0. Then the
    interval is Wilson's with the number of images of the rarer kind.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        Value and ends as fractions; NaN if all images are right or all wrong.

    Example:
        >>> interval = auroc_interval([0.9, 0.6, 0.7, 0.5] * 10, [1, 1, 0, 0] * 10)
        >>> round(interval.low, 2), interval.value, round(interval.high, 2)
        (0.57, 0.75, 0.87)
    """
    confidence, correct = check_confidence(confidence, correct, scores)
    area = auroc_influence(confidence, correct)
    if math.isnan(area.value):
        return Interval(math.nan, math.nan, math.nan)
    rarer = min(float(correct.sum()), len(correct) - float(correct.sum()))
    slope = area.value * (1 - area.value)
    if slope <= 0 or area.standard_error() == 0:
        return wilson(min(1.0, max(0.0, area.value)), rarer)
    logit = math.log(area.value / (1 - area.value))
    half = NORMAL_QUANTILE * area.standard_error() / slope
    low = 1 / (1 + math.exp(-(logit - half)))
    high = 1 / (1 + math.exp(-(logit + half)))
    return Interval(area.value, low, high)
