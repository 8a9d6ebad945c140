"""Layouts that look at single predictions: selective accuracy, and mistakes by pair of classes."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...report.gallery import NamedFigure, pair_errors_of, pair_figures, selective_figure, selective_on
from ...report.load import text_similarity
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import FinishedRuns, listed

THRESHOLDS = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
THIRDS = ["least alike third", "middle third", "most alike third", "all"]


def selective_tables(finished: FinishedRuns) -> Iterator[Table]:
    """Accuracy of the predictions above a confidence threshold, over all data sets, and the share that is kept."""
    experiment = finished.experiment
    for comparison in finished.comparisons():
        columns = comparison.common_columns()
        blocks = [RowBlock("Accuracy of those kept (%)", []), RowBlock("Share kept (%)", [])]
        for row in comparison.rows_on(columns) if columns else ():
            for block, values in zip(blocks, selective_on(comparison, row, columns, THRESHOLDS), strict=True):
                block.rows.append(TableRow(row.label, row.method, [Entry(100 * float(value)) for value in values]))
        labels = [f"> {threshold:g}" for threshold in THRESHOLDS]
        images = sum(column.n for column in columns)
        notes = [f"{images:,} test images of {listed(c.dataset for c in columns)} together.", *comparison.notes]
        yield Table(experiment.name, f"{experiment.title}, {comparison.backbone_label}", labels, blocks, notes)


def selective_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons():
        if columns := comparison.common_columns():
            yield selective_figure(comparison, columns, "selective")


def class_pair_tables(finished: FinishedRuns) -> Iterator[Table]:
    """Mean confidence of the mistakes, by the similarity of the predicted and the true class."""
    experiment = finished.experiment
    for comparison in finished.comparisons():
        blocks = []
        for column in comparison.columns:
            rows = []
            for row, cell in comparison.cells_on(column):
                data = pair_errors_of(cell, text_similarity)
                if data is None:
                    continue
                order = np.argsort(data.similarity, kind="stable")
                # Thirds of the mistakes, not of the pairs.
                third = np.minimum(3 * (np.cumsum(data.count[order]) - 1) // max(data.count.sum(), 1), 2)
                parts = [order[third == part] for part in range(3)]
                values = [
                    100 * float(np.average(data.error[part], weights=data.count[part])) if len(part) else float("nan")
                    for part in (*parts, order)
                ]
                rows.append(TableRow(row.label, row.method, [Entry(value) for value in values]))
            if rows:
                blocks.append(RowBlock(f"{comparison.column_label(column)}: mean confidence of the mistakes (%)", rows))
        if blocks:
            notes = ["Mistakes sorted by the zero-shot similarity of predicted and true class. Accuracy among mistakes "
                     "is 0, so their mean confidence is their ECE.", comparison.images(), *comparison.notes]
            yield Table(experiment.name, f"{experiment.title}, {comparison.backbone_label}", THIRDS, blocks, notes)


def class_pair_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons():
        for column in comparison.columns:
            yield from pair_figures(comparison, column, text_similarity)
