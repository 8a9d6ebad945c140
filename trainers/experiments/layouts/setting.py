"""Accuracy and ECE by the value of one setting."""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure

from ...registry import method_info
from ...report.comparison import Comparison
from ...report.figures.style import COLUMN, PAGE, grid_lines, new_figure, styled
from ...report.gallery import NamedFigure
from ..finished_runs import Material, mean, swept_key
from . import Shown
from .results import by_setting


def show(material: Material) -> Shown:
    return by_setting(material), pictures(material)


def pictures(material: Material) -> Iterator[NamedFigure]:
    key = swept_key(material.experiment)
    for comparison in material.comparisons(key):
        if comparison.columns:
            caption = (f"{material.experiment.title}, {comparison.backbone}. Bold: average of the data sets; dashed: "
                       f"the other methods' average. {comparison.images()}")
            yield NamedFigure(material.experiment.name, caption, draw_setting(comparison, key))


def draw_setting(comparison: Comparison, key: str) -> Figure:
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
