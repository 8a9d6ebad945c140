"""Many methods at a glance: a line each with every metric, over all data sets; then set by set."""
from __future__ import annotations

import numpy as np

from ...report.metrics import METRICS, POSTHOC, POSTHOC_NOTE
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ...report.tables import mark
from ..finished_runs import Material, mean
from . import Shown
from .results import results


def show(material: Material) -> Shown:
    return [*(summary(material, backbone) for backbone in material.backbones), *results(material)], []


def summary(material: Material, backbone: str) -> Table:
    """Methods by metrics, each the mean over the data sets that all methods have."""
    experiment, comparison = material.experiment, material.comparison(backbone)
    common = comparison.common_columns()
    compared, by_metric = comparison.rows_on(common), []
    for metric in experiment.metrics:
        grid = {row: [average([comparison.cells[row, column] for column in common if row in compared], metric)]
                for row in comparison.rows}
        by_metric.append({line.label: line.entries[0] for line in mark(grid, metric)})
    rows = [TableRow(row.label, row.method, [entries[row.label] for entries in by_metric]) for row in comparison.rows]
    labels = [METRICS[metric].label + (" (%)" if METRICS[metric].percent else "") for metric in experiment.metrics]
    names = ", ".join(map(comparison.column_label, common))
    notes = [f"{'Average over ' if len(common) > 1 else ''}{names}. {comparison.images()}", *comparison.notes]
    if "seconds" in experiment.metrics:
        notes.append("Seconds an image: of adaptation and prediction from kept view features, encoding not counted, as "
                     "this machine took them.")
    if not set(POSTHOC).isdisjoint(experiment.metrics):
        notes.append(POSTHOC_NOTE)
    return Table(f"{experiment.name}_summary", f"{experiment.title}, {backbone}", labels, [RowBlock("", rows)], notes)


def average(cells: list, metric: str) -> Entry | None:
    """The mean over data sets of a metric; None where a run has none."""
    if not cells or any(metric not in measured.metrics for cell in cells for measured in cell):
        return None
    decimals = METRICS[metric].decimals
    return Entry(float(np.mean([mean(cell, metric) for cell in cells])), decimals)
