"""Formulas as pure functions: objectives, calibration metrics, post-hoc scaling, conformal sets,
theory.

`from promptcal.trainers.functional import ece` works for every metric of README.md.
"""
from importlib import import_module
from typing import Any

BINS = 20  # of ECE, ACE and MCE by default; here because settings need it without torch

# The metrics, by the file that has them. `selective.selective` is not among them, because its file
# has the same name.
METRICS = {
    "calibration": (
        "ace", "classwise_ece", "ece", "mce", "over_confidence", "reliability",
        "rms_calibration_error", "rms_interval", "signed_error", "smooth_ece",
        "squared_calibration_error", "top_class",
    ),
    "classification": ("accuracy", "accuracy_interval", "balanced_accuracy", "macro_f1"),
    "posthoc": ("sals",),
    "scoring": ("brier", "nll"),
    "selective": (
        "aurc", "aurc_interval", "auroc", "auroc_interval", "risk_at_coverage",
        "selective_accuracy",
    ),
}
PUBLIC: dict[str, str] = {}  # the file of each metric
for file_name, metric_names in METRICS.items():
    PUBLIC.update(dict.fromkeys(metric_names, file_name))

__all__ = ["BINS", *PUBLIC]


def __getattr__(name: str) -> Any:
    """Imported on first use: the metrics import torch, which settings need not wait for."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{PUBLIC[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
