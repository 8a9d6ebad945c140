"""ECE by initial prompt: which method depends on it least."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...registry import method_order
from ...report.comparison import Row
from ...report.gallery import NamedFigure, prompt_figure
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import Material, mean
from . import Shown
from .results import by_setting

KEY = "PROMPT.CTX_INIT"


def show(material: Material) -> Shown:
    return [*summary(material), *by_setting(material)], pictures(material)


def summary(material: Material) -> list[Table]:
    """Over all initial prompts: mean and worst ECE of each method, and how often it is the lowest."""
    tables = []
    for comparison in material.comparisons(KEY):
        methods = sorted({row.method for row in comparison.rows}, key=method_order)
        prompts = list(dict.fromkeys(row.variant for row in comparison.rows))
        rows: dict[str, list[Entry]] = {method: [] for method in methods}
        labels = []
        for column in comparison.columns:
            ece = {
                (method, prompt): mean(comparison.cells[Row(method, prompt), column], "ece")
                for method in methods for prompt in prompts if (Row(method, prompt), column) in comparison.cells
            }
            both = [prompt for prompt in prompts if all((method, prompt) in ece for method in methods)]
            if not both:
                continue
            name = comparison.column_label(column)
            labels += [f"{name}: mean", f"{name}: worst", f"{name}: lowest of {len(both)}"]
            for method in methods:
                own = [ece[method, prompt] for prompt in both]
                rivals = [other for other in methods if other != method]
                wins = sum(all(ece[method, prompt] < ece[other, prompt] for other in rivals) for prompt in both)
                rows[method] += [Entry(float(np.mean(own))), Entry(max(own)), Entry(wins, 0)]
        if labels:
            block = RowBlock("ECE (%)", [TableRow(Row(m).label, m, entries) for m, entries in rows.items()])
            title = f"ECE over initial prompts, {comparison.backbone}"
            tables.append(Table(f"{material.experiment.name}_summary", title, labels, [block],
                                [f"{len(prompts)} initial prompts. {comparison.images()}"]))
    return tables


def pictures(material: Material) -> Iterator[NamedFigure]:
    for comparison in material.comparisons(KEY):
        for column in comparison.columns:
            yield prompt_figure(comparison, column)
