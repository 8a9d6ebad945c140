"""The verdict: which method is best calibrated, how the others err, and whether the lead is more than chance."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..registry import method_info
from .comparison import Comparison, Row
from .paired import Pair, correction

PERCENT = "\u00a0%"  # a number and its sign stay on one line


@dataclass(frozen=True)
class Line:
    """Averages of one method over the data sets that all methods have, in percent."""

    row: Row
    ece: float
    accuracy: float
    over_confidence: float

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


def judge(comparison: Comparison, pairs: Sequence[Pair] = ()) -> Verdict | None:
    """Sorts the methods of a main table by ECE; None if they share no data set. The tests of `pairs` decide whether the
    lead is more than chance."""
    columns = comparison.common_columns()
    if not columns:
        return None
    lines = [
        Line(row, *(100 * comparison.mean(row, columns, metric) for metric in ("ece", "accuracy", "signed_error")))
        for row in comparison.rows_on(columns)
    ]
    lines.sort(key=lambda line: line.ece)
    tuned = [line for line in lines if method_info(line.row.method).tuned]
    tuned = tuned or [line for line in lines if not method_info(line.row.method).zero_shot] or lines
    sets = ", ".join(f"{column.label} {column.n:,}" for column in columns)
    basis = (f"ECE in percent, {comparison.bins} bins; lower is better. Backbone {comparison.backbone_label}, "
             f"{sum(column.n for column in columns):,} test images: {sets}.")
    return Verdict(lines, tuned[0].row.label, _sentence(lines, tuned, pairs), basis, comparison.backbone_label)


def _sentence(lines: Sequence[Line], tuned: Sequence[Line], pairs: Sequence[Pair]) -> str:
    best, others = tuned[0], tuned[1:]
    if not others:
        sentence = f"{best.row.label} has an ECE of {best.ece:.1f}{PERCENT}: {best.direction}"
    else:
        sentence = _lead(best, others, pairs)
        worst = others[-1]
        if worst is not others[0]:
            sentence += f"; {worst.row.label} has {worst.ece:.1f}{PERCENT} and is {worst.direction}"
    zero = [line for line in lines if method_info(line.row.method).zero_shot and line not in tuned]
    if zero:
        name = f"{zero[0].row.label} CLIP" if not zero[0].row.name else f"The {zero[0].row.label}"
        sentence += f". {name} has {zero[0].ece:.1f}{PERCENT}"
    tested = f" {correction(pairs)}" if pairs and others else ""
    return f"{sentence}.{tested}"


def _lead(best: Line, others: Sequence[Line], pairs: Sequence[Pair]) -> str:
    """Whether the method of lowest ECE is better calibrated than every other tuned one. ECE is for comparison with
    papers; the tests are of the RMS calibration error, to which chance adds nothing."""
    lowest = f"{best.row.label} has the lowest ECE of the tuned methods, {best.ece:.1f}{PERCENT}"
    against = [f"{other.row.label} with {other.ece:.1f}{PERCENT}" for other in others]
    if not pairs:
        return f"{lowest}, before {against[0]}; whether by chance was not tested"
    tests = {frozenset((pair.first, pair.second)): pair for pair in pairs}
    found = [tests.get(frozenset((best.row, other.row))) for other in others]
    # D of the other method minus D of the best; 0 where that may be chance.
    gains = [float(pair.squared.value) * (1 if pair.first == best.row else -1) if pair and pair.squared.significant
             else 0 for pair in found]
    if min(gains) > 0:
        return (f"{best.row.label} is the best calibrated of the tuned methods: ECE {best.ece:.1f}{PERCENT}, against "
                f"{others[0].ece:.1f}{PERCENT} for {others[0].row.label}{_errors(found[0], best)}")
    if min(gains) < 0:
        worst = gains.index(min(gains))
        return f"{lowest}, but {others[worst].row.label} is better calibrated{_errors(found[worst], best)}"
    alike = [k for k, gain in enumerate(gains) if gain == 0]
    more = f" and {len(alike) - 3} others" if len(alike) > 3 else ""
    nearest = min(alike, key=lambda k: pair.squared.p if (pair := found[k]) else 1)
    return (f"{lowest}, but these images show no difference in calibration to "
            f"{', '.join(against[k] for k in alike[:3])}{more}{_errors(found[nearest], best)}")


def _errors(pair: Pair | None, best: Line) -> str:
    if not pair:
        return " (they share no seed)"
    (own, other), name = (pair.errors, pair.second) if pair.first == best.row else (pair.errors[::-1], pair.first)
    return (f" (RMS calibration error {100 * own:.1f} against {100 * other:.1f}{PERCENT} for {name.label}, paired "
            f"bootstrap p = {pair.squared.p:.3f})")
