"""How an experiment's results are shown, by the name that its yaml file gives as `layout`.

A layout is a function of the finished runs that returns tables and figures; figures are drawn when they are iterated.
To add one, write the function in a module of this folder and add a line to LAYOUTS.
"""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # they import torch and matplotlib, which a check of the name need not wait for
    from ..finished_runs import FinishedRuns, Shown

LAYOUTS = {  # name: module.function
    "results": "results.show_results",
    "reliability": "results.show_reliability",
    "sals": "results.show_sals",
    "selective": "predictions.show_selective",
    "class_pairs": "predictions.show_class_pairs",
    "lambda": "sweeps.show_lambda",
    "pareto": "sweeps.show_pareto",
    "steps": "sweeps.show_steps",
    "setting": "sweeps.show_setting_curve",
    "variants": "sweeps.show_variants",
    "prompts": "sweeps.show_prompts",
    "averages": "averages.show_averages",
    "deviations": "averages.show_deviations",
    "family": "averages.show_family",
    "complexity": "penalties.show_complexity",
    "scaling": "penalties.show_scaling",
    "theory": "theory.show_theory",
}
RANKS_METHODS = ("results", "sals", "selective")  # layouts whose page has a verdict on the methods


def find_layout(name: str) -> Callable[[FinishedRuns], Shown]:
    module, function = LAYOUTS[name].split(".")
    return getattr(import_module(f".{module}", __package__), function)
