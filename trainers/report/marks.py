"""Marks in a table: the best of the tuned methods, and differences from a baseline."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..functional import calibration as cal
from ..registry import method_info, method_key, registered_name
from .grid import Column, Grid, Row
from .images import have_same_images, share_images
from .layout import Differences
from .measure import Measured
from .metrics import METRICS, Top, find_metric
from .table_model import Entry, TableRow

Entries = dict[Row, list[Entry | None]]
CellPair = tuple[list[Measured], list[Measured]]  # the runs of a row and of the baseline

# Metrics whose difference can be taken on a part of the images, from the top class alone.
TOP_METRICS = {"accuracy": cal.accuracy, "ece": cal.ece, "ace": cal.ace, "mce": cal.mce}


def tuned_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of methods that tune."""
    return [row for row in rows if method_info(row.method).tuned]


def rivals_of(row: Row, tuned: Sequence[Row]) -> list[Row]:
    """The tuned rows among which a row may be the best, itself included.

    They start from the same prompt. If the table compares several methods at several settings, they
    have the row's setting too.

    Args:
        row: The row.
        tuned: All tuned rows of the table.
    """
    by_setting = compares_within_settings(tuned)
    rivals = []
    for other in tuned:
        if other.protocol != row.protocol:
            continue
        if not by_setting or other.variant == row.variant:
            rivals.append(other)
    return rivals


def compares_within_settings(rows: Sequence[Row]) -> bool:
    """Whether methods are compared within one setting only.

    They are if every setting of a table is that of several methods (steps, prompts). If only one
    method has settings (λ), all rows are compared.
    """
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(row.variant, set()).add(row.method)
    return len(methods) > 1 and min(len(group) for group in methods.values()) > 1


def mark_best(entries: Entries, metric: str) -> list[TableRow]:
    """The rows of a block with the best of the tuned methods marked, column by column.

    Args:
        entries: The cells of each row, one for each column.
        metric: Name of the metric, which decides whether the highest or the lowest is best.
    """
    higher = find_metric(metric).higher_is_better
    tuned = tuned_rows(list(entries))
    rows = []
    for row, cells in entries.items():
        marked = list(cells)
        if row in tuned and higher is not None:
            rivals = rivals_of(row, tuned)
            for at, entry in enumerate(cells):
                best = best_value(entries, rivals, at, higher)
                if entry is not None and entry.ranked and best is not None:
                    # Rounded as printed: all cells that show the best number are marked.
                    marked[at] = replace(entry, best=round(entry.value, entry.decimals) == best)
        rows.append(TableRow(row.label, row.method, marked))
    return rows


def best_value(entries: Entries, rivals: Sequence[Row], at: int, higher: bool) -> float | None:
    """The best printed value of a column.

    Args:
        entries: The cells of each row.
        rivals: The rows that are compared.
        at: Position of the column.
        higher: Whether higher values are better.

    Returns:
        None if fewer than two rows are ranked there.
    """
    values = []
    for row in rivals:
        entry = entries[row][at]
        if entry is not None and entry.ranked:
            values.append(round(entry.value, entry.decimals))
    if len(values) < 2:
        return None
    return max(values) if higher else min(values)


def states_difference(row: Row, differences: Differences) -> bool:
    """Whether a row states its difference from a baseline.

    Args:
        row: The row.
        differences: Which rows state their difference from which other row.
    """
    info = method_info(row.method)
    if differences.ours:
        return any(is_named(row, name) for name in differences.ours)
    if differences.only_newer:
        baseline = method_info(registered_name(differences.baseline))
        if info.order <= baseline.order:
            return False
    return info.tuned


def is_named(row: Row, name: str) -> bool:
    """Whether a name, in any spelling, is that of a row's method or the row's label."""
    return method_key(name) in (method_key(row.method), method_key(row.label))


def baseline_of(row: Row, rows: Sequence[Row], differences: Differences) -> Row | None:
    """The row that a row is compared with; None if there is none.

    It starts from the same prompt. Where methods are compared within one setting, it has this
    setting, too. Of several the one with the same settings is taken, of these the one that the
    same words tell from others, such as its precision; otherwise the one at its defaults.

    Args:
        row: The row.
        rows: All rows of the table.
        differences: Which rows state their difference from which other row.
    """
    candidates = []
    for other in comparable_rows(row, rows):
        if row.protocol and differences.is_default:
            is_wanted = method_info(other.method).zero_shot
        else:
            is_wanted = is_named(other, differences.baseline)
        if is_wanted and other is not row:
            candidates.append(other)
    for other in candidates:
        if other.settings == row.settings and other.details == row.details:
            return other
    for other in candidates:
        if other.settings == row.settings and not other.details:
            return other
    for other in candidates:
        if not other.settings and not other.details:
            return other
    return candidates[0] if candidates else None


