"""The metrics of the report. Adding one is adding its entry to METRICS, which a plugin does with `register_metric`;
tables, page and CSV follow."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ...datasets.utils.errors import ConfigError
from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.calibration import Interval
from ..functional.posthoc import cots, ecots, fixed_temperature, replaced_confidence
from ..registry import method_info
from .load import Predictions, Run


class Top(NamedTuple):
    """Confidence and correctness of the top class of each image, both (N,)."""

    confidence: Array
    correct: Array


@dataclass(frozen=True)
class Samples:
    """What a metric is computed from, one row per image."""

    logits: Array  # (N, K)
    probabilities: Array  # (N, K)
    label: Array  # (N,)
    top: Top
    with_sals: Top
    with_temperature: Top | None
    bins: int


@dataclass(frozen=True)
class Metric:
    """How a metric is named, shown and computed."""

    label: str
    # A function and its arrays, whose rows the bootstrap resamples; None if the run lacks them. Metrics without `of`
    # are computed by `posthoc_metrics`.
    of: Callable[[Samples], tuple | None] | None = None
    percent: bool = True
    higher_is_better: bool | None = False
    digits: int = 0  # after the point; 0 means 1 for percentages and 3 otherwise
    interval: bool = False  # whether a bootstrap interval covers the true value; chance adds to binned |gaps|
    root: bool = False  # `of` gives the square, to which chance adds nothing

    @property
    def scale(self) -> int:
        """From fractions to what is shown."""
        return 100 if self.percent else 1

    @property
    def heading(self) -> str:
        """The label with the unit."""
        return f"{self.label} (%)" if self.percent else self.label

    @property
    def decimals(self) -> int:
        return self.digits or (1 if self.percent else 3)

    def show(self, value: float) -> str:
        """A value in fractions as tables print it, without its unit."""
        return f"{self.scale * value:.{self.decimals}f}"

    def measure(self, samples: Samples, repeats: int) -> Interval | None:
        chosen = self.of(samples) if self.of else None
        if chosen is None:
            return None
        function, *arrays = chosen
        if not repeats or not self.interval:
            found = _point(float(function(*arrays)))
        else:
            found = cal.bootstrap(function, *arrays, repeats=repeats, centred=True)
        # The bias correction may shift an end out of the possible range.
        low, high = -1.0 if self.higher_is_better is None else 0.0, 1.0 if self.percent else np.inf
        ends = np.clip([found.value, found.low, found.high], low, high)
        return Interval(*map(float, np.sqrt(ends) if self.root else ends))


METRICS = {
    "accuracy": Metric("Accuracy", lambda s: (cal.accuracy, *s.top), higher_is_better=True, interval=True),
    "ece": Metric("ECE", lambda s: (partial(cal.ece, bins=s.bins), *s.top)),
    "rms_calibration_error": Metric(
        "RMS calibration error", lambda s: (partial(cal.squared_calibration_error, bins=s.bins), *s.top),
        interval=True, root=True,
    ),
    "smooth_ece": Metric("Smooth ECE", lambda s: (cal.smooth_ece, *s.top)),
    "ece_sals": Metric("ECE + SaLS", lambda s: (partial(cal.ece, bins=s.bins), *s.with_sals)),
    "ece_temperature": Metric(
        "ECE + temperature†",
        lambda s: s.with_temperature and (partial(cal.ece, bins=s.bins), *s.with_temperature),
    ),
    "ece_cots": Metric("ECE + CoTS"),
    "ece_ecots": Metric("ECE + E-CoTS"),
    "accuracy_ecots": Metric("Accuracy + E-CoTS", higher_is_better=True),
    "ece_cor": Metric("ECE + zero-shot confidence"),
    "ece_fixed": Metric("ECE + fixed temperature"),
    "ace": Metric("ACE", lambda s: (partial(cal.ace, bins=s.bins), *s.top)),
    "mce": Metric("MCE", lambda s: (partial(cal.mce, bins=s.bins), *s.top)),
    "classwise_ece": Metric(
        "Classwise ECE", lambda s: (partial(cal.classwise_ece, bins=s.bins), s.probabilities, s.label),
    ),
    "signed_error": Metric(
        "Over-confidence", lambda s: (cal.signed_error, *s.top), higher_is_better=None, interval=True,
    ),
    "auroc": Metric("AUROC", lambda s: (cal.auroc, *s.top), higher_is_better=True, interval=True),
    "aurc": Metric("AURC", lambda s: (cal.aurc, *s.top), interval=True),
    "brier": Metric(
        "Brier", lambda s: (np.mean, cal.brier_terms(s.probabilities, s.label)), percent=False, interval=True,
    ),
    "nll": Metric("NLL", lambda s: (np.mean, cal.nll_terms(s.logits, s.label)), percent=False, interval=True),
    "seconds": Metric("Seconds per image", percent=False, digits=4),
}


def register_metric(name: str, metric: Metric) -> None:
    """Adds a metric to all reports and to the names that an experiment's `metrics` may have."""
    if name in METRICS:
        raise ConfigError(f"metric '{name}' is registered twice")
    METRICS[name] = metric


