"""Formulas as pure functions: objectives, calibration metrics, post-hoc scaling, conformal sets,
theory.

`from promptcal.trainers.functional import ece` works for every metric of README.md.
"""
from importlib import import_module
from typing import Any

BINS = 20  # of ECE, ACE and MCE by default; here because settings need it without torch

# The metrics, by the file that has them. `calibration.selective` is not among them, because a file
# has its name.
METRICS = {
    "calibration": (
        "accuracy", "accuracy_interval", "ace", "aurc", "auroc", "balanced_accuracy", "brier",
        "classwise_ece", "ece", "macro_f1", "mce", "nll", "over_confidence", "reliability",
        "rms_calibration_error", "rms_interval", "sals", "signed_error", "smooth_ece",
        "squared_calibration_error", "top_class",
    ),
    "selective": ("aurc_interval", "auroc_interval", "risk_at_coverage", "selective_accuracy"),
}
PUBLIC = {name: module for module, names in METRICS.items() for name in names}

__all__ = ["BINS", *PUBLIC]


def __getattr__(name: str) -> Any:
    """Imported on first use: the metrics import torch, which settings need not wait for."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
