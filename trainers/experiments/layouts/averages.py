"""Averages over data sets: by backbone, shots or a setting; over seeds; and of many methods by metric."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ....datasets.base import dataset_info
from ...registry import method_info
from ...report import published as paper
from ...report.comparison import Comparison, Row, row_of, show_setting
from ...report.measure import Measured
from ...report.metrics import METRICS, POSTHOC, POSTHOC_NOTE
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ...report.tables import average_over, fewer_images, mark, spread_note
from ..definition import Experiment
from ..finished_runs import FinishedRuns, in_percent, listed
from ..vs_published import block_vs_published, published_note, with_differences
from .results import by_dataset

Cells = dict[tuple[Row, Any], dict[str, list[Measured]]]  # by row and column: the runs of each data set

# Column labels, as in the published tables.
COLUMNS: dict[str, dict[object, str]] = {
    "shots": {0: "Baseline", 2: "2-shots", 4: "4-shots"},
    "TRAINER.SOC.NORM": {"minmax": "(S - min) / (max - min)", "max": "S / max", "shift": "S - min"},
}


def averages(finished: FinishedRuns) -> list[Table]:
    """Methods, and settings in which they vary, by backbones, shots or values of a setting."""
    experiment, across = finished.experiment, finished.experiment.across
    cells: Cells = {}
    values: dict[object, str] = {}  # in the order of the experiment
    for run, measured in finished.measured.items():
        if method_info(run.method).trained:
            continue
        value = {"backbone": run.backbone, "shots": run.shots}.get(across, run.variant.get(across))
        label = show_setting(across, value) if "." in across else str(value)  # only settings have a dot
        values.setdefault(value, COLUMNS.get(across, {}).get(value, label))
        stated = [key for key in run.variant if key != across]
        row = row_of(measured, stated, hidden=[across, *(["MODEL.INIT_WEIGHTS"] if run.shots else [])])
        cells.setdefault((row, value), {}).setdefault(run.dataset_name, []).append(measured)
    if not cells:
        return []
    published = experiment.published[0] if finished.compared else ""
    table, sizes = averaged(cells, values, Table(experiment.name, experiment.title, [], []), experiment, published)
    if published:
        table.notes.append(published_note(published))
        if len(sizes) < len(experiment.datasets):
            table.notes.append(f"The published averages are over {len(experiment.datasets)} data sets: do not compare.")
        table.notes.extend(fewer_images(sizes))
    return [with_differences(table)]


def averaged(
    cells: Cells, values: Mapping[object, str], table: Table, experiment: Experiment, published: str = "",
) -> tuple[Table, dict[str, int]]:
    """`table` with a block for each metric and a column for each of the values, by their labels: averages over the data
    sets that all cells have. Also the number of test images of each of these."""
    common = sorted(set.intersection(*map(set, cells.values())))
    columns = list(values.values())
    rows = sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: method_info(row.method).order)
    blocks = []
    for metric in experiment.metrics:
        grid = {row: [average_over([cells[row, value][name] for name in common if (row, value) in cells], metric)
                      for value in values] for row in rows}
        blocks.append(block_vs_published(METRICS[metric].heading, grid, metric, columns, published))
    runs = {key: [m for cell in sets.values() for m in cell] for key, sets in cells.items()}
    sizes = {m.run.dataset: m.run.results["n"] for some in runs.values() for m in some if m.run.dataset in common}
    images = ", ".join(f"{dataset_info(name).label} {sizes[name]:,}"
                       for name in sorted(sizes, key=lambda name: dataset_info(name).order))
    notes = [f"{'Average over the data sets. ' if len(common) > 1 else ''}Test images: {images}."]
    notes += spread_note(blocks, runs)
    if left_out := {name for sets in cells.values() for name in sets} - set(common):
        notes.append(f"Left out, because not every cell has them: {listed(left_out)}.")
    return replace(table, columns=columns, blocks=blocks, notes=notes), sizes


def deviations(finished: FinishedRuns) -> Iterator[Table]:
    """The standard deviation over seeds: methods by data sets, and its average."""
    experiment = finished.experiment
    for comparison in finished.comparisons():
        common = comparison.common_columns()
        names = [column.dataset for column in comparison.columns]
        average = [paper.AVERAGE] if len(common) > 1 else []
        blocks = []
        for metric in experiment.metrics:
            grid = {}
            for row in comparison.rows:
                cells = {column: comparison.cells.get((row, column), []) for column in comparison.columns}
                grid[row] = [deviation(cell, metric) for cell in cells.values()]
                if average:
                    own = [entry.value for column in common if (entry := deviation(cells[column], metric))]
                    grid[row].append(Entry(float(np.mean(own)), 2) if len(own) == len(common) else None)
            whole = sorted([*names, paper.AVERAGE]) == sorted(paper.tables_of()["std_analysis"]["columns"])
            columns = [*names, *(average if whole else ["–"] * len(average))]
            blocks.append(block_vs_published(
                # The smallest deviation is best, as of an error, whatever the metric.
                f"{METRICS[metric].label}: standard deviation (points)", grid, "ece", columns,
                "std_analysis" if finished.compared else "", f"{metric}_std",
            ))
        notes = [f"Standard deviation (n − 1) over seeds {', '.join(map(str, experiment.seeds))} of the views.",
                 comparison.images(), *comparison.notes]
        if finished.compared:
            notes += fewer_images({column.dataset: column.n for column in comparison.columns})
        labels = [*map(comparison.column_label, comparison.columns), *average]
        title = f"{experiment.title}, {comparison.backbone_label}"
        yield with_differences(Table(experiment.name, title, labels, blocks, notes))


def deviation(cell: list[Measured], metric: str) -> Entry | None:
    if len(cell) < 2:
        return None
    return Entry(float(np.std(in_percent(cell, metric), ddof=1)), 2, seeds=len(cell))


def family(finished: FinishedRuns) -> list[Table]:
    """One line per method with every metric, then the results for each data set."""
    return [*(summary(finished.experiment, one) for one in finished.comparisons()), *by_dataset(finished)]


def summary(experiment: Experiment, comparison: Comparison) -> Table:
    """Methods by metrics, each the mean over the data sets that all methods have."""
    common = comparison.common_columns()
    compared, by_metric = comparison.rows_on(common), []
    for metric in experiment.metrics:
        grid = {row: [average_over([comparison.cells[row, column] for column in common if row in compared], metric)]
                for row in comparison.rows}
        by_metric.append({line.label: line.entries[0] for line in mark(grid, metric)})
    rows = [TableRow(row.label, row.method, [entries[row.label] for entries in by_metric]) for row in comparison.rows]
    labels = [METRICS[metric].heading for metric in experiment.metrics]
    names = ", ".join(map(comparison.column_label, common))
    notes = [f"{'Average over ' if len(common) > 1 else ''}{names}. {comparison.images()}", *comparison.notes]
    blocks = [RowBlock("", rows)]
    notes += spread_note(blocks, comparison.cells)
    if "seconds" in experiment.metrics:
        notes.append("Seconds per image: adaptation and prediction from cached view features on this machine, without "
                     "encoding.")
    if not set(POSTHOC).isdisjoint(experiment.metrics):
        notes.append(POSTHOC_NOTE)
    title = f"{experiment.title}, {comparison.backbone_label}"
    return Table(f"{experiment.name}_summary", title, labels, blocks, notes)
