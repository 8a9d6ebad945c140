"""The standard deviation over seeds."""
from __future__ import annotations

import numpy as np

from ...report import published as paper
from ...report.measure import Measured
from ...report.metrics import METRICS
from ...report.table_model import Entry, Table
from ...report.tables import fewer_images
from ..finished_runs import Material, in_percent
from ..vs_published import block_beside, with_gaps
from . import Shown


def show(material: Material) -> Shown:
    return deviations(material), []


def deviations(material: Material) -> list[Table]:
    """The standard deviation over seeds: methods by data sets, and its average."""
    experiment, tables = material.experiment, []
    for comparison in material.comparisons():
        common = comparison.common_columns()
        names = [column.dataset for column in comparison.columns]
        average = [paper.AVERAGE] if len(common) > 1 else []
        blocks = []
        for metric in experiment.metrics:
            grid = {}
            for row in comparison.rows:
                cells = [comparison.cells.get((row, column), []) for column in comparison.columns]
                grid[row] = [deviation(cell, metric) for cell in cells]
                if average:
                    own = [deviation(comparison.cells.get((row, column), []), metric) for column in common]
                    grid[row].append(None if None in own else Entry(float(np.mean([entry.value for entry in own])), 2))
            whole = sorted(names) == sorted(c for c in paper.tables()["std_analysis"]["columns"] if c != paper.AVERAGE)
            columns = [*names, *(average if whole else ["–"] * len(average))]
            blocks.append(block_beside(
                # Marked as errors are, whatever the metric: the smallest deviation is best.
                f"{METRICS[metric].label}: standard deviation (points)", grid, "ece", columns,
                "std_analysis" if material.compared else "", f"{metric}_std",
            ))
        notes = [f"Standard deviation (n − 1) over seeds {', '.join(map(str, experiment.seeds))} of the views.",
                 comparison.images(), *comparison.notes]
        if material.compared:
            notes += fewer_images({column.dataset: column.n for column in comparison.columns})
        labels = [*map(comparison.column_label, comparison.columns), *average]
        title = f"{experiment.title}, {comparison.backbone}"
        tables.append(with_gaps(Table(experiment.name, title, labels, blocks, notes)))
    return tables


def deviation(cell: list[Measured], metric: str) -> Entry | None:
    if len(cell) < 2:
        return None
    return Entry(float(np.std(in_percent(cell, metric), ddof=1)), 2, seeds=len(cell))
