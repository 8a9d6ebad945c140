"""The answer in one sentence: which method is best calibrated, and how the others miss."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..registry import is_tuned, is_zero_shot, method_label
from .grid import Column, Comparison, Row

PERCENT = "\u00a0%"  # a number and its sign stay on one line


@dataclass(frozen=True)
class Line:
    """One method's average over the data sets that all methods have, in percent."""

    method: str
    ece: float
    accuracy: float
    over_confidence: float

    @property
    def direction(self) -> str:
        """In words: by how much confidence exceeds accuracy, or falls short of it."""
        if abs(self.over_confidence) < 0.5:
            return "neither over- nor under-confident on average"
        kind = "over-confident" if self.over_confidence > 0 else "under-confident"
        return f"{kind} by {abs(self.over_confidence):.1f}"


@dataclass(frozen=True)
class Verdict:
    lines: Sequence[Line]  # best first
    best: str  # method
    sentence: str
    basis: str  # what the figures were measured on


def judge(comparison: Comparison) -> Verdict | None:
    """Ranks the methods of a main table by ECE; None if they share no data set."""
    columns = comparison.common_columns()
    if not columns:
        return None
    lines = []
    for row in comparison.rows:
        if not all((row, column) in comparison.cells for column in columns):
            continue

        def mean(metric: str, row=row) -> float:
            cells = [comparison.cells[row, column] for column in columns]
            return 100 * float(np.mean([np.mean([m.metrics[metric].value for m in cell]) for cell in cells]))

        lines.append(Line(row.method, mean("ece"), mean("accuracy"), mean("signed_error")))
    lines.sort(key=lambda line: line.ece)
    tuned = [line for line in lines if is_tuned(line.method)] or lines
    sets = ", ".join(comparison.column_label(column) for column in columns)
    images = sum(column.n for column in columns)
    basis = (f"ECE in percent, {comparison.bins} bins; lower is better. {comparison.backbone}, {sets}: {images:,} test "
             "images.")
    sentence = _sentence(lines, tuned)
    if len(tuned) > 1 and _indistinct(comparison, columns, tuned[0].method, tuned[1].method):
        rival = method_label(tuned[1].method)
        sentence += f" With these images the lead over {rival} is within the 95{PERCENT} intervals of both."
    return Verdict(lines, tuned[0].method, sentence, basis)


def _indistinct(comparison: Comparison, columns: Sequence[Column], best: str, rival: str) -> bool:
    """Whether the bootstrap intervals of two methods' ECE overlap on every data set; False where there are none."""
    pairs = [[comparison.cells[Row(name), column][0].metrics["ece"] for name in (best, rival)] for column in columns]
    return all(first.low <= second.high and second.low <= first.high for first, second in pairs)


def _sentence(lines: Sequence[Line], tuned: Sequence[Line]) -> str:
    best = tuned[0]
    if len(tuned) == 1:
        return f"{method_label(best.method)} has an ECE of {best.ece:.1f}{PERCENT}: {best.direction}."
    sentence = f"{method_label(best.method)} is the best calibrated of the tuned methods: ECE {best.ece:.1f}{PERCENT}"
    rival = tuned[1]
    sentence += f", against {rival.ece:.1f}{PERCENT} for {method_label(rival.method)}"
    worst = tuned[-1]
    if worst is not rival:
        sentence += f" and {worst.ece:.1f}{PERCENT} for {method_label(worst.method)}, which is {worst.direction}"
    zero = [line for line in lines if is_zero_shot(line.method)]
    if zero:
        sentence += f". Zero-shot CLIP has {zero[0].ece:.1f}{PERCENT}"
    return sentence + "."
