"""The metrics of the report: one entry each. Adding one is adding its line; tables, page and CSV follow."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.calibration import Interval

Top = tuple[Array, Array]  # confidence and correctness of each image's top class, both (N,)


@dataclass(frozen=True)
class Samples:
    """What a metric may look at: a row an image, and the number of bins."""

    logits: Array  # (N, K)
    probabilities: Array  # (N, K)
    label: Array  # (N,)
    top: Top
    with_sals: Top
    with_temperature: Top | None
    bins: int


@dataclass(frozen=True)
class Metric:
    """How a metric is called and shown, and of what it is computed."""

    label: str
    # A function and the arrays that it takes, of which the bootstrap redraws rows; None where there is nothing to
    # compute it from. Metrics without one are filled in from elsewhere.
    of: Callable[[Samples], tuple | None] | None = None
    percent: bool = True
    higher_is_better: bool | None = False
    digits: int = 0  # after the point; 0 = 1 of percent, 3 of other numbers
    most_values: float = np.inf  # that its bootstrap may touch; beyond that it is given without an interval

    @property
    def scale(self) -> int:
        """From fractions to what is shown."""
        return 100 if self.percent else 1

    @property
    def range(self) -> tuple[float, float]:
        """What values are possible, in fractions: an error or a share has no sign, a direction has one."""
        return -1.0 if self.higher_is_better is None else 0.0, 1.0 if self.percent else np.inf

    @property
    def decimals(self) -> int:
        return self.digits or (1 if self.percent else 3)

    def show(self, value: float) -> str:
        """A value in fractions as every table prints it, without its unit."""
        return f"{self.scale * value:.{self.decimals}f}"

    def measure(self, samples: Samples, repeats: int) -> Interval | None:
        chosen = self.of(samples) if self.of else None
        if chosen is None:
            return None
        function, *arrays = chosen
        if repeats and np.asarray(arrays[0]).size * repeats <= self.most_values:
            found = cal.bootstrap(function, *arrays, repeats=repeats, centred=True)
            low, high = self.range
            return Interval(found.value, max(found.low, low), min(found.high, high))  # a shift may lead out of it
        return Interval(function(*arrays), np.nan, np.nan)


def mean(terms: Array) -> float:
    return float(np.mean(terms))


METRICS = {
    "accuracy": Metric("Accuracy", lambda s: (cal.accuracy, *s.top), higher_is_better=True),
    "ece": Metric("ECE", lambda s: (partial(cal.ece, bins=s.bins), *s.top)),
    "ece_debiased": Metric("ECE, debiased", lambda s: (partial(cal.debiased_ece, bins=s.bins), *s.top)),
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
        "Classwise ECE", lambda s: (partial(cal.classwise_ece, bins=s.bins), s.probabilities, s.label), most_values=2e7,
    ),
    "signed_error": Metric("Over-confidence", lambda s: (cal.signed_error, *s.top), higher_is_better=None),
    "auroc": Metric("AUROC", lambda s: (cal.auroc, *s.top), higher_is_better=True),
    "aurc": Metric("AURC", lambda s: (cal.aurc, *s.top)),
    "brier": Metric("Brier", lambda s: (mean, cal.brier_terms(s.probabilities, s.label)), percent=False),
    "nll": Metric("NLL", lambda s: (mean, cal.nll_terms(s.logits, s.label)), percent=False),
    "seconds": Metric("Seconds an image", percent=False, digits=4),
}
TEMPERATURE_NOTE = (
    "† temperature scaling needs labels, which test-time tuning never sees: a reference. It is fitted on a run over "
    "the validation split (TEST.SPLIT val) where there is one, else each half of the test images is scaled by the "
    "temperature fitted on the other half."
)
INTERVAL_NOTE = (
    "Brackets: 95 % bootstrap interval of one run, corrected for bias: redrawn images raise a binned error, so the "
    "mean shift of the redraws is taken off. ±: standard deviation over seeds."
)
DEBIASED_NOTE = (
    "ECE, debiased: less what chance alone adds to each bin's |gap| (a folded normal distribution in place of the "
    "simulation of Kumar, Liang and Ma, 2019); with few images in a bin the plain ECE is too high."
)
