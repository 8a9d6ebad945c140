"""A row for each value of a setting that is no number, such as which regularisers are added."""
from __future__ import annotations

from ..finished_runs import Material
from . import Shown
from .results import by_setting


def show(material: Material) -> Shown:
    return by_setting(material), []
