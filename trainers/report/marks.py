"""Marks in a table: the best of the tuned methods, and differences against O-TPT."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..functional import calibration as cal
from ..functional.arrays import Array
from ..registry import method_info, method_key
from . import published as paper
from .grid import Column, Grid, Row
from .images import have_same_images, share_images
from .measure import Measured
from .metrics import METRICS, find_metric
from .table_model import Entry, TableRow

Entries = dict[Row, list[Entry | None]]
CellPair = tuple[list[Measured], list[Measured]]  # the runs of a row and of the baseline

# Metrics whose difference can be taken on a part of the images, from the top class alone.
TOP_METRICS = {"accuracy": cal.accuracy, "ece": cal.ece, "ace": cal.ace, "mce": cal.mce}


def tuned_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if method_info(row.method).tuned]


def rivals_of(row: Row, tuned: Sequence[Row]) -> list[Row]:
    """The tuned rows that a row is compared with: within one setting, if methods have the same ones."""
    if not compares_within_settings(tuned):
        return list(tuned)
    return [other for other in tuned if other.variant == row.variant]


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
    """The rows of a block with the best of the tuned methods marked, column by column."""
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
                    marked[at] = replace(entry, best=round(entry.value, entry.decimals) == best)
        rows.append(TableRow(row.label, row.method, marked))
    return rows


def best_value(entries: Entries, rivals: Sequence[Row], at: int, higher: bool) -> float | None:
    """The best printed value of a column; None if fewer than two rows are ranked there."""
    values = []
    for row in rivals:
        entry = entries[row][at]
        if entry is not None and entry.ranked:
            values.append(round(entry.value, entry.decimals))
    if len(values) < 2:
        return None
    return max(values) if higher else min(values)


def add_differences(entries: Entries, grid: Grid, common: Sequence[Column], metric: str) -> None:
    """Adds the difference against O-TPT, if a single method is newer than O-TPT, as in the paper."""
    tuned = tuned_rows(list(entries))
    for row in tuned:
        base = find_paper_baseline(row, rivals_of(row, tuned))
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


def find_paper_baseline(row: Row, rivals: Sequence[Row]) -> Row | None:
    """O-TPT's row, if there is one and the row's method is the only newer one."""
    last = method_info(paper.BASELINE).order
    baselines = []
    newer = set()
    for other in rivals:
        if method_key(other.method) == paper.BASELINE:
            baselines.append(other)
        if method_info(other.method).order > last:
            newer.add(other.method)
    if newer == {row.method} and len(baselines) == 1:
        return baselines[0]
    return None


def with_difference(entry: Entry, base: Entry, pairs: Sequence[CellPair], metric: str) -> Entry:
    """The difference of the printed values, so that a reader can check it.

    If the runs did not predict the same images, it is the difference on those that both have.
    """
    if np.isnan(entry.value - base.value):
        return entry
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
    """Ours minus theirs on the images that both have, in the units of the metric."""
    if metric not in TOP_METRICS:
        return None
    differences = []
    for ours, theirs in pairs:
        shared = share_images(theirs, ours)
        if shared is None:
            return None
        differences.append(seed_mean(shared.second, metric) - seed_mean(shared.first, metric))
    return METRICS[metric].scale * float(np.mean(differences))


def seed_mean(samples: tuple[Array, Array], metric: str) -> float:
    """The mean over seeds of a metric of (N, S) confidences and correctness."""
    confidence, correct = samples
    values = []
    for seed in range(confidence.shape[1]):
        values.append(TOP_METRICS[metric](confidence[:, seed], correct[:, seed]))
    return float(np.mean(values))
