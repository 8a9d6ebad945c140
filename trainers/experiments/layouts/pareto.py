"""Accuracy against ECE over λ of every regulariser, each with a setting of its own."""
from __future__ import annotations

from ..finished_runs import ANY, Material
from . import Shown, find_layout
from .results import results


def show(material: Material) -> Shown:
    return results(material, ANY), find_layout("lambda").pictures(material, ANY)
