"""Cells of tables, from the runs of a row and a column: means over seeds, averages over data sets.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .measure import Measured, measured_alike
from .metrics import METRICS, STD, find_metric
from .table_model import UNEQUAL_SEEDS, Entry


def cell_entry(cell: Sequence[Measured], metric: str, interval: bool = False) -> Entry | None:
    """A cell of a table: the mean over seeds, or the interval of one run if asked for.

    Args:
        cell: The runs, one per seed.
        metric: Name of the metric, with `_std` for its standard deviation over seeds.
        interval: Whether the interval of a single run is shown.

    Returns:
        None if there is no run, or one of them lacks the metric. Where a run was exported without
        the logits that it needs, a value that is no number, which is shown as –.
    """
    if is_deviation(metric):
        return deviation_entry(cell, metric.removesuffix(STD))
    about = METRICS[metric]
    cell = measured_alike(cell, metric)
    values = values_of(cell, metric)
    if values is None:
        missing = [measured for measured in cell if metric not in measured.metrics]
        if any(not measured.has_logits for measured in missing):
            return Entry(np.nan, about.decimals, ranked=False)
        return None
    entry = mean_entry(values, about.decimals)
    # "± 0.0" would look like a result where all seeds have the same predictions.
    if entry.std == 0 and has_one_prediction(cell):
        entry = replace(entry, std=None)
    only = cell[0].metrics[metric]
    if interval and len(cell) == 1 and not np.isnan(only.low):
        low = about.scale * float(only.low)
        high = about.scale * float(only.high)
        entry = replace(entry, low=low, high=high)
    return replace(entry, ranked=are_ranked(cell))


def has_one_prediction(cell: Sequence[Measured]) -> bool:
    """Whether all seeds predict the same, as those of a method without randomness do."""
    first = cell[0].tuned
    for measured in cell[1:]:
        if not np.array_equal(measured.tuned.confidence, first.confidence):
            return False
        if not np.array_equal(measured.tuned.correct, first.correct):
            return False
    return True


def is_deviation(metric: str) -> bool:
    """Whether a name means the deviation of a metric over seeds."""
    return metric.endswith(STD) and metric not in METRICS


def values_of(cell: Sequence[Measured], metric: str) -> list[float] | None:
    """A metric of each run, as it is shown; None if there is no run or one lacks it.

    Args:
        cell: Runs, such as several seeds.
        metric: Name of the metric.
    """
    values = []
    for measured in cell:
        if metric not in measured.metrics:
            return None
        values.append(METRICS[metric].scale * measured.value(metric))
    return values or None


def are_ranked(cell: Sequence[Measured]) -> bool:
    """Whether all runs of a cell may be called best."""
    return all(measured.is_ranked for measured in cell)


def deviation_entry(cell: Sequence[Measured], metric: str) -> Entry | None:
    """The sample standard deviation over seeds, in the units of the metric.

    Args:
        cell: Runs, one per seed.
        metric: Name of the metric.

    Returns:
        None with fewer than two seeds, or if a run lacks the metric.
    """
    values = values_of(measured_alike(cell, metric), metric)
    if values is None or len(values) < 2:
        return None
    return Entry(float(np.std(values, ddof=1)), 2, seeds=len(values))


def mean_entry(values: Sequence[float], decimals: int) -> Entry:
    """The mean over seeds, with the sample deviation if there are several.

    Args:
        values: One per seed, in the unit of the table.
        decimals: Number of decimals that the table shows.
    """
    std = None
    if len(values) > 1 and np.isfinite(values).all():
        std = float(np.std(values, ddof=1))
    return Entry(float(np.mean(values)), decimals, std=std, seeds=len(values))


def average_entry(cells: Sequence[Sequence[Measured]], metric: str) -> Entry | None:
    """The mean over data sets; None if a run is missing or lacks the metric.

    Its deviation is that of the seeds' averages, if all data sets have the same seeds.

    Args:
        cells: For each data set its runs, one per seed.
        metric: Name of the metric.
    """
    if not cells:
        return None
    means = []
    ranked = True
    for cell in cells:
        entry = cell_entry(cell, metric)
        if entry is None:
            return None
        means.append(entry.value)
        ranked = ranked and entry.ranked
    decimals = find_metric(metric).decimals
    # The deviation over seeds of an average is not the average of the data sets' deviations.
    by_seed = averages_by_seed(cells, metric)
    if by_seed is not None:
        entry = mean_entry(by_seed, decimals)
        if entry.std == 0 and all(has_one_prediction(cell) for cell in cells):
            entry = replace(entry, std=None)
        return replace(entry, ranked=ranked)
    numbers = {len(cell) for cell in cells}
    seeds = numbers.pop() if len(numbers) == 1 else UNEQUAL_SEEDS
    return Entry(float(np.mean(means)), decimals, seeds=seeds, ranked=ranked)


def averages_by_seed(cells: Sequence[Sequence[Measured]], metric: str) -> list[float] | None:
    """The average over data sets of each seed; None if they have other seeds, or no such metric.

    Args:
        cells: For each data set its runs, one per seed.
        metric: Name of the metric.

    Returns:
        One per seed, in the unit of the metric.
    """
    if metric not in METRICS:
        return None
    seeds = seeds_of(measured_alike(cells[0], metric))
    rows = []
    for all_runs in cells:
        cell = measured_alike(all_runs, metric)
        values = values_of(cell, metric)
        if values is None or seeds_of(cell) != seeds:
            return None
        rows.append(values)
    return np.mean(rows, axis=0).tolist()


def seeds_of(cell: Sequence[Measured]) -> list[int]:
    """The seeds of the runs, in their order."""
    return [measured.seed for measured in cell]