POSTHOC = ("ece_cots", "ece_ecots", "accuracy_ecots", "ece_cor", "ece_fixed")  # label-free post-hoc scaling
TEMPERATURE_NOTE = (
    "† temperature scaling needs labels, which test-time tuning never sees: a reference, not a method. It is fitted on "
    "a run over the validation split (TEST.SPLIT val) if there is one; otherwise each half of the test images is "
    "scaled by the temperature fitted on the other half."
)
INTERVAL_NOTE = (
    "Brackets: 95 % bootstrap interval of one run. ± is the sample standard deviation over seeds. ECE, smooth ECE, "
    "ACE, MCE and classwise ECE have none, because chance adds to the |gap| of each bin: on few images they are too "
    "high. RMS calibration error: root of the mean squared gap of the bins without what chance adds (Kumar, Liang and "
    "Ma, 2019); its interval covers the true value. Smooth ECE (Błasiok and Nakkiran, 2023) has no bins."
)
POSTHOC_NOTE = (
    "CoTS and E-CoTS rescale each image by its own strong views; they need a method that uses several views. A method "
    "that does not change the prompt has τ = 1 everywhere. E-CoTS weights the plain view by the mean cosine a of the "
    "classes: where class features are nearly orthogonal, as those of small models are, the strong views decide alone "
    "and accuracy falls. Fixed temperature: 1.16 for transformers, 1.15 for ResNets, as in C-TPT's code."
)


def posthoc_metrics(run: Run, data: Predictions, bins: int) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """The metrics after each kind of label-free scaling, of a run's predictions and of its zero-shot predictions; and
    the run's time per image."""
    temperature = fixed_temperature(run.backbone, str(run.results.get("architecture", "")))
    own = _scaled_metrics(_scaled_logits(data, temperature, method_info(run.trainer).tuned), data.label, bins)
    seconds = run.results.get("adapt_seconds_per_image") or run.results.get("seconds_per_image")
    if seconds is not None:
        own["seconds"] = _point(float(seconds))
    if not run.has_zero_shot:
        del own["ece_cor"]
        return own, {}
    logits = data.zero_shot_logits
    before = {"ece_cots": logits, "ece_cor": logits, "ece_fixed": logits / temperature}
    return own, _scaled_metrics(before, data.label, bins)


def _scaled_logits(data: Predictions, temperature: float, adapts: bool) -> dict[str, Array]:
    """The logits after each kind of scaling, by the name of its ECE."""
    logits = data.logits
    found = {"ece_cor": replaced_confidence(logits, data.zero_shot_logits), "ece_fixed": logits / temperature}
    tau = data.cots_tau if adapts else np.ones(len(logits))
    if tau is not None:
        tau = np.where(data.flagged | ~np.isfinite(tau), 1, tau)  # images that fell back to zero-shot are not rescaled
        found["ece_cots"] = cots(logits, tau)
        if data.cots_tau is not None and data.strong_log_p is not None and data.text is not None:
            kept = ~np.isfinite(data.strong_log_p).all(axis=1, keepdims=True) | data.flagged[:, None]
            found["ece_ecots"] = np.where(kept, logits, ecots(logits, tau, np.nan_to_num(data.strong_log_p), data.text))
    return found


def _scaled_metrics(scaled: dict[str, Array], label: Array, bins: int) -> dict[str, Interval]:
    metrics = {}
    for name, logits in scaled.items():
        confidence, correct = cal.top_class(logits, label)
        metrics[name] = _point(cal.ece(confidence, correct, bins))
        if name == "ece_ecots":  # the only one that changes predicted classes
            metrics["accuracy_ecots"] = _point(cal.accuracy(confidence, correct))
    return metrics


def _point(value: float) -> Interval:
    """A value without an interval."""
    return Interval(value, np.nan, np.nan)
