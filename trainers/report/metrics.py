"""The metrics of the report.

To add one, add its entry to METRICS; a plugin does so with `register_metric`. Tables, page and CSV
follow.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...datasets.utils.errors import ConfigError
from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.calibration import BINS
from ..functional.intervals import Interval, mean_interval
from ..functional.posthoc import cots, ecots, replaced_confidence
from ..functional.selective import (
    aurc_interval,
    auroc_interval,
    risk_at_coverage,
    selective_accuracy,
)
from .predictions import Predictions

SURE = 0.8  # confidence above which selective accuracy is shown
COVERAGE = 0.8  # share of the images at which risk is shown
TEMPERATURE = "ece_temperature"  # the one metric that validation images take part in
STD = "_std"  # after a metric's name: its standard deviation over seeds


class Top(NamedTuple):
    """Confidence and correctness of the top class of each image, both (N,)."""

    confidence: Array
    correct: Array


@dataclass(frozen=True)
class Samples:
    """What a metric is computed from, one row per image.

    Attributes:
        logits: (N, K).
        probabilities: (N, K).
        label: (N,).
        top: Top classes before any scaling.
        with_sals: Top classes of the logits after SaLS.
        with_temperature: Top classes after temperature scaling; None for a single image.
        bins: Number of bins.
        clusters: Group of each image where images are not independent, (N,); otherwise None.
        has_logits: Whether logits are the run's. Those of a run that was exported without them give
            its top classes and their confidence, and nothing else.
    """

    logits: Array
    probabilities: Array
    label: Array
    top: Top
    with_sals: Top
    with_temperature: Top | None
    bins: int = BINS
    clusters: Array | None = None
    has_logits: bool = True


@dataclass(frozen=True)
class Metric:
    """How a metric is named, shown and computed.

    Attributes:
        label: Name of the metric in tables.
        of: Returns (function, *arguments), whose value `function(*arguments)` is the metric, or
            None if the run lacks what it needs. Metrics without `of` and `measured` are computed by
            `posthoc_metrics`, or read from results.json.
        percent: Whether it is a fraction that is shown in percent.
        higher_is_better: Whether higher values are better; None if neither are.
        digits: Digits after the point; 0 means 1 for percentages and 3 otherwise.
        interval: Whether a metric whose `of` returns (np.mean, values per image) has the t
            interval of a mean.
        measured: Returns the value with its interval by a closed formula, in place of `of`.
        clustered: Whether `measured` takes clusters of images into account. Where images are not
            independent, other metrics are shown without an interval.
        of_top_class: Whether it follows from `Samples.top` alone, so that it is known of runs that
            were exported without logits.
    """

    label: str
    of: Callable[[Samples], tuple | None] | None = None
    percent: bool = True
    higher_is_better: bool | None = False
    digits: int = 0
    interval: bool = False
    measured: Callable[[Samples], Interval] | None = None
    clustered: bool = False
    of_top_class: bool = False

    @property
    def scale(self) -> int:
        """Factor from the computed value to the number that tables show."""
        return 100 if self.percent else 1

    @property
    def heading(self) -> str:
        """The label with the unit."""
        return f"{self.label} (%)" if self.percent else self.label

    @property
    def decimals(self) -> int:
        """How many digits tables show after the point."""
        if self.digits:
            return self.digits
        return 1 if self.percent else 3

    def show(self, value: float) -> str:
        """A value in fractions as tables print it, without its unit."""
        return f"{self.scale * value:.{self.decimals}f}"

    @property
    def is_computed(self) -> bool:
        """Whether it is computed from samples alone."""
        return self.of is not None or self.measured is not None

    def measure(self, samples: Samples) -> Interval | None:
        """The metric, with its interval if it has one; None if the run lacks what it needs."""
        if not samples.has_logits and not self.of_top_class:
            return None
        if self.measured is not None:
            value = self.measured(samples)
            if samples.clusters is not None and not self.clustered:
                return without_interval(float(value.value))
            return value
        if self.of is None:
            return None
        computation = self.of(samples)
        if computation is None:
            return None
        function, *arguments = computation
        if self.interval and function is np.mean and samples.clusters is None:
            highest = 1.0 if self.percent else math.inf
            return mean_interval(arguments[0], low=0.0, high=highest)
        return without_interval(float(function(*arguments)))


def without_interval(value: float) -> Interval:
    """A value without an interval."""
    return Interval(value, math.nan, math.nan)


def binned(function: Callable[..., float]) -> Callable[[Samples], Interval]:
    """`Metric.measured` for a metric of the top class in bins.

    It has no interval, because chance adds to the |gap| of each bin.
    """
    def measure(samples: Samples) -> Interval:
        return without_interval(function(*samples.top, bins=samples.bins))
    return measure


# `Metric.of` or `Metric.measured` of the metrics below. Those that return a tuple are computed from
# it by `Metric.measure`, those that return an Interval have a closed formula for it.


def ece_with_temperature(samples: Samples) -> tuple | None:
    if samples.with_temperature is None:
        return None
    return cal.ece, *samples.with_temperature, samples.bins


def ece_with_sals(samples: Samples) -> tuple:
    return cal.ece, *samples.with_sals, samples.bins


def accuracy(samples: Samples) -> Interval:
    return cal.accuracy_interval(*samples.top, samples.clusters)


def rms_error(samples: Samples) -> Interval:
    return cal.rms_interval(*samples.top, samples.bins)


def over_confidence(samples: Samples) -> Interval:
    return cal.over_confidence(*samples.top, samples.clusters)


def sure_accuracy(samples: Samples) -> Interval:
    return selective_accuracy(*samples.top, SURE, samples.clusters)


def sure_share(samples: Samples) -> tuple:
    return np.mean, samples.top.confidence > SURE


def risk(samples: Samples) -> Interval:
    return risk_at_coverage(*samples.top, COVERAGE)


def auroc(samples: Samples) -> Interval:
    return auroc_interval(*samples.top)


def aurc(samples: Samples) -> Interval:
    return aurc_interval(*samples.top)


def smooth_ece(samples: Samples) -> tuple:
    return cal.smooth_ece, *samples.top


def balanced_accuracy(samples: Samples) -> tuple:
    return cal.balanced_accuracy, samples.logits.argmax(axis=1), samples.label


def macro_f1(samples: Samples) -> tuple:
    return cal.macro_f1, samples.logits.argmax(axis=1), samples.label


def classwise_ece(samples: Samples) -> tuple:
    return cal.classwise_ece, samples.probabilities, samples.label, samples.bins


def brier(samples: Samples) -> tuple:
    return np.mean, cal.brier_terms(samples.probabilities, samples.label)


def nll(samples: Samples) -> tuple:
    return np.mean, cal.nll_terms(samples.logits, samples.label)


METRICS: dict[str, Metric] = {
    "accuracy": Metric(
        "Accuracy", measured=accuracy, higher_is_better=True, clustered=True, of_top_class=True),
    "balanced_accuracy": Metric(
        "Balanced accuracy", balanced_accuracy, higher_is_better=True, of_top_class=True),
    "macro_f1": Metric("Macro-F1", macro_f1, higher_is_better=True, of_top_class=True),
    "ece": Metric("ECE", measured=binned(cal.ece), of_top_class=True),
    "rms_calibration_error": Metric("Debiased RMS error", measured=rms_error, of_top_class=True),
    "signed_error": Metric(
        "Over-confidence", measured=over_confidence, higher_is_better=None, clustered=True,
        of_top_class=True),
    "selective_accuracy": Metric(
        f"Accuracy above {SURE:g}", measured=sure_accuracy, higher_is_better=True, clustered=True,
        of_top_class=True),
    "share_above": Metric(
        f"Share above {SURE:g}", sure_share, higher_is_better=None, interval=True,
        of_top_class=True),
    "risk": Metric(
        f"Errors at {100 * COVERAGE:g} % coverage", measured=risk, of_top_class=True),
    "auroc": Metric("AUROC", measured=auroc, higher_is_better=True, of_top_class=True),
    "aurc": Metric("AURC", measured=aurc, of_top_class=True),
    "smooth_ece": Metric("Smooth ECE", smooth_ece, of_top_class=True),
    "ece_sals": Metric("ECE + SaLS", ece_with_sals),
    TEMPERATURE: Metric("ECE + temperature†", ece_with_temperature),
    "ece_cots": Metric("ECE + CoTS"),
    "ece_ecots": Metric("ECE + E-CoTS"),
    "accuracy_ecots": Metric("Accuracy + E-CoTS", higher_is_better=True),
    "ece_cor": Metric("ECE + zero-shot confidence"),
    "ece_fixed": Metric("ECE + fixed temperature"),
    "ace": Metric("ACE", measured=binned(cal.ace), of_top_class=True),
    "mce": Metric("MCE", measured=binned(cal.mce), of_top_class=True),
    "classwise_ece": Metric("Classwise ECE", classwise_ece),
    "brier": Metric("Brier", brier, percent=False, interval=True),
    "nll": Metric("NLL", nll, percent=False, interval=True),
    "seconds": Metric("Seconds per image", percent=False, digits=4),
    "device_memory": Metric("GPU memory (GB)", percent=False, digits=2),
}
# Shown only where the classes have unequal numbers of images: otherwise they say what accuracy
# says.
OF_UNEQUAL_CLASSES = ("balanced_accuracy", "macro_f1")
POSTHOC = ("ece_cots", "ece_ecots", "accuracy_ecots", "ece_cor", "ece_fixed")  # without labels


def register_metric(name: str, metric: Metric) -> None:
    """Adds a metric to all reports and to the names that an experiment's `metrics` may have.

    Args:
        name: Key of the metric, such as `ece`. A name that is registered already is refused.
        metric: How it is computed and shown.
    """
    if name in METRICS:
        raise ConfigError(f"metric '{name}' is registered twice")
    METRICS[name] = metric


def find_metric(name: str) -> Metric:
    """A metric by its name; with the suffix `_std` its standard deviation over seeds, in points."""
    if name in METRICS or not name.endswith(STD):
        return METRICS[name]
    base = METRICS[name.removesuffix(STD)]
    return Metric(f"{base.label}: standard deviation over seeds", percent=base.percent, digits=2)


def known_metrics() -> list[str]:
    """The names that an experiment's `metrics` may have."""
    names = list(METRICS)
    for name, metric in METRICS.items():
        if metric.is_computed:
            names.append(f"{name}{STD}")
    return names


