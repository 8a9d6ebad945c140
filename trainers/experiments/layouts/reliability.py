"""Reliability diagrams of all methods and data sets."""
from __future__ import annotations

from collections.abc import Iterator

from ...report.gallery import NamedFigure, reliability_figure
from ..finished_runs import Material
from . import Shown
from .results import results


def show(material: Material) -> Shown:
    return results(material), pictures(material)


def pictures(material: Material) -> Iterator[NamedFigure]:
    main = material.experiment.study.get("main", [])
    for backbone in material.backbones:
        for name, part in (("reliability_main", material.where(lambda run: run.dataset in main)),
                           ("reliability_all", material)):
            if part.found:
                yield reliability_figure(part.comparison(backbone), name)
