"""How an experiment's results are shown, by the name that its yaml file gives as `layout`.

A layout is two functions of the finished runs, one that returns tables and one that draws figures. To add a layout,
write them in a module of this folder and add a line to LAYOUTS.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

LAYOUTS = {  # name: functions that make the tables and the figures
    "results": ("results.by_dataset", ""),
    "reliability": ("results.by_dataset", "results.reliability_figures"),
    "sals": ("results.by_dataset", "results.sals_figures"),
    "selective": ("predictions.selective_tables", "predictions.selective_figures"),
    "class_pairs": ("predictions.class_pair_tables", "predictions.class_pair_figures"),
    "lambda": ("results.by_setting", "results.lambda_figures"),
    "pareto": ("results.by_every_setting", "results.pareto_figures"),
    "steps": ("results.by_setting", "results.step_figures"),
    "setting": ("results.by_setting", ""),
    "prompts": ("results.prompt_tables", "results.prompt_figures"),
    "averages": ("averages.averages", ""),
    "deviations": ("averages.deviations", ""),
    "family": ("averages.family", ""),
    "online": ("robustness.online_tables", ""),
    "corruptions": ("robustness.corruption_tables", "robustness.severity_figures"),
    "streams": ("robustness.stream_tables", "robustness.stream_figures"),
    "descriptions": ("robustness.text_tables", ""),
    "complexity": ("penalties.complexity", ""),
    "scaling": ("penalties.scaling", ""),
    "theory": ("theory.theory_tables", ""),
    "verify": ("verify.check_tables", ""),
}
RANKS_METHODS = ("results", "sals", "selective")  # layouts whose page has a verdict on the methods


def find_layout(name: str) -> list[Callable[[Any], Iterable]]:
    """The functions that make the tables and the figures. Imported late: they import torch and matplotlib."""
    paths = [path.partition(".") for path in LAYOUTS[name]]
    return [getattr(import_module(f".{module}", __package__), function) if module else lambda finished: ()
            for module, _, function in paths]