def ranking_metrics() -> list[str]:
    """The metrics by which a value can be chosen."""
    names = []
    for name, metric in METRICS.items():
        if metric.is_computed and metric.higher_is_better is not None:
            names.append(name)
    return names


def posthoc_metrics(
    data: Predictions, temperature: float, adapts: bool, bins: int
) -> dict[str, Interval]:
    """The metrics after each kind of scaling that needs no labels.

    Args:
        data: Predictions of a run with zero-shot logits.
        temperature: The fixed temperature of its backbone.
        adapts: Whether the method adapts to images. If not, CoTS changes nothing.
    """
    scaled = {
        "ece_cor": replaced_confidence(data.logits, data.zero_shot_logits),
        "ece_fixed": data.logits / temperature,
    }
    tau = data.cots_tau  # CoTS's temperature of each image, (N,)
    if not adapts:
        tau = np.ones(len(data.logits))
    if tau is not None:
        # Images that fell back to zero-shot are not rescaled.
        tau = np.where(data.flagged | ~np.isfinite(tau), 1, tau)
        scaled["ece_cots"] = cots(data.logits, tau)
        if data.cots_tau is not None and data.strong_log_p is not None and data.text is not None:
            scaled["ece_ecots"] = ecots_logits(data, tau, data.strong_log_p, data.text)
    return metrics_of_scaled(scaled, data.label, bins)


