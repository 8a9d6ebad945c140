"""The data of figures, from measured runs."""
from __future__ import annotations

from collections.abc import Sequence

from ..measure import Measured, mean_over_seeds
from .class_pairs import PairErrors, pair_errors
from .comparison import Point

MAX_CLASSES = 400  # of a class-by-class figure; with more, nothing can be seen


def point(cell: Sequence[Measured]) -> Point:
    """Accuracy and ECE in percent, means over the seeds of a cell."""
    return Point(100 * mean_over_seeds(cell, "accuracy"), 100 * mean_over_seeds(cell, "ece"))


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
