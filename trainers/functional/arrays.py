"""Input checks of the metrics: tensors, arrays and lists become checked NumPy arrays.

A ValueError says what is wrong with the input.
"""
from __future__ import annotations

from typing import Any, TypedDict

import numpy as np
import torch

Array = np.ndarray
ArrayLike = Any  # a tensor, an array or a nested list of numbers


class Scores(TypedDict, total=False):
    """What a metric of the predicted class also takes, by keyword, in place of confidence and
    correct.

    Attributes:
        logits: Logits of all classes, (N, K).
        probabilities: Probabilities, in place of logits, (N, K); each row sums to 1.
        labels: True class of each sample, with either of them, (N,).
    """

    logits: ArrayLike
    probabilities: ArrayLike
    labels: ArrayLike


def to_tensor(values: ArrayLike) -> torch.Tensor:
    """The values as a tensor without gradient."""
    if isinstance(values, torch.Tensor):
        return values.detach()
    return torch.as_tensor(np.asarray(values))


def to_numpy(values: ArrayLike) -> Array:
    """The values as an array, on the CPU."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:  # which numpy does not have
        values = values.float()
    return values.numpy()


def number_array(values: ArrayLike, name: str, ndim: int | None = None) -> Array:
    """Finite numbers as a floating-point array.

    Args:
        values: The numbers.
        name: Name of the argument, for the message of the ValueError.
        ndim: How many dimensions it must have; None = at least one.
    """
    array = to_numpy(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be numbers, got {array.dtype}.")
    if array.size == 0 or array.ndim == 0 or ndim not in (None, array.ndim):
        raise ValueError(f"{name} must have {ndim or 'some'} dimension(s) and not be empty, "
                         f"got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite.")
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float64)


def check_bins(bins: int) -> None:
    """Refuses a number of bins that is not a whole number of at least 1."""
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"bins must be a whole number of at least 1, got {bins!r}.")


def bin_index(values: Array, bins: int) -> Array:
    """The bin (lo, hi] of each value; 0 goes to the first.

    The edges have the precision of the values, so that 0.15 lies on its edge in any precision.

    Args:
        values: Numbers from 0 to 1, of any shape.
        bins: Number of bins of equal width.

    Returns:
        Integers from 0 to bins − 1, in the shape of the values.
    """
    check_bins(bins)
    edges = (np.arange(bins + 1) / bins).astype(values.dtype)
    return np.maximum(np.searchsorted(edges, values, side="left") - 1, 0)


def check_confidence(
    confidence: ArrayLike, correct: ArrayLike, scores: Scores | None = None,
) -> tuple[Array, Array]:
    """Confidence in [0, 1] and correctness as 0 and 1, both (N,).

    Args:
        confidence: Probability of the predicted class, or None with `scores`.
        correct: Whether the prediction is right, or None with `scores`.
        scores: Logits or probabilities with labels, from which both follow.
    """
    if scores or confidence is None or correct is None:
        confidence, correct = top_class_of(confidence, correct, scores or {})
    confidence = number_array(confidence, "confidence", ndim=1)
    correct = number_array(correct, "correct", ndim=1).astype(np.float64)
    if confidence.shape != correct.shape:
        raise ValueError(
            f"confidence and correct need one length, got {len(confidence)} and {len(correct)}."
        )
    if confidence.min() < 0 or confidence.max() > 1:
        raise ValueError(
            f"confidence must lie in [0, 1], got {confidence.min():g} to {confidence.max():g}."
        )
    if not np.isin(correct, (0, 1)).all():
        raise ValueError("correct must be boolean, or 0 and 1.")
    return confidence, correct


def top_class(
    logits: ArrayLike = None, labels: ArrayLike = None, *, probabilities: ArrayLike = None,
) -> tuple[Array, Array]:
    """Confidence and correctness of predictions, the arguments of most metrics.

    Args:
        logits: (N, K).
        labels: True class of each sample, (N,).
        probabilities: Probabilities of all classes, in place of logits, (N, K).

    Returns:
        The largest softmax probability, (N,), and whether its class is the true one, (N,).

    Example:
        >>> confidence, correct = top_class([[0.0, 0.0], [2.0, 0.0]], [1, 0])
        >>> confidence.round(2).tolist(), correct.tolist()
        ([0.5, 0.88], [False, True])
    """
    return top_class_of(
        None, None, {"logits": logits, "probabilities": probabilities, "labels": labels}
    )


def top_class_of(confidence: ArrayLike, correct: ArrayLike, scores: Scores) -> tuple[Array, Array]:
    """Confidence and correctness of the predicted class, from logits or probabilities and labels.

    Args:
        confidence: What a metric got as its first argument; it must be None.
        correct: What a metric got as its second argument; it must be None.
        scores: Logits or probabilities, with labels.

    Returns:
        The largest probability, from 0 to 1, and whether its class is the true one, (N,) each.
    """
    unknown = set(scores) - set(Scores.__annotations__)
    if unknown:
        raise TypeError(f"unexpected keyword argument '{unknown.pop()}'")
    logits = scores.get("logits")
    probabilities = scores.get("probabilities")
    labels = scores.get("labels")
    has_exactly_one = (logits is None) != (probabilities is None)
    if confidence is not None or correct is not None or not has_exactly_one or labels is None:
        raise ValueError(
            "give confidence and correct, or logits= with labels=, or probabilities= with labels=."
        )
    if logits is not None:
        logits, labels = check_scores(logits, labels, "logits")
        values = np.exp(log_softmax(logits).max(axis=-1)).clip(0, 1)
        # The argmax is that of the logits: where softmax saturates, several classes have 1.0.
        return values, logits.argmax(axis=-1) == labels
    probabilities, labels = check_scores(probabilities, labels, "probabilities")
    return probabilities.max(axis=-1), probabilities.argmax(axis=-1) == labels


def check_scores(scores: ArrayLike, labels: ArrayLike, name: str) -> tuple[Array, Array]:
    """Logits or probabilities (N, K) and labels (N,) within [0, K).

    Args:
        scores: Logits or probabilities.
        labels: True classes.
        name: "logits" or "probabilities"; the latter must lie in [0, 1] and sum to 1 in each row.
    """
    scores = number_array(scores, name, ndim=2)
    labels = to_numpy(labels)
    if labels.shape != scores.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be {len(scores)} integers, got {labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(
            f"labels must lie in [0, {scores.shape[1]}), got {labels.min()} to {labels.max()}."
        )
    if name == "probabilities":
        if scores.min() < 0 or scores.max() > 1:
            raise ValueError(
                f"probabilities must lie in [0, 1], got {scores.min():g} to {scores.max():g}."
            )
        # The tolerance allows for probabilities that were computed or stored in half precision.
        if np.abs(scores.sum(axis=1, dtype=np.float64) - 1).max() > 1e-2:
            raise ValueError("probabilities must sum to one in every row.")
    return scores, labels


def log_softmax(logits: ArrayLike) -> Array:
    """Log-probabilities over the last axis, in double precision."""
    return (
        torch.from_numpy(number_array(logits, "logits").astype(np.float64)).log_softmax(-1).numpy()
    )


def check_seeds(
    confidence: ArrayLike, correct: ArrayLike, scores: Scores | None = None,
) -> tuple[Array, Array]:
    """Confidence in [0, 1] and correctness as 0 and 1, both (N, S) of S seeds.

    Args:
        confidence: Probability of the predicted class, (N, S), or (N,) of one seed; None with
            `scores`.
        correct: Whether each prediction is right, in the same shape; None with `scores`.
        scores: Logits or probabilities of one seed, as for `check_confidence`.
    """
    if scores or confidence is None or correct is None:
        confidence, correct = top_class_of(confidence, correct, scores or {})
    confidence = number_array(confidence, "confidence")
    correct = number_array(correct, "correct")
    if confidence.ndim > 2 or confidence.shape != correct.shape:
        raise ValueError(
            "confidence and correct need one shape, (N,) or (N, S), "
            f"got {confidence.shape} and {correct.shape}.")
    flat_confidence, flat_correct = check_confidence(confidence.ravel(), correct.ravel())
    shape = (len(confidence), confidence.size // len(confidence))
    return flat_confidence.reshape(shape), flat_correct.reshape(shape)


def check_predictions(
    predictions: ArrayLike, labels: ArrayLike, logits: ArrayLike, probabilities: ArrayLike,
) -> tuple[Array, Array]:
    """Predicted and true classes, both (N,), from predictions, logits or probabilities.

    Args:
        predictions: Class numbers from 0, (N,).
        labels: Class numbers from 0, (N,).
        logits: (N, K), in place of predictions.
        probabilities: (N, K), in place of predictions.
    """
    candidates = [values is not None for values in (predictions, logits, probabilities)]
    if sum(candidates) != 1 or labels is None:
        raise ValueError(
            "give predictions and labels, or logits= with labels=, or probabilities= with labels=."
        )
    if logits is not None:
        logits, labels = check_scores(logits, labels, "logits")
        return logits.argmax(axis=-1), labels
    if probabilities is not None:
        probabilities, labels = check_scores(probabilities, labels, "probabilities")
        return probabilities.argmax(axis=-1), labels
    predictions = to_numpy(predictions)
    labels = to_numpy(labels)
    for name, values in (("predictions", predictions), ("labels", labels)):
        if (
            values.ndim != 1
            or values.size == 0
            or values.dtype.kind not in "iu"
            or values.min() < 0
        ):
            raise ValueError(
                f"{name} must be class numbers from 0, (N,), got {values.dtype} of shape "
                f"{values.shape}."
            )
    if predictions.shape != labels.shape:
        raise ValueError(
            f"predictions and labels need one length, got {len(predictions)} and {len(labels)}."
        )
    return predictions, labels


def check_probabilities(
    probabilities: ArrayLike, labels: ArrayLike, logits: ArrayLike,
) -> tuple[Array, Array]:
    """Probabilities (N, K) and labels (N,).

    Args:
        probabilities: (N, K).
        labels: Class numbers from 0, (N,).
        logits: (N, K), in place of probabilities.
    """
    if (probabilities is None) == (logits is None) or labels is None:
        raise ValueError("give probabilities and labels, or logits= with labels=.")
    if logits is not None:
        logits, labels = check_scores(logits, labels, "logits")
        return np.exp(log_softmax(logits)), labels
    return check_scores(probabilities, labels, "probabilities")
