"""Sweeps over one setting: a row for each of its values, and a figure that suits the setting."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from ...registry import method_info, method_order
from ...report import gallery
from ...report import published as paper
from ...report.comparison import Comparison, Row
from ...report.figures.comparison import Pair, Point, draw_pairs
from ...report.figures.style import COLUMN, PAGE, grid_lines, new_figure, styled
from ...report.gallery import NamedFigure, lambda_figure, lambda_points, point, prompt_figure
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ..finished_runs import ANY, FinishedRuns, mean
from ..vs_published import PRINTED, published_value
from .results import by_dataset

PROMPT = "PROMPT.CTX_INIT"


def by_setting(finished: FinishedRuns) -> list[Table]:
    """A row for each value of the setting that the experiment sweeps."""
    return by_dataset(finished, finished.experiment.swept_key)


def by_every_setting(finished: FinishedRuns) -> list[Table]:
    """As `by_setting`, where each method has a setting of its own."""
    return by_dataset(finished, ANY)


def pareto_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    return lambda_figures(finished, ANY)


def lambda_figures(finished: FinishedRuns, key: str = "") -> Iterator[NamedFigure]:
    """Accuracy against ECE over λ."""
    for comparison in finished.comparisons(key or finished.experiment.swept_key):
        for column in comparison.columns:
            sweeps = {
                method: points for method, points in lambda_points(comparison, column).items() if len(points) > 1
            }
            references = {
                row.method: point(comparison.cells[row, column]) for row in comparison.rows
                if row.method not in sweeps and (row, column) in comparison.cells
            }
            if finished.compared:
                for method, label in (("O-TPT", "O-TPT (published)"), ("SoC", "SoC, λ 30 (published)")):
                    cells = [paper.find_for_run(metric, method, column.dataset, comparison.backbone)
                             for metric in ("accuracy", "ece")]
                    if all(cells):
                        references[label] = Point(*(float(cell.value) for cell in cells if cell))
            yield lambda_figure(comparison, column, sweeps, references)


def step_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    """One against two steps."""
    for comparison in finished.comparisons("TTA.STEPS"):
        yield from gallery.step_figures(comparison)
    if finished.compared:
        panels = {
            title: {"": {method: Pair(*(published_value(table, metric, method) for table in ("vitl", "vitl_2step")))
                         for method in ("C-TPT", "O-TPT", "SoC")}}
            for title, metric in (("ECE (%)", "ece"), ("accuracy (%)", "accuracy"))
        }
        yield NamedFigure("steps_published", f"Averages of Tables 1 and 9. {PRINTED}",
                      draw_pairs(panels, "one step", "two steps", "published (Tables 1 and 9)", numbers=True))


def setting_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons(finished.experiment.swept_key):
        if comparison.columns:
            caption = (f"{finished.experiment.title}, {comparison.backbone_label}. Bold: average of the data sets; "
                       f"dashed: the other methods' average. {comparison.images()}")
            yield NamedFigure(finished.experiment.name, caption, draw_setting(comparison))


def draw_setting(comparison: Comparison) -> Figure:
    """Accuracy and ECE by the value of a setting: a thin line for each data set, a bold one for their average."""
    swept = [row for row in comparison.rows if row.variant]
    others = [row for row in comparison.rows if not row.variant]
    common = [column for column in comparison.columns if all((row, column) in comparison.cells for row in swept)]
    with styled():
        figure = new_figure(min(PAGE, COLUMN * 1.9), 2.6)
        for axes, (metric, label) in zip(figure.subplots(1, 2), (("ece", "ECE (%)"), ("accuracy", "accuracy (%)")),
                                         strict=True):
            x = range(len(swept))
            for column in common if len(common) > 1 else ():
                y = [mean(comparison.cells[row, column], metric) for row in swept]
                axes.plot(x, y, linewidth=0.9, alpha=0.75, marker=".", label=comparison.column_label(column))
            average = [np.mean([mean(comparison.cells[row, column], metric) for column in common]) for row in swept]
            axes.plot(x, average, color=method_info(swept[0].method).colour, linewidth=2.2, marker="o", markersize=4,
                      label="average" if len(common) > 1 else comparison.column_label(common[0]))
            for row in others:
                if all((row, column) in comparison.cells for column in common):
                    value = np.mean([mean(comparison.cells[row, column], metric) for column in common])
                    axes.axhline(value, color=method_info(row.method).colour, linestyle=(0, (4, 3)), linewidth=1,
                                 label=method_info(row.method).label)
            axes.set_xticks(list(x), [row.variant for row in swept], rotation=30, ha="right", rotation_mode="anchor")
            axes.set_ylabel(label)
            grid_lines(axes)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        return figure


def prompt_tables(finished: FinishedRuns) -> list[Table]:
    """Over all initial prompts each method's mean and worst ECE, and how often it is the lowest; then each prompt."""
    tables = []
    for comparison in finished.comparisons(PROMPT):
        methods = sorted({row.method for row in comparison.rows}, key=method_order)
        prompts = list(dict.fromkeys(row.variant for row in comparison.rows))
        rows: dict[str, list[Entry | None]] = {method: [] for method in methods}
        labels: list[str] = []
        for column in comparison.columns:
            ece = {
                (method, prompt): mean(comparison.cells[Row(method, prompt), column], "ece")
                for method in methods for prompt in prompts if (Row(method, prompt), column) in comparison.cells
            }
            shared = [prompt for prompt in prompts if all((method, prompt) in ece for method in methods)]
            if not shared:
                continue
            name = comparison.column_label(column)
            labels += [f"{name}: mean", f"{name}: worst", f"{name}: lowest of {len(shared)}"]
            for method in methods:
                own = [ece[method, prompt] for prompt in shared]
                others = [other for other in methods if other != method]
                wins = sum(all(ece[method, prompt] < ece[other, prompt] for other in others) for prompt in shared)
                rows[method] += [Entry(float(np.mean(own))), Entry(max(own)), Entry(wins, 0)]
        if labels:
            block = RowBlock("ECE (%)", [TableRow(Row(m).label, m, entries) for m, entries in rows.items()])
            title = f"ECE over initial prompts, {comparison.backbone_label}"
            tables.append(Table(f"{finished.experiment.name}_summary", title, labels, [block],
                                [f"{len(prompts)} initial prompts. {comparison.images()}"]))
    return [*tables, *by_setting(finished)]


def prompt_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons(PROMPT):
        for column in comparison.columns:
            yield prompt_figure(comparison, column)
