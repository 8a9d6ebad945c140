"""One against two steps."""
from __future__ import annotations

from collections.abc import Iterator

from ...report.figures.comparison import Pair, draw_two_panels
from ...report.gallery import NamedFigure, step_figures
from ..finished_runs import Material
from ..vs_published import PRINTED, printed
from . import Shown
from .results import by_setting


def show(material: Material) -> Shown:
    return by_setting(material), pictures(material)


def pictures(material: Material) -> Iterator[NamedFigure]:
    for comparison in material.comparisons("TTA.STEPS"):
        yield from step_figures(comparison)
    if material.compared:
        methods = ("C-TPT", "O-TPT", "SoC")
        panels = {
            title: {method: Pair(printed("vitl", metric, method), printed("vitl_2step", metric, method))
                    for method in methods}
            for title, metric in (("ECE (%)", "ece"), ("accuracy (%)", "accuracy"))
        }
        yield NamedFigure("steps_published", f"Averages of Tables 1 and 9. {PRINTED}",
                      draw_two_panels(panels, "one step", "two steps", "published (Tables 1 and 9)"))