def comparable_rows(row: Row, rows: Sequence[Row]) -> list[Row]:
    """The rows with which a row can be compared.

    They start from the same prompt. Where methods are compared within one setting, they have the
    row's setting, or state none.

    Args:
        row: The row.
        rows: All rows of the table.
    """
    by_setting = compares_within_settings(tuned_rows(rows))
    comparable = []
    for other in rows:
        if other.protocol != row.protocol:
            continue
        if not by_setting or not other.variant or other.variant == row.variant:
            comparable.append(other)
    return comparable


def first_tuned(row: Row, rows: Sequence[Row], differences: Differences) -> Row | None:
    """In place of the default baseline, where it was not run: the first tuned row in paper order.

    Args:
        row: The row that is compared with it.
        rows: All rows of the table.
        differences: Which rows state their difference from which other row.

    Returns:
        None if the baseline was chosen or was run, or if the row is of that method itself.
    """
    if not differences.is_default or differences.only_newer or differences.ours:
        return None
    tuned = tuned_rows(comparable_rows(row, rows))
    if not tuned or any(is_named(other, differences.baseline) for other in tuned):
        return None
    if tuned[0].method == row.method:
        return None
    return tuned[0]


def add_differences(
    entries: Entries, grid: Grid, common: Sequence[Column], metric: str, differences: Differences,
) -> list[Row]:
    """Adds to the rows that state it the difference from their baseline.

    Args:
        entries: A metric of every row on every column and averaged; rows are changed in place.
        grid: The runs.
        common: The columns that are averaged.
        metric: Name of the metric.
        differences: Which rows state their difference from which other row.

    Returns:
        The baselines that were used.
    """
    rows = list(entries)
    baselines: dict[Row, None] = {}
    for row in rows:
        if not states_difference(row, differences):
            continue
        base = baseline_of(row, rows, differences) or first_tuned(row, rows, differences)
        if base is None:
            continue
        for at, entry in enumerate(entries[row]):
            other = entries[base][at]
            if entry is None or other is None:
                continue
            columns = common
            if at < len(grid.columns):
                columns = [grid.columns[at]]
            pairs = [(grid.cells[row, column], grid.cells[base, column]) for column in columns]
            entries[row][at] = with_difference(entry, other, pairs, metric)
            baselines[base] = None
    return list(baselines)


def with_difference(entry: Entry, base: Entry, pairs: Sequence[CellPair], metric: str) -> Entry:
    """The difference of the printed values, so that a reader can check it.

    If the runs did not predict the same images, it is the difference on those that both have.

    Args:
        entry: The cell that gets the difference.
        base: The cell from which it is.
        pairs: The runs behind both, a pair for each data set.
        metric: Name of the metric.
    """
    if np.isnan(entry.value - base.value):
        return entry
    # Of the numbers as printed: the unrounded difference may be another in the last digit.
    change: float | None = float(entry.text) - float(base.text)
    for ours, theirs in pairs:
        if not have_same_images(ours, theirs):
            change = difference_on_shared_images(pairs, metric)
            break
    if change is None:
        return entry
    change = round(change, entry.decimals) + 0.0  # + 0.0 avoids -0.0
    higher = find_metric(metric).higher_is_better
    better = None
    if higher is not None and change != 0:
        better = (change > 0) == higher
    return replace(entry, difference=change, better=better)


def difference_on_shared_images(pairs: Sequence[CellPair], metric: str) -> float | None:
    """Ours minus theirs on the images that both have, in the units of the metric.

    Args:
        pairs: Our runs and theirs, a pair for each data set.
        metric: Name of the metric.

    Returns:
        Mean over data sets; None if they share no images, or if the metric needs more than the top
        classes.
    """
    if metric not in TOP_METRICS:
        return None
    differences = []
    for ours, theirs in pairs:
        shared = share_images(theirs, ours)
        if shared is None:
            return None
        differences.append(seed_mean(shared.second, metric) - seed_mean(shared.first, metric))
    return METRICS[metric].scale * float(np.mean(differences))


def seed_mean(top: Top, metric: str) -> float:
    """The mean over seeds of a metric of the top class.

    Args:
        top: Confidence and correctness, (N, S) each for S seeds.
        metric: Name of a metric of TOP_METRICS.
    """
    confidence, correct = top
    values = []
    for seed in range(confidence.shape[1]):
        values.append(TOP_METRICS[metric](confidence[:, seed], correct[:, seed]))
    return float(np.mean(values))
