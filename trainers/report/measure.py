"""Metrics, class statistics and mistakes of one run, computed from its predictions without model or images."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...datasets.utils.errors import DataError
from ..functional import calibration as cal
from ..functional.arrays import Array, log_softmax
from ..functional.calibration import Interval
from ..functional.posthoc import cross_fit_temperature, fit_temperature
from .load import Predictions, Run
from .metrics import METRICS, Samples, Top, posthoc_metrics

MISTAKES = 12  # kept per run


@dataclass(frozen=True)
class ClassRow:
    """Statistics of one class."""

    name: str
    n: int
    accuracy: float
    zero_shot_accuracy: float
    confidence: float
    confused_with: str

    @property
    def gap(self) -> float:
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction with the top three classes before and after adaptation, as (name, probability)."""

    index: int
    truth: str
    before: tuple[tuple[str, float], ...]
    after: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Measured:
    """A run and its metrics, in fractions."""

    run: Run
    bins: int
    tuned: Top
    zero_shot: Top
    metrics: dict[str, Interval]
    zero_shot_metrics: dict[str, Interval]  # empty if the run has no zero-shot logits
    classes: list[ClassRow]
    mistakes: list[Mistake]
    derived: bool = False  # the zero-shot part of a tuned run, used as a zero-shot run

    def value(self, metric: str) -> float:
        return float(self.metrics[metric].value)


def mean_over_seeds(runs: Sequence[Measured], metric: str) -> float:
    """In fractions."""
    return float(np.mean([m.value(metric) for m in runs]))


def measure(
    run: Run, bins: int = cal.BINS, repeats: int = 0, validation: Run | None = None, posthoc: bool = False,
) -> Measured:
    """All metrics of a run; with bootstrap intervals if `repeats` is above 0, and with those of label-free post-hoc
    scaling if `posthoc`.

    Temperature scaling is fitted on `validation`, the same method on the validation split, or else cross-fitted.
    """
    data = run.load_predictions()
    held_out = validation.load_predictions() if validation else None
    metrics, tuned = _metrics(data, "logits", bins, repeats, held_out)
    before, zero_shot = _metrics(data, "zero_shot_logits", bins, 0, held_out)
    if posthoc:
        for found, scaled in zip((metrics, before), posthoc_metrics(run, data, bins), strict=True):
            found |= scaled
    classes, mistakes = class_rows(data, run.classnames), worst_mistakes(data, run.classnames)
    if not run.has_zero_shot:  # its `zero_shot_logits` are its own and no reference
        before = {}
        del metrics["ece_sals"]
        classes = [replace(row, zero_shot_accuracy=np.nan) for row in classes]
        mistakes = [replace(mistake, before=()) for mistake in mistakes]
    metrics = {key: metrics[key] for key in METRICS if key in metrics}  # in their order
    return Measured(run, bins, tuned, zero_shot, metrics, before, classes, mistakes)


def _metrics(
    data: Predictions, name: str, bins: int, repeats: int, held_out: Predictions | None,
) -> tuple[dict[str, Interval], Top]:
    """The metrics of the logits called `name`, and their top classes."""
    logits, label = getattr(data, name), data.label
    with_temperature = None
    if held_out:
        temperature = fit_temperature(getattr(held_out, name), held_out.label)
        with_temperature = Top(*cal.top_class(logits / temperature, label))
    elif len(label) > 1:
        with_temperature = Top(*cal.top_class(cross_fit_temperature(logits, label)[0], label))
    top = Top(*cal.top_class(logits, label))
    with_sals = Top(*cal.top_class(cal.sals(logits, data.zero_shot_logits), label))
    samples = Samples(logits, np.exp(log_softmax(logits)), label, top, with_sals, with_temperature, bins)
    measured = {}
    for key, metric in METRICS.items():
        try:
            value = metric.measure(samples, repeats)
        except ValueError:
            raise
        except Exception as error:  # of a plugin's function
            raise DataError(f"metric '{key}' failed: {type(error).__name__}: {error}") from error
        if value is not None:
            measured[key] = value
    return measured, top


def class_rows(data: Predictions, names: list[str]) -> list[ClassRow]:
    """A line for each class that occurs; the largest gap between confidence and accuracy first."""
    predicted, before = data.logits.argmax(axis=1), data.zero_shot_logits.argmax(axis=1)
    confidence = np.exp(log_softmax(data.logits).max(axis=1))
    rows = []
    for k, name in enumerate(names):
        own = data.label == k
        if not own.any():
            continue
        wrong = np.bincount(predicted[own & (predicted != k)], minlength=len(names))
        rows.append(ClassRow(
            name, int(own.sum()), float((predicted[own] == k).mean()), float((before[own] == k).mean()),
            float(confidence[own].mean()), names[int(wrong.argmax())] if wrong.any() else "",
        ))
    return sorted(rows, key=lambda row: -row.gap)


def worst_mistakes(data: Predictions, names: list[str], count: int = MISTAKES) -> list[Mistake]:
    """The wrong predictions of highest confidence; equal ones in the order of the test list."""
    log_p = log_softmax(data.logits)
    confidence, predicted = np.exp(log_p.max(axis=1)), log_p.argmax(axis=1)
    wrong = np.flatnonzero(predicted != data.label)
    chosen = wrong[np.lexsort((data.index[wrong], -confidence[wrong]))][:count]
    before = log_softmax(data.zero_shot_logits[chosen]) if len(chosen) else ()
    return [
        Mistake(int(data.index[i]), names[data.label[i]], _top(before[at], names), _top(log_p[i], names))
        for at, i in enumerate(chosen)
    ]


def _top(log_p: Array, names: list[str], count: int = 3) -> tuple[tuple[str, float], ...]:
    best = np.argsort(-log_p, kind="stable")[:count]
    return tuple((names[k], float(np.exp(log_p[k]))) for k in best)
