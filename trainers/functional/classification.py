"""Accuracy of the predicted classes: over all samples, and averaged over classes.

Arguments and checks are those of `calibration`. Values are fractions from 0 to 1.
"""
from __future__ import annotations

from typing import NamedTuple, Unpack

import numpy as np

from .arrays import (
    Array,
    ArrayLike,
    Scores,
    check_confidence,
    check_predictions,
    check_seeds,
)
from .intervals import Interval, share_interval


class ClassCounts(NamedTuple):
    """Numbers of samples by class, (K,) each.

    Attributes:
        true: Samples of the class.
        predicted: Samples that are predicted as the class.
        right: Samples of the class that are predicted as it.
    """

    true: Array
    predicted: Array
    right: Array


def count_by_class(predictions: Array, labels: Array) -> ClassCounts:
    """Counts samples by class, up to the highest class that occurs.

    Args:
        predictions: Predicted class of each sample, checked, (N,).
        labels: True class of each sample, checked, (N,).

    Example:
        >>> [counts.tolist() for counts in count_by_class(np.array([0, 0, 1]), np.array([0, 1, 1]))]
        [[1, 2], [2, 1], [1, 1]]
    """
    classes = int(max(predictions.max(), labels.max())) + 1
    return ClassCounts(
        true=np.bincount(labels, minlength=classes),
        predicted=np.bincount(predictions, minlength=classes),
        right=np.bincount(labels[predictions == labels], minlength=classes),
    )


def accuracy(
    confidence: ArrayLike = None, correct: ArrayLike = None, **scores: Unpack[Scores],
) -> float:
    """The share of correct samples.

    Args:
        confidence: Only checked; it is here because the other metrics take it, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> from_top_class = accuracy([0.9, 0.8, 0.6], [1, 1, 0])
        >>> from_top_class == accuracy(logits=[[0, 1], [0, 1], [0, 1]], labels=[1, 1, 0])
        True
    """
    _, correct = check_confidence(confidence, correct, scores)
    return float(correct.mean())


def accuracy_interval(
    confidence: ArrayLike = None,
    correct: ArrayLike = None,
    clusters: ArrayLike | None = None,
    **scores: Unpack[Scores],
) -> Interval:
    """Accuracy with Wilson's 95 % interval.

    Several seeds, and clusters of images, are treated as `share_interval` says.

    Args:
        confidence: Only checked; it is here because the other metrics take it. (N,) or (N, S).
        correct: Whether the prediction is right, 0 or 1, in the same shape.
        clusters: For each image the group it belongs to, see `calibration.over_confidence`.
        scores: `logits=` or `probabilities=` with `labels=`, in place of confidence and correct.

    Returns:
        Value and ends as fractions from 0 to 1.

    Example:
        >>> interval = accuracy_interval([0.9] * 100, [1] * 80 + [0] * 20)
        >>> round(interval.low, 3), interval.value, round(interval.high, 3)
        (0.711, 0.8, 0.867)
    """
    _, correct = check_seeds(confidence, correct, scores)
    return share_interval(correct, np.ones(correct.shape, dtype=bool), clusters)


def balanced_accuracy(
    predictions: ArrayLike = None, labels: ArrayLike = None, *, logits: ArrayLike = None,
    probabilities: ArrayLike = None,
) -> float:
    """Mean over classes of recall: (1 / K') Σ_k right_k / n_k.

    The K' classes are those that occur among the labels, as in scikit-learn. Each of them counts
    the same, however many samples it has.

    Args:
        predictions: Predicted class of each sample, (N,).
        labels: True class of each sample, (N,).
        logits: Logits, in place of predictions, (N, K).
        probabilities: Probabilities, in place of predictions; rows sum to 1, (N, K).

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> balanced_accuracy([0, 0, 0, 0], [0, 0, 0, 1])     # (3 / 3 + 0 / 1) / 2
        0.5
    """
    predictions, labels = check_predictions(predictions, labels, logits, probabilities)
    counts = count_by_class(predictions, labels)
    occurs = counts.true > 0
    return float((counts.right[occurs] / counts.true[occurs]).mean())


def macro_f1(
    predictions: ArrayLike = None, labels: ArrayLike = None, *, logits: ArrayLike = None,
    probabilities: ArrayLike = None,
) -> float:
    """Mean over classes of F1: (1 / K') Σ_k 2 right_k / (n_k + predicted_k).

    The K' classes are those that occur among labels or predictions, as in scikit-learn.

    Args:
        predictions: Predicted class of each sample, (N,).
        labels: True class of each sample, (N,).
        logits: Logits, in place of predictions, (N, K).
        probabilities: Probabilities, in place of predictions; rows sum to 1, (N, K).

    Returns:
        A fraction from 0 to 1.

    Example:
        >>> round(macro_f1([0, 0, 0, 0], [0, 0, 0, 1]), 3)     # (2 · 3 / (3 + 4) + 0) / 2
        0.429
    """
    predictions, labels = check_predictions(predictions, labels, logits, probabilities)
    counts = count_by_class(predictions, labels)
    total = counts.true + counts.predicted
    occurs = total > 0
    return float((2 * counts.right[occurs] / total[occurs]).mean())
