"""Pairs of methods on the same images: differences in calibration and accuracy, tested together."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.significance import Difference, corrected, difference_of, mcnemar
from ..registry import method_info
from .comparison import Column, Comparison, Row
from .table_model import Entry, RowBlock, Table, TableRow

MAX_PAIRS = 21  # in one table; with more, each method is compared with the best one only
# The p-value of R resamples is at least 2 / (R + 1), and Holm's correction multiplies it by up to the number of pairs.
# With this many resamples per pair it can fall to 0.01; at 0.05, five resamples are beyond zero.
RESAMPLES = 200
COLUMNS = ("RMS error, first", "RMS error, second", "Difference of squares", "p, calibration", "Accuracy difference",
           "p, accuracy")
NOTE = (
    "RMS calibration error in percent: √D, where D, the mean squared gap between confidence and accuracy without what "
    "chance adds, is averaged over data sets and seeds. Difference of squares: D of the second minus D of the first, "
    "in squared percentage points; negative means that the second is better calibrated. Accuracy: second minus first, "
    "in percentage points. Brackets: 95 % interval of a paired bootstrap (each resample takes the same images of both, "
    "data set by data set), for each pair alone. p of accuracy: the larger of the bootstrap's and of McNemar's exact "
    "test (first seed, all data sets together)."
)


@dataclass(frozen=True)
class Pair:
    """Two methods on the images that both have, in fractions; the differences are the second minus the first."""

    first: Row
    second: Row
    errors: tuple[float, float]  # RMS calibration errors
    squared: Difference  # of D
    accuracy: Difference
    seeds: int


def pair_tests(comparison: Comparison, repeats: int) -> list[Pair]:
    """Every pair of methods on the images that all have, with p-values corrected by Holm's method over the pairs, for
    calibration and accuracy each. At least `repeats` resamples, more where the correction needs them; none for 0."""
    columns = comparison.common_columns()
    rows = comparison.rows_on(columns)
    if not columns or not repeats:
        return []
    pairs = list(combinations(rows, 2))
    if len(pairs) > MAX_PAIRS:
        tuned = [row for row in rows if method_info(row.method).tuned]
        best = min(tuned, key=lambda row: comparison.mean(row, columns, "ece"), default=rows[-1])
        pairs = [(row, best) for row in rows if row != best]
    repeats = max(repeats, RESAMPLES * len(pairs))
    drawn = {
        (row, column): values for seed, column in enumerate(columns)
        for row, values in _resample(comparison, rows, column, repeats, seed).items()
    }
    found = [pair for both in pairs if (pair := _compare(comparison, *both, columns, drawn))]
    squared, accuracy = corrected([pair.squared for pair in found]), corrected([pair.accuracy for pair in found])
    return [replace(pair, squared=s, accuracy=a) for pair, s, a in zip(found, squared, accuracy, strict=True)]


def _resample(comparison: Comparison, rows: Sequence[Row], column: Column, repeats: int, seed: int) -> dict[Row, Array]:
    """D and accuracy of the runs of each row on one column, (1 + repeats, 2, runs). All rows share the resamples."""
    bins, cells = comparison.bins, [comparison.cells[row, column] for row in rows]
    samples = [(*cal.bins_and_gaps(*m.tuned, bins), m.tuned.correct) for cell in cells for m in cell]
    index, gap, correct = (np.stack(arrays, axis=1) for arrays in zip(*samples, strict=True))  # (N, runs) each

    def metrics(index: Array, gap: Array, correct: Array) -> Array:
        return np.stack([cal.squared_errors(index, gap, bins), correct.mean(axis=0)])

    drawn = cal.resamples(metrics, index, gap, correct, repeats=repeats, seed=seed)
    ends = np.cumsum([len(cell) for cell in cells])[:-1]
    return dict(zip(rows, np.split(drawn, ends, axis=2), strict=True))


def _compare(
    comparison: Comparison, first: Row, second: Row, columns: Sequence[Column],
    drawn: Mapping[tuple[Row, Column], Array],
) -> Pair | None:
    """One pair, uncorrected; None if the two share no seed on some column."""
    values, correct, seeds = [], [], []
    for column in columns:
        ours, theirs = comparison.cells[first, column], comparison.cells[second, column]
        # Zero-shot runs fit any seed, unless each seed has a prompt of its own.
        any_seed = any(method_info(row.method).zero_shot and len({m.run.prompt_hash for m in cell}) == 1
                       for row, cell in ((first, ours), (second, theirs)))
        matched = [(i, j) for i, a in enumerate(ours) for j, b in enumerate(theirs)
                   if any_seed or a.run.seed == b.run.seed]
        if not matched:
            return None
        left, right = np.transpose(matched)
        values.append([drawn[first, column][..., left].mean(-1), drawn[second, column][..., right].mean(-1)])
        correct.append([ours[left[0]].tuned.correct, theirs[right[0]].tuned.correct])
        seeds.append(len(matched))
    before, after = np.mean(values, axis=0)  # (1 + repeats, 2) each
    squared, accuracy = (difference_of((after - before)[:, k]) for k in (0, 1))
    # A bootstrap is unreliable where the methods differ on a handful of images: the exact test must agree.
    p = max(accuracy.p, mcnemar(*np.concatenate(correct, axis=1)))
    errors = max(0.0, float(before[0, 0])) ** 0.5, max(0.0, float(after[0, 0])) ** 0.5
    return Pair(first, second, errors, squared, replace(accuracy, p=p), min(seeds))


def paired_table(comparison: Comparison, name: str, title: str, pairs: Sequence[Pair]) -> Table | None:
    """The pairs as a table; None if there are none."""
    if not pairs:
        return None
    lines = []
    for pair in pairs:
        errors = [Entry(100 * error, seeds=pair.seeds) for error in pair.errors]
        squared, accuracy = (
            [Entry(scale * float(found.value), seeds=pair.seeds, low=scale * float(found.low), signed=True,
                   high=scale * float(found.high), best=found.significant), Entry(found.p, 3)]
            for found, scale in ((pair.squared, 1e4), (pair.accuracy, 100))
        )
        lines.append(TableRow(f"{pair.first.label} → {pair.second.label}", pair.second.method,
                              [*errors, *squared, *accuracy]))
    columns = comparison.common_columns()
    notes = [f"{NOTE} {correction(pairs)} Bold: p below 0.05.", f"{comparison.images(columns)} {comparison.bins} bins."]
    return Table(name, title, list(COLUMNS), [RowBlock("Pair", lines)], notes)


def correction(pairs: Sequence[Pair]) -> str:
    if len(pairs) == 1:
        return "One pair: p needs no correction."
    return f"p is corrected by Holm's method for {len(pairs)} pairs."
