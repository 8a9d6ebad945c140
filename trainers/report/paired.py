"""Pairs of methods on the same images: differences in ECE and accuracy, with a paired bootstrap and McNemar's test."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.significance import Difference, mcnemar, paired_bootstrap
from ..registry import method_info
from .comparison import Column, Comparison, Row
from .table_model import Entry, RowBlock, Table, TableRow

MAX_PAIRS = 21  # in one table; with more, each method is compared with the best one only
NOTE = (
    "Second minus first, in percentage points: a negative difference in ECE means that the second is better "
    "calibrated. Brackets: 95 % interval of a paired bootstrap (every redraw takes the same images of both, data set "
    "by data set); that of ECE is corrected for the bias of the redraws. Bold if it excludes zero and, for accuracy, "
    "if p is below 0.05 too. p: McNemar's exact test of accuracy, first seed, all data sets together. On few images a "
    "small ECE comes out too large, so true differences tend to be larger than those shown."
)


@dataclass(frozen=True)
class Paired:
    """Two methods on the images that both have: one row per image, one column per seed."""

    confidence: tuple[Array, Array]  # (N, S) of each method
    correct: tuple[Array, Array]
    group: Array  # (N,), the data set of each image

    def difference(self, metric: Callable[..., float], repeats: int, centred: bool = True) -> Difference:
        """`metric(confidence, correct)` of the second minus that of the first, averaged over seeds and data sets."""
        parts = [self.group == g for g in np.unique(self.group)]

        def averaged(confidence: Array, correct: Array) -> float:
            return float(np.mean([
                metric(confidence[part, s], correct[part, s]) for part in parts for s in range(confidence.shape[1])
            ]))

        first, second = ((self.confidence[k], self.correct[k]) for k in (0, 1))
        return paired_bootstrap(averaged, first, second, repeats=repeats, centred=centred, group=self.group)


def pair(comparison: Comparison, first: Row, second: Row, columns: Sequence[Column]) -> Paired | None:
    """The data of two rows on these columns; None if they share no seed."""
    seedless = any(method_info(row.method).zero_shot for row in (first, second))  # zero-shot runs fit any seed
    matched = []  # per column, the runs of both rows
    for column in columns:
        cells = [comparison.cells[row, column] for row in (first, second)]
        any_seed = seedless or any(m.derived for cell in cells for m in cell)
        by_seed = [{m.run.seed: m.tuned for m in cell} for cell in cells]
        matched.append([(a, b) for s, a in by_seed[0].items() for t, b in by_seed[1].items() if s == t or any_seed])
    seeds = min(map(len, matched))
    if not seeds:
        return None

    def joined(name: str) -> tuple[Array, Array]:
        first, second = (np.concatenate([
            np.stack([getattr(both[side], name) for both in runs[:seeds]], axis=1) for runs in matched
        ]) for side in (0, 1))
        return first, second

    group = np.repeat(np.arange(len(columns)), [len(runs[0][0].correct) for runs in matched])
    return Paired(joined("confidence"), joined("correct"), group)


def ece_difference(
    comparison: Comparison, first: Row, second: Row, columns: Sequence[Column], repeats: int,
) -> Difference | None:
    """The second's ECE minus the first's; None without shared seeds or without a bootstrap."""
    shared = pair(comparison, first, second, columns) if repeats else None
    return shared.difference(partial(cal.ece, bins=comparison.bins), repeats) if shared else None


def paired_table(comparison: Comparison, name: str, title: str, repeats: int) -> Table | None:
    """Every pair of methods on the images that all have; None if there are no two methods or no bootstrap."""
    columns = comparison.common_columns()
    rows = comparison.rows_on(columns)
    if not columns or not repeats or len(rows) < 2:
        return None
    pairs = list(combinations(rows, 2))
    if len(pairs) > MAX_PAIRS:
        tuned = [row for row in rows if method_info(row.method).tuned]
        best = min(tuned, key=lambda row: comparison.mean(row, columns, "ece"), default=rows[-1])
        pairs = [(row, best) for row in rows if row != best]
    lines = []
    for first, second in pairs:
        if shared := pair(comparison, first, second, columns):
            ece = shared.difference(partial(cal.ece, bins=comparison.bins), repeats)
            accuracy = shared.difference(cal.accuracy, repeats, centred=False)  # accuracy has no bias
            p = mcnemar(shared.correct[0][:, 0], shared.correct[1][:, 0])
            # A bootstrap is unreliable where the methods differ on a handful of images: the exact test must agree.
            seeds = shared.correct[0].shape[1]
            entries = [
                Entry(value, seeds=seeds, low=low, high=high, best=real, signed=True)
                for (value, low, high), real in ((ece.points, ece.real), (accuracy.points, accuracy.real and p < 0.05))
            ]
            lines.append(TableRow(f"{first.label} → {second.label}", second.method, [*entries, Entry(p, 3)]))
    notes = [NOTE, f"{comparison.images(columns)} {comparison.bins} bins."]
    return Table(name, title, ["ECE difference", "Accuracy difference", "p"], [RowBlock("Pair", lines)], notes)
