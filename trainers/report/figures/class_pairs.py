"""Mistakes by pair of classes (Fig. 2 of the SoC paper)."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ...functional.arrays import Array, ArrayLike, check_scores, log_softmax
from ...registry import Method, method_info
from ..measure import Measured
from .style import COLUMN, INK, new_figure, styled, wrapped

MAX_CLASSES = 400  # with more, nothing can be seen in a figure of class pairs


@dataclass(frozen=True)
class PairErrors:
    """Wrong predictions by class pair.

    Accuracy among them is 0, so a pair's ECE is its mean confidence.

    Attributes:
        predicted: The class that was predicted, (P,).
        label: The true class, (P,).
        count: Number of mistakes of the pair, (P,).
        error: Their mean confidence, a fraction from 0 to 1, (P,).
        similarity: Zero-shot cosine of the two classes' prompts, (P,).
    """

    predicted: Array
    label: Array
    count: Array
    error: Array
    similarity: Array


def pair_errors_of(measured: Measured) -> PairErrors | None:
    """Mistakes of a run by pair of classes; None if class features are unknown or classes too many.
    """
    if not 2 <= measured.run.results["classes"] <= MAX_CLASSES:
        return None
    predictions = measured.run.load_predictions()
    if predictions.text is None:
        return None
    similarity = predictions.text @ predictions.text.T
    logits = predictions.logits
    if measured.from_tuned_run:
        logits = predictions.zero_shot_logits
    return pair_errors(logits, predictions.label, similarity)


def pair_errors(logits: ArrayLike, labels: ArrayLike, similarity: ArrayLike) -> PairErrors:
    """The wrong predictions of a run, grouped by predicted class and label.

    Args:
        logits: (N, K).
        labels: True class of each image, (N,).
        similarity: Cosine of the features of each two classes, (K, K).
    """
    logits, labels = check_scores(logits, labels, "logits")
    similarity = np.asarray(similarity, dtype=np.float64)
    if similarity.shape != (logits.shape[1],) * 2:
        raise ValueError(
            f"similarity must be K×K with K = {logits.shape[1]}, got shape {similarity.shape}."
        )
    predicted = logits.argmax(axis=1)
    confidence = np.exp(log_softmax(logits).max(axis=1))
    wrong = predicted != labels
    # A pair of classes is coded as one number, so that `unique` groups the mistakes by it.
    classes = logits.shape[1]
    codes, group, count = np.unique(
        predicted[wrong] * classes + labels[wrong], return_inverse=True, return_counts=True,
    )
    pair_predicted, pair_label = np.divmod(codes, classes)
    error = np.bincount(group, weights=confidence[wrong], minlength=len(codes)) / count
    pair_similarity = similarity[pair_predicted, pair_label]
    return PairErrors(pair_predicted, pair_label, count, error, pair_similarity)


def draw_pair_errors(methods: Mapping[Method, PairErrors], title: str = "") -> Figure:
    """One panel per method: confidence of the wrong predictions by zero-shot similarity.

    The area of a circle grows with the number of mistakes of its pair.
    """
    with styled():
        figure = new_figure(max(COLUMN, 1.1 + 2.1 * len(methods)), 2.55)
        largest = 1
        for data in methods.values():
            if len(data.count):
                largest = max(largest, data.count.max())
        panels = figure.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (method, data) in zip(panels, methods.items(), strict=True):
            info = method_info(method)
            axes.scatter(
                data.similarity, 100 * data.error, s=6 + 150 * data.count / largest,
                color=info.colour, alpha=0.45, edgecolor=info.colour, linewidth=0.6,
            )
            words = f"{wrapped(info.label)}: {data.count.sum():,} mistakes"
            if len(data.count):
                mean = 100 * np.average(data.error, weights=data.count)
                axes.axhline(mean, color=INK, linestyle=(0, (4, 3)), linewidth=0.7)
                words += f", mean {mean:.0f} %"
            # ylim: room for the circles at either end
            axes.set(
                title=words, ylim=(-3, 107), yticks=range(0, 101, 20),
                xlabel="similarity of the two classes",
            )
            axes.margins(x=0.08)
            axes.grid()
        panels[0].set_ylabel("confidence of the mistakes (%)")
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.02, ha="left")
        return figure
