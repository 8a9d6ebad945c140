"""Input checks of the metrics: tensors, arrays and lists become checked arrays, or a ValueError says why not."""
from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray
ArrayLike = Any  # a tensor, an array or a nested list of numbers


def to_tensor(values: ArrayLike) -> torch.Tensor:
    """The values as a tensor without gradient."""
    return values.detach() if isinstance(values, torch.Tensor) else torch.as_tensor(np.asarray(values))


def to_numpy(values: ArrayLike) -> Array:
    """The values as an array, on the CPU."""
    if not isinstance(values, torch.Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def number_array(values: ArrayLike, name: str, ndim: int | None = None) -> Array:
    """Finite numbers as a floating-point array of `ndim` dimensions, or a ValueError that names the argument."""
    array = to_numpy(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be numbers, got {array.dtype}.")
    if array.size == 0 or array.ndim == 0 or ndim not in (None, array.ndim):
        raise ValueError(f"{name} must have {ndim or 'some'} dimension(s) and not be empty, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite.")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def check_bins(bins: int) -> None:
    if isinstance(bins, bool) or not isinstance(bins, int | np.integer) or bins < 1:
        raise ValueError(f"bins must be a whole number of at least 1, got {bins!r}.")


def bin_index(values: Array, bins: int) -> Array:
    """The bin (lo, hi] of each value; 0 goes to the first. The edges have the precision of the values, so that 0.15
    lies on its edge in any precision."""
    check_bins(bins)
    edges = (np.arange(bins + 1) / bins).astype(values.dtype)
    return np.maximum(np.searchsorted(edges, values, side="left") - 1, 0)


def check_confidence(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array]:
    """Confidence in [0, 1] and correctness as 0 and 1, both (N,)."""
    confidence = number_array(confidence, "confidence", ndim=1)
    correct = number_array(correct, "correct", ndim=1).astype(np.float64)
    if confidence.shape != correct.shape:
        raise ValueError(f"confidence and correct need one length, got {len(confidence)} and {len(correct)}.")
    if confidence.min() < 0 or confidence.max() > 1:
        raise ValueError(f"confidence must lie in [0, 1], got {confidence.min():g} to {confidence.max():g}.")
    if not np.isin(correct, (0, 1)).all():
        raise ValueError("correct must be boolean, or 0 and 1.")
    return confidence, correct


def check_scores(scores: ArrayLike, labels: ArrayLike, name: str) -> tuple[Array, Array]:
    """Logits or probabilities (N, K) and labels (N,) within [0, K)."""
    scores = number_array(scores, name, ndim=2)
    labels = to_numpy(labels)
    if labels.shape != scores.shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(f"labels must be {len(scores)} integers, got {labels.dtype} of shape {labels.shape}.")
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(f"labels must lie in [0, {scores.shape[1]}), got {labels.min()} to {labels.max()}.")
    if name == "probabilities":
        if scores.min() < 0 or scores.max() > 1:
            raise ValueError(f"probabilities must lie in [0, 1], got {scores.min():g} to {scores.max():g}.")
        if np.abs(scores.sum(axis=1, dtype=np.float64) - 1).max() > 1e-2:
            raise ValueError("probabilities must sum to one in every row.")
    return scores, labels


def log_softmax(logits: ArrayLike) -> Array:
    """Log-probabilities over the last axis, in double precision."""
    return torch.from_numpy(number_array(logits, "logits").astype(np.float64)).log_softmax(-1).numpy()


def check_seeds(confidence: ArrayLike, correct: ArrayLike) -> tuple[Array, Array]:
    """Confidence in [0, 1] and correctness as 0 and 1, both (N, S) of S seeds; (N,) is one seed."""
    confidence = number_array(confidence, "confidence")
    correct = number_array(correct, "correct")
    if confidence.ndim > 2 or confidence.shape != correct.shape:
        raise ValueError(
            "confidence and correct need one shape, (N,) or (N, S), "
            f"got {confidence.shape} and {correct.shape}.")
    flat_confidence, flat_correct = check_confidence(confidence.ravel(), correct.ravel())
    shape = (len(confidence), confidence.size // len(confidence))
    return flat_confidence.reshape(shape), flat_correct.reshape(shape)
