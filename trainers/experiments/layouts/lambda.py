"""Accuracy and ECE over λ."""
from __future__ import annotations

from collections.abc import Iterator

from ...report import published as paper
from ...report.figures.comparison import Point
from ...report.gallery import NamedFigure, lambda_figure, lambda_points, point
from ..finished_runs import Material, swept_key
from . import Shown
from .results import by_setting


def show(material: Material) -> Shown:
    return by_setting(material), pictures(material)


def pictures(material: Material, key: str = "") -> Iterator[NamedFigure]:
    key = key or swept_key(material.experiment)
    for comparison in material.comparisons(key):
        for column in comparison.columns:
            sweeps = {
                method: points for method, points in lambda_points(comparison, column).items() if len(points) > 1
            }
            references = {
                row.method: point(comparison.cells[row, column]) for row in comparison.rows
                if row.method not in sweeps and (row, column) in comparison.cells
            }
            if material.compared:
                for method, label in (("O-TPT", "O-TPT (published)"), ("SoC", "SoC, λ 30 (published)")):
                    cells = [paper.find_for_run(metric, method, column.dataset, comparison.backbone)
                             for metric in ("accuracy", "ece")]
                    if all(cells):
                        references[label] = Point(*(float(cell.value) for cell in cells))
            yield lambda_figure(comparison, column, sweeps, references)
