"""Proper scoring rules: Brier score and negative log-likelihood, and their terms per sample.

A proper score is best on average for the true probabilities, so it measures accuracy and
calibration together. Lower is better.
"""
from __future__ import annotations

import numpy as np

from .arrays import Array, ArrayLike, check_probabilities, check_scores, log_softmax


def brier(
    probabilities: ArrayLike = None, labels: ArrayLike = None, *, logits: ArrayLike = None,
) -> float:
    """Mean over samples of Σ_k (p_k − y_k)², y the one-hot truth.

    Args:
        probabilities: Probabilities of all classes, (N, K); each row sums to 1.
        labels: True class of each sample, (N,).
        logits: Logits of all classes, in place of probabilities, (N, K).

    Returns:
        From 0 to 2.

    Example:
        >>> round(brier([[0.9, 0.1], [0.2, 0.8]], [0, 1]), 3)     # (0.02 + 0.08) / 2
        0.05
    """
    probabilities, labels = check_probabilities(probabilities, labels, logits)
    return float(brier_terms(probabilities, labels).mean())


def brier_terms(probabilities: ArrayLike, labels: ArrayLike) -> Array:
    """Σ_k (p_k − y_k)² of each sample.

    Args:
        probabilities: Probabilities of all classes, (N, K); each row sums to 1.
        labels: True class of each sample, (N,).

    Returns:
        From 0 to 2, (N,).
    """
    probabilities, labels = check_scores(probabilities, labels, "probabilities")
    p = probabilities.astype(np.float64)
    true = p[np.arange(len(labels)), labels]
    return (p**2).sum(axis=1) - 2 * true + 1  # Σ (p_k − y_k)², multiplied out


def nll(
    logits: ArrayLike = None, labels: ArrayLike = None, *, probabilities: ArrayLike = None,
) -> float:
    """Mean over samples of −log p of the true class.

    Args:
        logits: Logits of all classes, (N, K).
        labels: True class of each sample, (N,).
        probabilities: Probabilities of all classes, in place of logits, (N, K).

    Returns:
        In nats, from 0. It is finite with logits, even where softmax saturates. With probabilities
        it is infinite if a true class has 0.

    Example:
        >>> round(nll([[0.0, 0.0]], [1]), 3)     # log 2
        0.693
    """
    if probabilities is None:
        return float(nll_terms(logits, labels).mean())
    if logits is not None:
        raise ValueError("give logits and labels, or probabilities= with labels=.")
    probabilities, labels = check_scores(probabilities, labels, "probabilities")
    true = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    with np.errstate(divide="ignore"):
        return float(-np.log(true).mean())


def nll_terms(logits: ArrayLike, labels: ArrayLike) -> Array:
    """−log p of each sample's true class.

    Args:
        logits: Logits of all classes, (N, K).
        labels: True class of each sample, (N,).

    Returns:
        In nats, from 0, (N,).
    """
    logits, labels = check_scores(logits, labels, "logits")
    return -log_softmax(logits)[np.arange(len(labels)), labels]
