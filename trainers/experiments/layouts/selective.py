"""How many predictions above a threshold are right, and how many remain."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...functional.calibration import selective
from ...report.gallery import NamedFigure, selective_figure
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import Material, listed
from . import Shown

RANKS_METHODS = True
THRESHOLDS = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def show(material: Material) -> Shown:
    return tables(material), pictures(material)


def tables(material: Material) -> list[Table]:
    """How many of the predictions above a threshold are right, all data sets together, and how many remain."""
    experiment, made = material.experiment, []
    for comparison in material.comparisons():
        columns = comparison.common_columns()
        accuracy, coverage = [], []
        for row in comparison.rows_on(columns) if columns else ():
            first = [comparison.cells[row, column][0].tuned for column in columns]
            confidence, correct = (np.concatenate([getattr(o, name) for o in first]) for name in
                                   ("confidence", "correct"))
            kept = selective(confidence, correct, THRESHOLDS)
            for rows, values in zip((accuracy, coverage), kept, strict=True):
                rows.append(TableRow(row.label, row.method, [Entry(100 * float(value)) for value in values]))
        labels = [f"> {threshold:g}" for threshold in THRESHOLDS]
        blocks = [RowBlock("Accuracy of those kept (%)", accuracy), RowBlock("Share kept (%)", coverage)]
        images = sum(column.n for column in columns)
        notes = [f"{images:,} test images of {listed(c.dataset for c in columns)} together.", *comparison.notes]
        made.append(Table(experiment.name, f"{experiment.title}, {comparison.backbone}", labels, blocks, notes))
    return made


def pictures(material: Material) -> Iterator[NamedFigure]:
    for comparison in material.comparisons():
        if columns := comparison.common_columns():
            yield selective_figure(comparison, columns, "selective")
