"""What label-free post-hoc scaling makes of a run, and what the run took: metrics beside those of `measure`."""
from __future__ import annotations

import numpy as np

from ..functional import calibration as cal
from ..functional.arrays import Array
from ..functional.calibration import Interval
from ..functional.posthoc import cots, ecots, fixed_temperature, replaced_confidence
from ..registry import method_info
from .reading import Predictions, Run

POSTHOC = ("ece_cots", "ece_ecots", "accuracy_ecots", "ece_cor", "ece_fixed")
POSTHOC_NOTE = (
    "CoTS and E-CoTS rescale each image by its own strong views; they are given for runs that kept what these need "
    "(none before version 0.2, and none of methods that see the plain view alone). A method that leaves the prompt as "
    "it is has τ = 1 everywhere. E-CoTS weighs the plain view by the classes' mean cosine a: where class features are "
    "nearly orthogonal, as those of small models are, the strong views decide alone and accuracy falls. Fixed "
    "temperature: 1.16 for transformers, 1.15 for ResNets, as in C-TPT's code."
)


def rescaled_metrics(run: Run, data: Predictions, bins: int) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """The metrics of a run's predictions, and of its zero-shot ones, after each kind of scaling."""
    own = _metrics(rescaled(data, run.backbone, adapts=method_info(run.trainer).tuned), data.label, bins)
    seconds = run.results.get("adapt_seconds_per_image") or run.results.get("seconds_per_image")
    if isinstance(seconds, int | float):
        own["seconds"] = _alone(float(seconds))
    if not run.has_zero_shot:
        del own["ece_cor"]
        return own, {}
    logits = data.zero_shot_logits
    before = {"ece_cots": logits, "ece_cor": logits, "ece_fixed": logits / fixed_temperature(run.backbone)}
    return own, _metrics(before, data.label, bins)


def rescaled(data: Predictions, backbone: str, adapts: bool) -> dict[str, Array]:
    """The logits that each kind of scaling gives, by the name of its ECE."""
    logits = data.logits
    found = {
        "ece_cor": replaced_confidence(logits, data.zero_shot_logits),
        "ece_fixed": logits / fixed_temperature(backbone),
    }
    tau = data.cots_tau if adapts else np.ones(len(logits))
    if tau is not None:
        tau = np.where(data.flagged | ~np.isfinite(tau), 1, tau)  # what fell back to zero-shot is not rescaled
        found["ece_cots"] = cots(logits, tau)
    if data.cots_tau is not None and data.strong_log_p is not None and data.text is not None:
        kept = ~np.isfinite(data.strong_log_p).all(axis=1, keepdims=True) | data.flagged[:, None]
        found["ece_ecots"] = np.where(kept, logits, ecots(logits, tau, np.nan_to_num(data.strong_log_p), data.text))
    return found


def _metrics(scaled: dict[str, Array], label: Array, bins: int) -> dict[str, Interval]:
    metrics = {}
    for name, logits in scaled.items():
        confidence, correct = cal.top_class(logits, label)
        metrics[name] = _alone(cal.ece(confidence, correct, bins))
        if name == "ece_ecots":  # the only one that changes predicted classes
            metrics["accuracy_ecots"] = _alone(cal.accuracy(confidence, correct))
    return metrics


def _alone(value: float) -> Interval:
    return Interval(value, np.nan, np.nan)
