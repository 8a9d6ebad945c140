"""How sure a model is of its mistakes, by how alike the two classes are."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...report.gallery import NamedFigure, pair_errors_of, pair_figures
from ...report.load import text_similarity
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import Material
from . import Shown


def show(material: Material) -> Shown:
    return tables(material), pictures(material)


def tables(material: Material) -> list[Table]:
    """How sure the model is of its mistakes, by how alike the two classes are."""
    experiment, made = material.experiment, []
    for comparison in material.comparisons():
        blocks, thirds = [], ["least alike third", "middle third", "most alike third", "all"]
        for column in comparison.columns:
            rows = []
            for row in comparison.rows:
                cell = comparison.cells.get((row, column))
                data = pair_errors_of(cell, text_similarity) if cell else None
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
            made.append(Table(experiment.name, f"{experiment.title}, {comparison.backbone}", thirds, blocks, notes))
    return made


def pictures(material: Material) -> Iterator[NamedFigure]:
    for comparison in material.comparisons():
        for column in comparison.columns:
            yield from pair_figures(comparison, column, text_similarity)
