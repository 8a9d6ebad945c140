"""The verdict: which method is best calibrated, how the others err, and whether the lead is more than chance."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...datasets.base import dataset_info
from ..functional.significance import Difference
from ..registry import method_info
from .comparison import Comparison, Row
from .paired import ece_difference

PERCENT = "\u00a0%"  # a number and its sign stay on one line


@dataclass(frozen=True)
class Line:
    """Averages of one method over the data sets that all methods have, in percent."""

    row: Row
    ece: float
    accuracy: float
    over_confidence: float

    @property
    def method(self) -> str:
        return self.row.method

    @property
    def direction(self) -> str:
        """In words: by how much confidence exceeds accuracy, or falls short of it."""
        if abs(self.over_confidence) < 0.5:
            return "neither over- nor under-confident on average"
        kind = "over-confident" if self.over_confidence > 0 else "under-confident"
        return f"{kind} by {abs(self.over_confidence):.1f} points"


@dataclass(frozen=True)
class Verdict:
    lines: Sequence[Line]  # best first
    best: str  # label of its row
    sentence: str
    basis: str  # what it was measured on
    backbone: str


def judge(comparison: Comparison, repeats: int = 0) -> Verdict | None:
    """Sorts the methods of a main table by ECE; None if they share no data set. A paired bootstrap with `repeats`
    redraws tests whether the lead is more than chance; 0 means no test."""
    columns = comparison.common_columns()
    if not columns:
        return None
    lines = [
        Line(row, *(100 * comparison.mean(row, columns, metric) for metric in ("ece", "accuracy", "signed_error")))
        for row in comparison.rows_on(columns)
    ]
    lines.sort(key=lambda line: line.ece)
    tuned = [line for line in lines if method_info(line.method).tuned] or lines
    sets = ", ".join(f"{dataset_info(column.dataset).label} {column.n:,}" for column in columns)
    basis = (f"ECE in percent, {comparison.bins} bins; lower is better. Backbone {comparison.backbone_label}, "
             f"{sum(column.n for column in columns):,} test images: {sets}.")
    lead = ece_difference(comparison, tuned[1].row, tuned[0].row, columns, repeats) if len(tuned) > 1 else None
    return Verdict(lines, tuned[0].row.label, _sentence(lines, tuned, lead), basis, comparison.backbone_label)


def _sentence(lines: Sequence[Line], tuned: Sequence[Line], lead: Difference | None) -> str:
    best = tuned[0]
    if len(tuned) == 1:
        sentence = f"{best.row.label} has an ECE of {best.ece:.1f}{PERCENT}: {best.direction}"
    else:
        rival = tuned[1]
        lowest = f"{best.row.label} has the lowest ECE of the tuned methods, {best.ece:.1f}{PERCENT}"
        other = f"{rival.row.label} with {rival.ece:.1f}{PERCENT}"
        if lead is None:
            sentence = f"{lowest}, before {other}; whether by chance was not tested"
        elif lead.real:
            sentence = (f"{best.row.label} is the best calibrated of the tuned methods: ECE {best.ece:.1f}{PERCENT}, "
                        f"against {rival.ece:.1f}{PERCENT} for {rival.row.label}{_interval(lead)}")
        else:
            sentence = f"{lowest}, but these images show no difference to {other}{_interval(lead)}"
        worst = tuned[-1]
        if worst is not rival:
            sentence += f"; {worst.row.label} has {worst.ece:.1f}{PERCENT} and is {worst.direction}"
    zero = [line for line in lines if method_info(line.method).zero_shot and line not in tuned]
    if zero:
        name = f"{zero[0].row.label} CLIP" if not zero[0].row.name else f"The {zero[0].row.label}"
        sentence += f". {name} has {zero[0].ece:.1f}{PERCENT}"
    return sentence + "."


def _interval(lead: Difference) -> str:
    value, low, high = lead.points
    return f" (difference {value:+.1f} points, paired 95{PERCENT} interval {low:+.1f} to {high:+.1f})"
