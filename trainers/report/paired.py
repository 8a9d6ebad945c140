"""Two methods on the same images: which is better, by how much, and whether the images at hand can tell."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np

from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.significance import Difference, mcnemar, paired_bootstrap
from ..registry import method_info
from .grid import Column, Comparison, Row
from .table_model import Entry, RowBlock, Signed, Table, TableRow

MOST_PAIRS = 21  # of methods in one table; beyond that each is compared with the best alone
NOTE = (
    "Second less first, in percentage points: a negative difference in ECE means that the second is better calibrated. "
    "Brackets: 95 % interval of a paired bootstrap (every redraw takes the same images of both, data set by data set); "
    "that of ECE is corrected for the bias of the redraws. Bold where it leaves zero out, and of accuracy only where p "
    "is below 0.05 too. p: McNemar's exact test of accuracy, first seed, all data sets together. On few images a small "
    "ECE comes out too large, so what truly lies between two methods tends to be more than what is shown."
)


@dataclass(frozen=True)
class Comparable:
    """The images that two methods share: a row an image, a column a seed, and the data set that each row is of."""

    confidence: tuple[Array, Array]  # (N, S) of each method
    correct: tuple[Array, Array]
    group: Array  # (N,)

    def difference(self, metric, repeats: int, centred: bool = True) -> Difference:
        """`metric(confidence, correct)` of the second less that of the first, averaged over seeds and data sets."""
        parts = [self.group == g for g in np.unique(self.group)]

        def averaged(confidence: Array, correct: Array) -> float:
            return float(np.mean([
                metric(confidence[part, s], correct[part, s]) for part in parts for s in range(confidence.shape[1])
            ]))

        first, second = ((self.confidence[k], self.correct[k]) for k in (0, 1))
        return paired_bootstrap(averaged, first, second, repeats=repeats, centred=centred, group=self.group)


def comparable(comparison: Comparison, first: Row, second: Row, columns: Sequence[Column]) -> Comparable | None:
    """The data of two rows on these columns; None where they share no seed."""
    parts: list[tuple[list, list]] = []
    for column in columns:
        runs = [{m.run.seed: m for m in comparison.cells[row, column]} for row in (first, second)]
        derived = any(m.derived for row in (first, second) for m in comparison.cells[row, column])
        # What CLIP says before tuning has no seed: it stands beside any.
        seeds = [(a, b) for a in runs[0] for b in runs[1] if a == b or derived or _seedless(first, second)]
        parts.append(([runs[0][a].tuned for a, _ in seeds], [runs[1][b].tuned for _, b in seeds]))
    count = min(len(part[0]) for part in parts)
    if not count:
        return None

    def joined(side: int, name: str) -> Array:
        return np.concatenate([
            np.stack([getattr(top, name) for top in part[side][:count]], axis=1) for part in parts
        ])

    group = np.concatenate([np.full(len(part[0][0].correct), k) for k, part in enumerate(parts)])
    return Comparable(*((joined(0, name), joined(1, name)) for name in ("confidence", "correct")), group)


def _seedless(*rows: Row) -> bool:
    return any(method_info(row.method).zero_shot for row in rows)


def ece_difference(
    comparison: Comparison, first: Row, second: Row, columns: Sequence[Column], repeats: int,
) -> Difference | None:
    """How far the second's ECE is from the first's; None without shared seeds or without a bootstrap."""
    shared = comparable(comparison, first, second, columns) if repeats else None
    return shared and shared.difference(partial(cal.ece, bins=comparison.bins), repeats)


def paired_table(comparison: Comparison, name: str, title: str, repeats: int) -> Table | None:
    """Every pair of methods on the images that all have; None where there are no two, or no bootstrap is wanted."""
    columns = comparison.common_columns()
    rows = comparison.rows_on(columns)
    if not columns or not repeats or len(rows) < 2:
        return None
    pairs = list(combinations(rows, 2))
    if len(pairs) > MOST_PAIRS:
        best = min(filter(lambda row: method_info(row.method).tuned, rows), key=lambda row: comparison.mean(row, columns, "ece"),
                   default=rows[-1])
        pairs = [(row, best) for row in rows if row != best]
    lines = []
    for first, second in pairs:
        if shared := comparable(comparison, first, second, columns):
            ece = shared.difference(partial(cal.ece, bins=comparison.bins), repeats)
            accuracy = shared.difference(cal.accuracy, repeats, centred=False)  # it has no bias
            p = mcnemar(*(correct[:, 0] for correct in shared.correct))
            # A handful of images on which two methods differ is too few for a bootstrap: the exact test must agree.
            seeds = shared.correct[0].shape[1]
            entries = [_points(ece, ece.real, seeds), _points(accuracy, accuracy.real and p < 0.05, seeds), Entry(p, 3)]
            lines.append(TableRow(f"{first.label} → {second.label}", second.method, entries))
    notes = [NOTE, f"{comparison.images(columns)} {comparison.bins} bins."]
    return Table(name, title, ["ECE difference", "Accuracy difference", "p"], [RowBlock("Pair", lines)], notes)


def _points(difference: Difference, real: bool, seeds: int) -> Signed:
    low, high = 100 * difference.low, 100 * difference.high
    return Signed(100 * difference.value, seeds=seeds, low=low, high=high, best=real)
