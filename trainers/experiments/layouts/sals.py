"""Methods by data sets with and without SaLS, and the difference as bars."""
from __future__ import annotations

from collections.abc import Iterator

from ....datasets.base import dataset_info
from ...report import published as paper
from ...report.figures.comparison import Pair, draw_pairs
from ...report.gallery import NamedFigure, sals_figures
from ..finished_runs import Material
from ..vs_published import PRINTED, printed
from . import Shown
from .results import results

RANKS_METHODS = True


def show(material: Material) -> Shown:
    return results(material), pictures(material)


def pictures(material: Material) -> Iterator[NamedFigure]:
    for comparison in material.comparisons():
        yield from sals_figures(comparison, "sals")
    if material.compared:
        groups = {
            dataset_info(column).label: {
                method: Pair(printed("vitl", "ece", method, column), printed("vitl_sals", "ece", method, column))
                for method in ("C-TPT", "O-TPT", "SoC")
            }
            for column in paper.tables()["vitl_sals"]["columns"]
        }
        yield NamedFigure("sals_published", f"Tables 1 and 10. {PRINTED}",
                      draw_pairs(groups, "ECE (%)", "plain", "with SaLS", "published (Tables 1 and 10)"))