def ecots_logits(data: Predictions, tau: Array, strong_log_p: Array, text: Array) -> Array:
    """The logits after E-CoTS, unchanged where an image has no finite prediction of its views.

    Args:
        data: N predictions of K classes.
        tau: CoTS's temperatures, (N,).
        strong_log_p: Mean log-prediction of the strong views at these temperatures, (N, K).
        text: Class features before adaptation, (K, d).

    Returns:
        Logits, (N, K).
    """
    is_finite = np.isfinite(strong_log_p).all(axis=1)
    rescaled = ecots(data.logits, tau, np.nan_to_num(strong_log_p), text)
    unchanged = ~is_finite | data.flagged.astype(bool)
    return np.where(unchanged[:, None], data.logits, rescaled)


def metrics_of_scaled(scaled: Mapping[str, Array], label: Array, bins: int) -> dict[str, Interval]:
    """ECE of scaled logits, by the name of the metric.

    Args:
        scaled: Logits (N, K) by the name of the metric.
        label: True class of each image, (N,).
    """
    metrics = {}
    for name, logits in scaled.items():
        confidence, correct = cal.top_class(logits, label)
        metrics[name] = without_interval(cal.ece(confidence, correct, bins))
        if name == "ece_ecots":  # the only one that changes predicted classes
            metrics["accuracy_ecots"] = without_interval(cal.accuracy(confidence, correct))
    return metrics
