"""Metrics, class statistics and mistakes of one run, from its predictions alone."""
from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np

from ...datasets.utils.errors import DataError
from ..functional import calibration as cal
from ..functional.arrays import Array, log_softmax
from ..functional.conformal import KINDS, Sets, conformal
from ..functional.intervals import Interval
from ..functional.posthoc import cross_fit_temperature, fit_temperature, fixed_temperature
from ..registry import method_info
from ..runs.record import RunRecord
from .load import FinishedRun
from .metrics import (
    METRICS,
    TEMPERATURE,
    Samples,
    Top,
    metrics_of_scaled,
    posthoc_metrics,
    without_interval,
)
from .predictions import Predictions

MISTAKES_PER_RUN = 12  # that a page lists
MOST_FAILURES = 0.01  # share of flagged or skipped images up to which a run is ranked
FEW_CLUSTERS = 0.99  # clusters per image below which images count as grouped
SET_KINDS = ("LAC",)  # conformal sets of a report; all kinds with `posthoc`
ALPHA = 0.1  # share of conformal sets that may miss the truth


@dataclass(frozen=True)
class ClassRow:
    """Statistics of one class, in fractions.

    Attributes:
        name: Name of the class.
        n: Number of its images.
        accuracy: Share of these images that is predicted correctly.
        zero_shot_accuracy: The same before adaptation; NaN if it is not known.
        confidence: Mean confidence of these images.
        confused_with: The class that they are most often mistaken for; "" if all are right.
    """

    name: str
    n: int
    accuracy: float
    zero_shot_accuracy: float
    confidence: float
    confused_with: str

    @property
    def gap(self) -> float:
        """Over-confidence: mean confidence minus accuracy."""
        return self.confidence - self.accuracy


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction with the top three classes before and after adaptation.

    Attributes:
        index: Position of the image in its split.
        filename: Path of the image below its data set's folder; "" if it is not known.
        image: Identity of the image; b"" if it is not known.
        truth: The true class.
        before: (name, probability) of the top three classes of zero-shot CLIP.
        after: The same after adaptation.
    """

    index: int
    filename: str
    image: bytes
    truth: str
    before: tuple[tuple[str, float], ...]
    after: tuple[tuple[str, float], ...]


@dataclass(frozen=True, eq=False)
class Measured:
    """A run and its metrics, in fractions. Each object can be the key of a dictionary.

    Attributes:
        run: The run.
        record: Record of the run, or of its zero-shot part if that is used as a run.
        bins: Number of bins of ECE, ACE and MCE.
        tuned: The run's top classes.
        zero_shot: The top classes before adaptation.
        metrics: Metrics by name.
        zero_shot_metrics: The same before adaptation; empty if the run has no zero-shot logits.
        sets: Evaluation of conformal sets by kind.
        zero_shot_sets: The same before adaptation.
        classes: Statistics by class.
        mistakes: The most confident ones.
        image: Identity of each image, (N,) of 16 bytes; None if it is not known.
        cluster: Identity of each image's cluster, (N,) of 16 bytes; None if it is not known. Images
            of one cluster, such as those of a patient, are not independent.
        index: Position of each image in its split, (N,).
        flagged: Number of images that fell back to zero-shot.
        skipped: Number of images that could not be read.
        temperature_from: Number of validation images that temperature scaling was fitted on; 0 if
            it was cross-fitted on test images.
        from_tuned_run: Whether this is the zero-shot part of a tuned run.
        has_logits: False for a run that was exported without logits.
        has_unequal_classes: Whether the classes have unequal numbers of images.
        notes: What a report says about the validation images that were used, or refused.
    """

    run: FinishedRun
    record: RunRecord
    bins: int
    tuned: Top
    zero_shot: Top
    metrics: dict[str, Interval]
    zero_shot_metrics: dict[str, Interval]
    sets: dict[str, Sets]
    zero_shot_sets: dict[str, Sets]
    classes: list[ClassRow]
    mistakes: list[Mistake]
    image: Array | None
    cluster: Array | None
    index: Array
    flagged: int
    skipped: int
    temperature_from: int = 0
    from_tuned_run: bool = False
    has_logits: bool = True
    has_unequal_classes: bool = False
    notes: tuple[str, ...] = ()

    def value(self, metric: str) -> float:
        """A metric by its name, in fractions, without its interval."""
        return float(self.metrics[metric].value)

    @property
    def method(self) -> str:
        """Name of the method: zero-shot for the zero-shot part of a tuned run."""
        return str(self.record.method["trainer"])

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def n(self) -> int:
        return len(self.tuned.confidence)

    @property
    def is_ranked(self) -> bool:
        """Whether it may be called best: not if too many images failed."""
        failures = max(self.flagged / self.n, self.skipped / (self.n + self.skipped))
        return failures <= MOST_FAILURES


@dataclass(frozen=True)
class MeasuredLogits:
    """What is measured of the logits of a run, before or after adaptation.

    Attributes:
        top: The top classes.
        metrics: Metrics by name, in fractions.
        sets: Evaluation of conformal sets by kind.
    """

    top: Top
    metrics: dict[str, Interval]
    sets: dict[str, Sets]


@dataclass
class MeasuringCache:
    """What many runs of a report share: zero-shot predictions and lists of images.

    All methods on the same images have the same zero-shot predictions, which are measured once.
    Equal arrays of identities are kept once.

    Attributes:
        zero_shot: What was measured before adaptation, by a hash of logits, labels and options.
        arrays: Arrays by a hash of their content.
    """

    zero_shot: dict[str, MeasuredLogits] = field(default_factory=dict)
    arrays: dict[bytes, Array] = field(default_factory=dict)

    @overload
    def shared(self, array: Array) -> Array: ...

    @overload
    def shared(self, array: None) -> None: ...

    def shared(self, array: Array | None) -> Array | None:
        """The same array, or an equal one that was seen before."""
        if array is None:
            return None
        digest = hashlib.blake2b(array.tobytes(), digest_size=16).digest()
        return self.arrays.setdefault(digest, array)


@dataclass(frozen=True)
class MeasureOptions:
    """What to measure.

    Attributes:
        bins: Number of bins of ECE, ACE and MCE.
        posthoc: Whether scaling without labels is measured.
        sets: Whether conformal sets are made.
        details: Whether classes and mistakes are listed.
    """

    bins: int = cal.BINS
    posthoc: bool = False
    sets: bool = True
    details: bool = True


@dataclass(frozen=True)
class LabelledLogits:
    """Logits (N, K) of validation images with their labels (N,)."""

    logits: Array
    label: Array


def measure_run(
    run: FinishedRun, data: Predictions, options: MeasureOptions,
    validation: Predictions | None = None, cache: MeasuringCache | None = None,
) -> Measured:
    """All metrics of a run.

    Args:
        run: The run.
        data: Predictions of the run.
        options: What to measure.
        validation: Predictions of the same method on validation images that are no test images.
            Temperature scaling is fitted on them; without them it is cross-fitted.
        cache: Shared by all runs of a report.
    """
    cache = cache or MeasuringCache()
    clusters = grouped_clusters(data.cluster)
    if not data.has_logits:  # scaling and sets need the logits of all classes
        options = replace(options, posthoc=False, sets=False)
    if validation is not None and not (data.has_logits and validation.has_logits):
        validation = None
    held_out = None
    if validation is not None:
        held_out = LabelledLogits(validation.logits, validation.label)
    tuned = measure_logits(data.logits, data, options, held_out, clusters)
    zero_shot = measure_zero_shot(data, options, validation, cache, clusters)
    metrics = tuned.metrics
    zero_shot_metrics = dict(zero_shot.metrics)  # a copy: other runs use those of the cache
    zero_shot_sets = zero_shot.sets
    if options.posthoc:
        add_posthoc(run, data, options, metrics, zero_shot_metrics)
    add_costs(run, metrics)

    classes: list[ClassRow] = []
    mistakes: list[Mistake] = []
    if options.details:
        classes = class_rows(data, run.classnames)
        mistakes = worst_mistakes(data, run.classnames)
    if not data.has_logits:  # nothing is known below the top class
        mistakes = [
            replace(mistake, before=mistake.before[:1], after=mistake.after[:1])
            for mistake in mistakes
        ]
    if not run.has_zero_shot:
        # Its `zero_shot_logits` are a copy of its own logits, which is no comparison.
        zero_shot_metrics = {}
        zero_shot_sets = {}
        metrics.pop("ece_sals", None)
        metrics.pop("ece_cor", None)
        classes = [replace(row, zero_shot_accuracy=math.nan) for row in classes]
        mistakes = [replace(mistake, before=()) for mistake in mistakes]
    ordered = {name: metrics[name] for name in METRICS if name in metrics}
    return Measured(
        run=run,
        record=run.record,
        bins=options.bins,
        tuned=tuned.top,
        zero_shot=zero_shot.top,
        metrics=ordered,
        zero_shot_metrics=zero_shot_metrics,
        sets=tuned.sets,
        zero_shot_sets=zero_shot_sets,
        classes=classes,
        mistakes=mistakes,
        image=cache.shared(data.image),
        cluster=cache.shared(data.cluster),
        index=cache.shared(data.index),
        flagged=int(data.flagged.astype(bool).sum()),
        skipped=max(0, int(run.record.data["n"]) - len(data.label)),
        temperature_from=0 if validation is None else len(validation.label),
        has_logits=data.has_logits,
        has_unequal_classes=has_unequal_classes(data.label),
    )


def has_unequal_classes(label: Array) -> bool:
    """Whether the classes that occur have unequal numbers of images.

    A difference of one image, as between the classes of a part of a balanced set, does not count.
    """
    counts = np.bincount(label)
    present = counts[counts > 0]
    return int(present.max() - present.min()) > 1


def grouped_clusters(cluster: Array | None) -> Array | None:
    """The clusters of images that are not independent, such as those of patients; otherwise None.

    A few copies of pictures make no groups: their effect on an interval is not visible.
    """
    if cluster is None or len(np.unique(cluster)) >= FEW_CLUSTERS * len(cluster):
        return None
    return cluster


def measure_zero_shot(
    data: Predictions, options: MeasureOptions, validation: Predictions | None,
    cache: MeasuringCache, clusters: Array | None,
) -> MeasuredLogits:
    """Measures the predictions before adaptation, once for all runs that have the same ones.

    Args:
        validation: Predictions on validation images, for temperature scaling; or None.
        clusters: Groups of images that are not independent, (N,), or None.
    """
    # The key covers all that the result depends on.
    digest = hashlib.sha256(data.zero_shot_logits.tobytes())
    digest.update(data.label.tobytes())
    digest.update(repr(options).encode())
    if clusters is not None:
        digest.update(clusters.tobytes())
    held_out = None
    if validation is not None:
        held_out = LabelledLogits(validation.zero_shot_logits, validation.label)
        digest.update(validation.zero_shot_logits.tobytes())
        digest.update(validation.label.tobytes())
    key = digest.hexdigest()
    if key not in cache.zero_shot:
        cache.zero_shot[key] = measure_logits(
            data.zero_shot_logits, data, options, held_out, clusters)
    return cache.zero_shot[key]


def measure_logits(
    logits: Array, data: Predictions, options: MeasureOptions,
    held_out: LabelledLogits | None, clusters: Array | None,
) -> MeasuredLogits:
    """Top classes, metrics and conformal sets of a run's logits before or after adaptation.

    Args:
        logits: Logits before or after adaptation, (N, K).
        held_out: Validation images for temperature scaling; None to cross-fit it.
        clusters: Groups of images that are not independent, (N,), or None.
    """
    samples = make_samples(logits, data, options.bins, held_out, clusters)
    metrics = {}
    for name in METRICS:
        value = measure_metric(name, samples)
        if value is not None:
            metrics[name] = value
    return MeasuredLogits(samples.top, metrics, measure_sets(logits, data.label, options))


def make_samples(
    logits: Array, data: Predictions, bins: int, held_out: LabelledLogits | None = None,
    clusters: Array | None = None,
) -> Samples:
    """Prepares what the metrics are computed from, for the logits before or after adaptation.

    Args:
        logits: Before or after adaptation, (N, K).
        held_out: Validation images for temperature scaling; None to cross-fit it.
        clusters: Groups of images that are not independent, (N,), or None.
    """
    label = data.label
    with_temperature = None
    if held_out is not None:
        temperature = fit_temperature(held_out.logits, held_out.label)
        with_temperature = Top(*cal.top_class(logits / temperature, label))
    elif len(label) > 1 and data.has_logits:
        scaled, _ = cross_fit_temperature(logits, label)
        with_temperature = Top(*cal.top_class(scaled, label))
    return Samples(
        logits=logits,
        probabilities=np.exp(log_softmax(logits)),
        label=label,
        top=Top(*cal.top_class(logits, label)),
        with_sals=Top(*cal.top_class(cal.sals(logits, data.zero_shot_logits), label)),
        with_temperature=with_temperature,
        bins=bins,
        clusters=clusters,
        has_logits=data.has_logits,
    )


def measure_metric(name: str, samples: Samples) -> Interval | None:
    """One metric; None if the run lacks what it needs.

    Raises:
        DataError: A plugin's function failed.
    """
    try:
        return METRICS[name].measure(samples)
    except ValueError:  # bad input, which the message explains
        raise
    except Exception as error:
        raise DataError(f"metric '{name}' failed: {type(error).__name__}: {error}") from error


def measure_sets(logits: Array, label: Array, options: MeasureOptions) -> dict[str, Sets]:
    """Evaluation of conformal sets by kind; {} if they are not wanted, or for a single image.

    Args:
        logits: (N, K).
        label: True class of each image, (N,).
    """
    if not options.sets or len(label) < 2:
        return {}
    kinds = KINDS if options.posthoc else SET_KINDS
    return {kind: conformal(logits, label, kind, ALPHA) for kind in kinds}


def add_posthoc(
    run: FinishedRun, data: Predictions, options: MeasureOptions, metrics: dict[str, Interval],
    zero_shot_metrics: dict[str, Interval],
) -> None:
    """Adds the metrics after scaling without labels, of a run and of its zero-shot part.

    Args:
        run: The run, whose backbone has the fixed temperature.
        metrics: Metrics of the run, to which they are added in place.
        zero_shot_metrics: Metrics of its zero-shot part, also extended in place.
    """
    backbone = str(run.results.get("backbone"))
    temperature = fixed_temperature(backbone, str(run.results.get("architecture") or ""))
    adapts = method_info(run.trainer).tuned
    metrics |= posthoc_metrics(data, temperature, adapts, options.bins)
    logits = data.zero_shot_logits
    # Before adaptation CoTS has τ = 1 and the zero-shot confidence replaces itself: neither changes
    # the logits.
    scaled = {"ece_cots": logits, "ece_cor": logits, "ece_fixed": logits / temperature}
    zero_shot_metrics |= metrics_of_scaled(scaled, data.label, options.bins)


def add_costs(run: FinishedRun, metrics: dict[str, Interval]) -> None:
    """Adds what a run has cost: seconds per image, and the peak memory of a GPU in GB.

    Args:
        run: The run. Costs that its results do not state are left out.
        metrics: Metrics of the run, to which they are added in place.
    """
    seconds = run.results.get("adapt_seconds_per_image") or run.results.get("seconds_per_image")
    if seconds is not None:
        metrics["seconds"] = without_interval(float(seconds))
    peak_bytes = run.results.get("peak_device_bytes")
    if peak_bytes is not None:
        metrics["device_memory"] = without_interval(float(peak_bytes) / 1e9)


def measured_alike(runs: Sequence[Measured], metric: str) -> list[Measured]:
    """The runs of a cell whose metric was measured in the same way.

    Temperature scaling may have been fitted on validation images for some seeds and cross-fitted on
    the test images for others. Then those with validation images count.
    """
    if metric == TEMPERATURE:
        with_validation = [measured for measured in runs if measured.temperature_from > 0]
        if with_validation:
            return with_validation
    return list(runs)


def mean_over_seeds(runs: Sequence[Measured], metric: str) -> float:
    """The mean of a metric over the runs of a cell that measured it alike, in fractions."""
    values = [measured.value(metric) for measured in measured_alike(runs, metric)]
    return float(np.mean(values))


def class_rows(data: Predictions, names: list[str]) -> list[ClassRow]:
    """Statistics of each class that occurs; the highest over-confidence first."""
    predicted = data.logits.argmax(axis=1)
    zero_shot_predicted = data.zero_shot_logits.argmax(axis=1)
    confidence = np.exp(log_softmax(data.logits).max(axis=1))
    # For each class the number of its images, and sums over them, (K,)
    counts = np.bincount(data.label, minlength=len(names))
    right = np.bincount(data.label, predicted == data.label, minlength=len(names))
    zero_shot_right = np.bincount(
        data.label, zero_shot_predicted == data.label, minlength=len(names))
    total_confidence = np.bincount(data.label, confidence, minlength=len(names))
    confused = most_confused(predicted, data.label, len(names))
    rows = []
    for k, name in enumerate(names):
        if counts[k] == 0:
            continue
        confused_with = ""
        if k in confused:
            confused_with = names[confused[k]]
        rows.append(ClassRow(
            name=name,
            n=int(counts[k]),
            accuracy=float(right[k] / counts[k]),
            zero_shot_accuracy=float(zero_shot_right[k] / counts[k]),
            confidence=float(total_confidence[k] / counts[k]),
            confused_with=confused_with,
        ))
    return sorted(rows, key=lambda row: -row.gap)


def most_confused(predicted: Array, label: Array, classes: int) -> dict[int, int]:
    """For each class that has mistakes the class that it is most often mistaken for.

    Args:
        predicted: Predicted class of each image, (N,).
        label: True class of each image, (N,).
    """
    wrong = predicted != label
    # The pair (truth, prediction) as one number, so that equal pairs can be counted.
    pairs, counts = np.unique(label[wrong] * classes + predicted[wrong], return_counts=True)
    confused: dict[int, int] = {}
    highest: dict[int, int] = {}  # count of the pair in `confused`
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        truth, mistaken_for = divmod(pair, classes)
        if count > highest.get(truth, 0):
            highest[truth] = count
            confused[truth] = mistaken_for
    return confused


def worst_mistakes(
    data: Predictions, names: list[str], count: int = MISTAKES_PER_RUN,
) -> list[Mistake]:
    """The wrong predictions of highest confidence; equal ones in the order of the split."""
    log_p = log_softmax(data.logits)
    confidence = np.exp(log_p.max(axis=1))
    wrong = np.flatnonzero(log_p.argmax(axis=1) != data.label)
    # `lexsort` sorts by its last key first.
    chosen = wrong[np.lexsort((data.index[wrong], -confidence[wrong]))][:count]
    if len(chosen) == 0:
        return []
    before = top_three(log_softmax(data.zero_shot_logits[chosen]), names)
    after = top_three(log_p[chosen], names)
    mistakes = []
    for number, position in enumerate(chosen.tolist()):
        filename = ""
        if data.filename is not None:
            filename = str(data.filename[position])
        image = b""
        if data.image is not None:
            image = data.image[position : position + 1].tobytes()
        mistakes.append(Mistake(
            index=int(data.index[position]),
            filename=filename,
            image=image,
            truth=names[data.label[position]],
            before=before[number],
            after=after[number],
        ))
    return mistakes


def top_three(log_p: Array, names: list[str]) -> list[tuple[tuple[str, float], ...]]:
    """The names of the top three classes of each image with their probabilities.

    Args:
        log_p: Log-probabilities, (M, K).
    """
    order = np.argsort(-log_p, axis=1, kind="stable")
    tops = []
    for row, classes in zip(log_p, order[:, :3], strict=True):
        tops.append(tuple((names[k], float(np.exp(row[k]))) for k in classes))
    return tops
