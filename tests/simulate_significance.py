"""Size, power and coverage of the tests and intervals, by simulation with a known truth.

    PROMPTCAL_TRIALS=2000 python tests/simulate_significance.py > tables.md

prints the tables of trainers/report/README.md. With `--demo FOLDER`, the folder of finished demo
runs, it adds designs that resample their images. pytest does not collect this file;
`test_significance.py` runs a few of its designs with few trials.

A design draws the predictions of two methods. The probability p to be right is logistic-normal,
and correlated between the methods. Whether an image is right is drawn with probability p. The
confidence is p + error, or p sharpened by a temperature T. So the true calibration error is known.
"""
from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional import selective as sel
from promptcal.trainers.functional import significance as sig
from promptcal.trainers.functional.intervals import Interval
from promptcal.trainers.functional.significance import compare_calibration
from scipy.optimize import brentq
from scipy.special import expit, ndtr, ndtri

SPREAD = 1.5  # standard deviation of the logit of p
# Between two methods, of the logit of p and of the draw that decides right or wrong.
CORRELATION = 0.8
Array = np.ndarray
Generator = np.random.Generator
Sample = tuple[Array, Array]
Comparison = tuple[list[Sample], list[Sample], list[Array] | None]
Draw = Callable[[int, Generator], Comparison]


@dataclass(frozen=True)
class Model:
    """A method with a known calibration error.

    Attributes:
        accuracy: Mean probability to be right.
        error: Confidence − probability to be right, the same for every image.
        temperature: Confidence is expit(logit(p) / temperature); 1 for a calibrated method.
        spread: Standard deviation of the logit of p.
    """

    accuracy: float = 0.74
    error: float = 0.0
    temperature: float = 1.0
    spread: float = SPREAD


@cache
def logit_mean(accuracy: float, spread: float) -> float:
    """Mean of a normal logit for which the mean probability is `accuracy`."""
    normal = ndtri((np.arange(2000) + 0.5) / 2000)
    return brentq(lambda mean: expit(mean + spread * normal).mean() - accuracy, -20, 20, xtol=1e-14)


def probability(model: Model, normal: Array, margin: float) -> Array:
    """p for standard normal draws, within [margin, 1 − margin] so that p + error is in [0, 1]."""
    mean = logit_mean(model.accuracy, model.spread)
    return margin + (1 - 2 * margin) * expit(mean + model.spread * normal)


def confidence_of(model: Model, p: Array) -> Array:
    if model.temperature == 1:
        return p + model.error
    logit = np.log(p) - np.log1p(-p)
    return expit(logit / model.temperature) + model.error


def correlated(shape: tuple[int, ...], correlation: float, rng: Generator) -> list[Array]:
    """Standard normal draws of two methods."""
    shared = rng.standard_normal(shape)
    draws = []
    for _ in range(2):
        noise = rng.standard_normal(shape)
        draws.append(np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * noise)
    return draws


def predict(confidence: Array, p: Array, luck: Array) -> Sample:
    """Predictions that are right with probability p, decided by standard normal draws."""
    return confidence, (ndtr(luck) < p).astype(float)


def predictions(model: Model, normal: Array, luck: Array, margin: float) -> Sample:
    """Predictions of a model from standard normal draws."""
    p = probability(model, normal, margin)
    return predict(confidence_of(model, p), p, luck)


def largest_error(first: Model, second: Model) -> float:
    return max(abs(first.error), abs(second.error))


def one_set(samples: Sequence[Sample], images: Array | None = None) -> Comparison:
    first, second = samples
    return [first], [second], None if images is None else [images]


def draw_pair(
    first: Model, second: Model, n: int, rng: Generator, correlation: float = CORRELATION,
    same_predictions: bool = False,
) -> tuple[Sample, Sample]:
    """Two methods on the same n images."""
    if same_predictions:
        correlation = 1.0
    margin = largest_error(first, second)
    hardness = correlated((n,), correlation, rng)
    lucky = correlated((n,), correlation, rng)
    return (predictions(first, hardness[0], lucky[0], margin),
            predictions(second, hardness[1], lucky[1], margin))


def pair(first: Model, second: Model, **options: object) -> Draw:
    """One data set of n images."""
    def draw(n: int, rng: Generator) -> Comparison:
        return one_set(draw_pair(first, second, n, rng, **options))
    return draw


def on_bin_edges(n: int, rng: Generator) -> Comparison:
    """Calibrated methods whose confidences are multiples of 0.05."""
    samples = []
    for normal, luck in zip(correlated((n,), 0.8, rng), correlated((n,), 0.8, rng), strict=True):
        p = np.ceil(probability(Model(), normal, 0.0) * 20) / 20
        samples.append(predict(p, p, luck))
    return one_set(samples)


def seeds(
    first: Model, second: Model, n: int, rng: Generator, counts: tuple[int, int] = (3, 3),
    between: float = 0.9,
) -> Comparison:
    """Several seeds of both methods; `between` is the correlation of an image's seeds."""
    margin = largest_error(first, second)
    hardness = correlated((n,), CORRELATION, rng)
    lucky = correlated((n,), CORRELATION, rng)
    methods = []
    for model, count, logit_draw, luck in zip((first, second), counts, hardness, lucky, strict=True):
        noise = rng.standard_normal((2, n, count))
        logit_draws = np.sqrt(between) * logit_draw[:, None] + np.sqrt(1 - between) * noise[0]
        lucks = np.sqrt(between) * luck[:, None] + np.sqrt(1 - between) * noise[1]
        methods.append(predictions(model, logit_draws, lucks, margin))
    return one_set(methods)


def with_seeds(first: Model, second: Model, **options: object) -> Draw:
    return partial(seeds, first, second, **options)


def patients(first: Model, second: Model, per_patient: int, uneven: bool = False) -> Draw:
    """n images of n / per_patient patients; half of the variance is between patients."""
    def draw(n: int, rng: Generator) -> Comparison:
        count = max(2, n // per_patient)
        patient = np.arange(n) % count
        if uneven:
            shares = rng.exponential(size=count)
            patient = rng.choice(count, size=n, p=shares / shares.sum())
        margin = largest_error(first, second)
        logit_patient = correlated((count,), CORRELATION, rng)
        luck_patient = correlated((count,), CORRELATION, rng)
        logit_image = correlated((n,), CORRELATION, rng)
        luck_image = correlated((n,), CORRELATION, rng)
        samples = []
        for method, model in enumerate((first, second)):
            normal = np.sqrt(0.5) * (logit_patient[method][patient] + logit_image[method])
            luck = np.sqrt(0.5) * (luck_patient[method][patient] + luck_image[method])
            samples.append(predictions(model, normal, luck, margin))
        return one_set(samples, patient)
    return draw


def certain(first_accuracy: float, second_accuracy: float) -> Draw:
    """Half of the images have a confidence of exactly 1; they are right with the accuracy given."""
    def draw(n: int, rng: Generator) -> Comparison:
        samples = []
        sure = rng.random(n) < 0.5
        for accuracy, luck, normal in zip(
                (first_accuracy, second_accuracy), correlated((n,), 0.8, rng),
                correlated((n,), 0.8, rng), strict=True):
            p = np.where(sure, accuracy, probability(Model(0.6), normal, 0.0))
            samples.append(predict(np.where(sure, 1.0, p), p, luck))
        return one_set(samples)
    return draw


def two_values(first_error: float, second_error: float) -> Draw:
    """Confidences of two values only: 0.6 and 0.9, moved by the method's error."""
    def draw(n: int, rng: Generator) -> Comparison:
        samples = []
        high = rng.random(n) < 0.4
        for error, luck in zip((first_error, second_error), correlated((n,), 0.8, rng), strict=True):
            p = np.where(high, 0.88, 0.58)
            samples.append(predict(p + error, p, luck))
        return one_set(samples)
    return draw


def opposite_shapes(n: int, rng: Generator) -> Comparison:
    """Too broad against too narrow: errors of ±5 points that cancel, of opposite signs."""
    high = rng.random(n) < 0.5
    p = np.where(high, rng.uniform(0.82, 0.94, n), rng.uniform(0.42, 0.54, n))
    samples = []
    for sign, luck in zip((1, -1), correlated((n,), 0.8, rng), strict=True):
        samples.append(predict(p + sign * np.where(high, 0.05, -0.05), p, luck))
    return one_set(samples)


def several_sets(pairs: Sequence[tuple[Model, Model]], sizes: Sequence[float]) -> Draw:
    """Disjoint data sets of n times the given sizes."""
    def draw(n: int, rng: Generator) -> Comparison:
        first_sets = []
        second_sets = []
        for (first, second), size in zip(pairs, sizes, strict=True):
            sample_first, sample_second = draw_pair(first, second, round(n * size), rng)
            first_sets.append(sample_first)
            second_sets.append(sample_second)
        return first_sets, second_sets, None
    return draw


def same_images(first: Model, second: Model, count: int, correlation: float = 0.7) -> Draw:
    """One set of images under several corruptions: their predictions are correlated."""
    def draw(n: int, rng: Generator) -> Comparison:
        margin = largest_error(first, second)
        shared = [correlated((n,), CORRELATION, rng) for _ in range(2)]
        sets: tuple[list[Sample], list[Sample]] = ([], [])
        for _ in range(count):
            other = [correlated((n,), CORRELATION, rng) for _ in range(2)]
            for method, model in enumerate((first, second)):
                draws = []
                for kind in range(2):
                    draws.append(np.sqrt(correlation) * shared[kind][method]
                                 + np.sqrt(1 - correlation) * other[kind][method])
                sets[method].append(predictions(model, *draws, margin))
        return sets[0], sets[1], [np.arange(n)] * count
    return draw


def under_two_names(first: Model, second: Model) -> Draw:
    """The same images and predictions in two data sets."""
    def draw(n: int, rng: Generator) -> Comparison:
        sample_first, sample_second = draw_pair(first, second, n, rng)
        return [sample_first] * 2, [sample_second] * 2, [np.arange(n)] * 2
    return draw


def demo_sample(folder: Path, method: str) -> Sample:
    run = np.load(folder / method / "predictions.npz")
    return cal.top_class(run["logits"], run["label"])


def resampled(first: Sample, second: Sample, exchanged: bool) -> Draw:
    """Images of two runs with replacement; `exchanged` swaps the methods at random per image."""
    def draw(n: int, rng: Generator) -> Comparison:
        rows = rng.integers(len(first[0]), size=n)
        samples = [[first[0][rows], first[1][rows]], [second[0][rows], second[1][rows]]]
        if exchanged:
            swap = rng.random(n) < 0.5
            for column in range(2):
                new_first = np.where(swap, samples[1][column], samples[0][column])
                new_second = np.where(swap, samples[0][column], samples[1][column])
                samples[0][column] = new_first
                samples[1][column] = new_second
        return one_set([tuple(sample) for sample in samples])
    return draw


def shape_only(n: int, rng: Generator) -> Comparison:
    """T = 1 against T = 0.5, shifted so that mean confidence equals accuracy."""
    sample_first, sample_second = draw_pair(Model(), Model(temperature=0.5), n, rng, same_predictions=True)
    confidence, correct = sample_second
    return one_set([sample_first, (np.clip(confidence - SHAPE_SHIFT, 0, 1), correct)])


def _shape_shift() -> float:
    """The over-confidence of T = 0.5, found on many images."""
    rng = np.random.default_rng(0)
    sample = draw_pair(Model(), Model(temperature=0.5), 400_000, rng, same_predictions=True)
    shift = 0.0
    for _ in range(20):
        shift += float(np.clip(sample[1][0] - shift, 0, 1).mean() - sample[0][0].mean())
    return shift


SHAPE_SHIFT = _shape_shift()
OVER_3 = Model(error=0.03)
MIXED = (
    (Model(0.74, 0.05), Model(0.74, -0.05)),
    (Model(0.6, -0.04), Model(0.8, 0.04)),
    (Model(0.9, 0.02), Model(0.74, 0.02)),
    (Model(0.5, 0.06), Model(0.5, -0.06)),
    (Model(0.85), Model(0.93)),
)
HALF_TO_DOUBLE = (0.5, 0.75, 1, 1.5, 2)

SIZE: dict[str, Draw] = {
    "both calibrated, accuracy 74 %": pair(Model(), Model()),
    "both calibrated, 74 and 93 %": pair(Model(), Model(0.93)),
    "both calibrated, 98 %": pair(Model(0.98), Model(0.98)),
    "both calibrated, confidences on bin edges": on_bin_edges,
    "over 5, under 5, same predictions":
        pair(Model(error=0.05), Model(error=-0.05), same_predictions=True),
    "over 5, under 5, 74 and 93 %": pair(Model(error=0.05), Model(0.93, -0.05)),
    "both over 3, 74 and 86 %": pair(OVER_3, Model(0.86, 0.03)),
    "both over 15, 74 %": pair(Model(error=0.15), Model(error=0.15)),
    "both over 15, 74 and 93 %": pair(Model(error=0.15), Model(0.93, 0.15)),
    "both T = 0.6": pair(Model(temperature=0.6), Model(temperature=0.6)),
    "3 seeds, over 3 and under 3": with_seeds(OVER_3, Model(error=-0.03)),
}
OTHER_SIZE: dict[str, Draw] = {
    "both calibrated, 40 %": pair(Model(0.4), Model(0.4)),
    "both calibrated, 99.5 %": pair(Model(0.995), Model(0.995)),
    "both calibrated, 50 and 99.5 %": pair(Model(0.5), Model(0.995)),
    "over 8, under 8, 60 and 90 %, uncorrelated":
        pair(Model(0.6, 0.08), Model(0.9, -0.08), correlation=0.0),
    "over 1, under 1, 74 %": pair(Model(error=0.01), Model(error=-0.01)),
    "both over 8, 74 %, correlation 0.99":
        pair(Model(error=0.08), Model(error=0.08), correlation=0.99),
    "both over 30, 50 %": pair(Model(0.5, 0.3), Model(0.5, 0.3)),
    "both T = 0.4, 90 %": pair(Model(0.9, temperature=0.4), Model(0.9, temperature=0.4)),
    "narrow p (sd of logit 0.3), over 5, under 5":
        pair(Model(error=0.05, spread=0.3), Model(error=-0.05, spread=0.3)),
    "too broad, too narrow": opposite_shapes,
    "half of the confidences are 1, calibrated": certain(1.0, 1.0),
    "half of the confidences are 1, right in 90 %": certain(0.9, 0.9),
    "two confidences only, over 4, under 4": two_values(0.04, -0.04),
    "two confidences only, calibrated": two_values(0.0, 0.0),
    "3 seeds against 1, calibrated": with_seeds(Model(), Model(), counts=(3, 1)),
    "5 seeds, correlation 0.5, both over 6":
        with_seeds(Model(error=0.06), Model(error=0.06), counts=(5, 5), between=0.5),
    "patients of 5 images, over 5, under 5": patients(Model(error=0.05), Model(error=-0.05), 5),
    "patients of 5 images, calibrated": patients(Model(), Model(), 5),
    "patients of 10 images on average, uneven, both over 10":
        patients(Model(error=0.1), Model(error=0.1), 10, uneven=True),
    "patients of 20 images on average, uneven, over 5, under 5":
        patients(Model(error=0.05), Model(error=-0.05), 20, uneven=True),
}
SIZE_OF_SETS: dict[str, Draw] = {
    "5 sets, mixed signs, n/2 to 2n": several_sets(MIXED, HALF_TO_DOUBLE),
    "10 sets, calibrated, 74 and 93 %": several_sets([(Model(), Model(0.93))] * 10, [1] * 10),
    "4 sets of the same images, over 5, under 5":
        same_images(Model(error=0.05), Model(error=-0.05), 4),
    "4 sets of the same images, calibrated": same_images(Model(), Model(), 4),
    "the same images under two names, over 4, under 4":
        under_two_names(Model(error=0.04), Model(error=-0.04)),
    "2 sets, n and n/10, over 5, under 5, then under 5, over 5": several_sets(
        [(Model(error=0.05), Model(error=-0.05)), (Model(error=-0.05), Model(error=0.05))],
        [1, 0.1]),
    "3 sets of n/2, n, 4n; 0, over 10 against over 10, 0 in the first two": several_sets(
        [(Model(), Model(error=0.1)), (Model(error=0.1), Model()), (Model(), Model())],
        [0.5, 1, 4]),
    "2 sets, opposite order: 0, over 10 and over 10, 0":
        several_sets([(Model(), Model(error=0.1)), (Model(error=0.1), Model())], [1, 1]),
}
POWER: dict[str, Draw] = {
    "over 3, over 8, same predictions": pair(OVER_3, Model(error=0.08), same_predictions=True),
    "over 3, over 8, 74 and 86 %": pair(OVER_3, Model(0.86, 0.08)),
    "calibrated, over 6": pair(Model(), Model(error=0.06)),
    "under 2, over 6": pair(Model(error=-0.02), Model(error=0.06)),
    "shape only: T = 1, T = 0.5, no over-confidence on average": shape_only,
    "T = 1, T = 0.6": pair(Model(), Model(temperature=0.6)),
    "patients of 5 images, over 3, over 8": patients(OVER_3, Model(error=0.08), 5),
}
POWER_OF_SETS: dict[str, Draw] = {
    "5 sets, over 5, over 1 (n each)":
        several_sets([(Model(error=0.05), Model(error=0.01))] * 5, [1] * 5),
    "4 sets of the same images, over 6, over 1":
        same_images(Model(error=0.06), Model(error=0.01), 4),
}


def generator(name: str, n: int) -> Generator:
    """Draws of a design do not depend on which other designs are run."""
    return np.random.default_rng([n, *name.encode()])


def share_different(name: str, draw: Draw, n: int, trials: int) -> float:
    """Share of trials in which the methods are called differently calibrated, p < 0.05."""
    rng = generator(name, n)
    count = 0
    for _ in range(trials):
        first, second, images = draw(n, rng)
        count += compare_calibration(first, second, images).p < 0.05
    return count / trials


@dataclass(frozen=True)
class Coverage:
    """How often 95 % intervals contain the truth, and their mean ends."""

    rms: float
    over: float
    mean_low: float
    mean_high: float


def true_error(model: Model, bins: int = 20) -> tuple[float, float]:
    """√D and over-confidence of a model, on very many images where they are not known."""
    if model.temperature == 1:
        return abs(model.error), model.error
    p = probability(model, np.random.default_rng(0).standard_normal(2_000_000), abs(model.error))
    confidence = confidence_of(model, p)
    index = np.maximum(np.ceil(confidence * bins).astype(int) - 1, 0)
    gap = np.bincount(index, confidence - p, minlength=bins)
    count = np.maximum(np.bincount(index, minlength=bins), 1)
    return float(np.sqrt((gap**2 / count).sum() / len(p))), float((confidence - p).mean())


def coverage(model: Model, n: int, trials: int, seed_count: int = 1) -> Coverage:
    """Coverage of `rms_interval` and `over_confidence`."""
    rng = generator(repr(model), n)
    rms, over = true_error(model)
    rms_covered = 0
    over_covered = 0
    ends = np.zeros(2)
    for _ in range(trials):
        if seed_count == 1:
            sample = draw_pair(model, model, n, rng)[0]
        else:
            sample = seeds(model, model, n, rng, counts=(seed_count, 1))[0][0]
        interval = cal.rms_interval(*sample)
        rms_covered += interval.low <= rms <= interval.high
        ends += (interval.low, interval.high)
        interval = cal.over_confidence(*sample)
        over_covered += interval.low <= over <= interval.high
    low, high = ends / trials
    return Coverage(rms_covered / trials, over_covered / trials, low, high)


SELECTIVE: dict[str, Callable[[Array, Array], Interval]] = {
    "selective accuracy above 0.8": partial(sel.selective_accuracy, threshold=0.8),
    "risk at coverage 50 %": partial(sel.risk_at_coverage, coverage=0.5),
    "risk at coverage 80 %": partial(sel.risk_at_coverage, coverage=0.8),
    "AUROC": sel.auroc_interval,
    "AURC": sel.aurc_interval,
    "accuracy": cal.accuracy_interval,
}


@cache
def selective_coverage(model: Model, n: int, trials: int) -> dict[str, float]:
    """How often each interval contains the truth, of the trials in which there is one."""
    large = draw_pair(model, model, 2_000_000, np.random.default_rng(1))[0]
    truth = {name: measure(*large).value for name, measure in SELECTIVE.items()}
    rng = generator(f"selective {model!r}", n)
    covered: dict[str, list[bool]] = {name: [] for name in truth}
    for _ in range(trials):
        sample = draw_pair(model, model, n, rng)[0]
        for name, measure in SELECTIVE.items():
            interval = measure(*sample)
            if not math.isnan(interval.low):
                covered[name].append(interval.low <= truth[name] <= interval.high)
    shares = {}
    for name, hits in covered.items():
        shares[name] = np.mean(hits) if len(hits) >= trials / 2 else math.nan
    return shares


def trials_for(n: int, trials: int) -> int:
    """Fewer trials where one takes long."""
    if n >= 4000:
        return max(1, trials // 2)
    return trials


def print_table(title: str, sizes: Sequence[int], rows: Mapping[str, Callable[[int], str]]) -> None:
    """A table whose cells are functions of the number of images."""
    print("|", " | ".join([title, *(f"n = {n:,}" for n in sizes)]), "|", flush=True)
    print("|" + "---|" * (1 + len(sizes)))
    for name, cell in rows.items():
        print("|", " | ".join([name, *(cell(n) for n in sizes)]), "|", flush=True)
    print(flush=True)


def print_shares(title: str, designs: dict[str, Draw], sizes: Sequence[int], trials: int) -> None:
    def share(name: str, n: int) -> str:
        return f"{100 * share_different(name, designs[name], n, trials_for(n, trials)):.1f}"

    print_table(title, sizes, {name: partial(share, name) for name in designs})


def print_coverage(trials: int) -> None:
    models = {}
    for accuracy in (0.74, 0.93):
        for error in (0.0, 0.01, 0.03, 0.08, 0.2):
            name = f"{100 * error:g} points, accuracy {100 * accuracy:g} %"
            models[name] = (Model(accuracy, error), 1)
    models |= {
        "0 points, 27 %": (Model(0.27), 1),
        "0 points, 98 %": (Model(0.98), 1),
        "0 points, 99.5 %": (Model(0.995), 1),
        "−3 points, 98 %": (Model(0.98, -0.03), 1),
        "T = 0.5, 74 %": (Model(temperature=0.5), 1),
        "T = 0.6, 90 %": (Model(0.9, temperature=0.6), 1),
        "3 points, 74 %, 3 seeds": (Model(error=0.03), 3),
        "8 points, 74 %, 3 seeds": (Model(error=0.08), 3),
    }

    def cell(name: str, n: int) -> str:
        model, seed_count = models[name]
        result = coverage(model, n, trials_for(n, trials), seed_count)
        ends = f"{100 * result.mean_low:.1f}–{100 * result.mean_high:.1f}"
        return f"{100 * result.rms:.1f} ({ends}), {100 * result.over:.1f}"

    title = "coverage of rms_interval, % (mean ends), of over_confidence, %; true error"
    print_table(title, (100, 300, 1000, 4000), {name: partial(cell, name) for name in models})


def print_selective(trials: int) -> None:
    def cell(model: Model, metric: str, n: int) -> str:
        share = selective_coverage(model, n, trials_for(n, trials))[metric]
        return f"{100 * share:.1f}".replace("nan", "–")

    rows = {}
    for name, model in (("74 %, calibrated", Model()), ("74 %, T = 0.6", Model(temperature=0.6)),
                        ("93 %", Model(0.93))):
        for metric in SELECTIVE:
            rows[f"{metric}; {name}"] = partial(cell, model, metric)
    print_table("coverage of selective metrics, %", (300, 1000, 4000), rows)


def print_smallest(trials: int) -> None:
    def points(sd: float, n: int) -> str:
        return f"{100 * sig.smallest_difference(n, sd):.1f}"

    def power(kind: str, n: int) -> str:
        return f"{100 * smallest_power(kind, n, trials_for(n, trials)):.0f}"

    print_table("smallest difference of over-confidence with about 80 % power, points",
                (300, 1000, 4000), {
        "calibrated against over-confident (sd of v 0.83)": partial(points, sig.SD_NEAR_ZERO),
        "both over-confident, unlike (sd of u 0.37)": partial(points, sig.SD_UNLIKE),
        "both over-confident, alike (sd of u 0.15)": partial(points, sig.SD_ALIKE),
    })
    print_table("%", (300, 1000, 4000), {
        f"power at the smallest difference, {kind}": partial(power, kind)
        for kind in ("near zero", "same side")
    })


def smallest_power(kind: str, n: int, trials: int) -> float:
    """Power at the difference that `smallest_difference` gives for the standard deviation drawn.

    `kind`: "near zero" for a calibrated and an over-confident method, "same side" for two
    over-confident ones.
    """
    rng = generator(f"smallest {kind}", n)
    base = 0.0
    if kind == "same side":
        base = 0.08

    # Larger errors change the distribution of p, so the standard deviation is taken at the
    # difference itself.
    difference = 0.05
    for _ in range(3):
        first, second = draw_pair(Model(error=base), Model(error=base + difference), 20_000, rng)
        pilot = compare_calibration([first], [second])
        sd = pilot.sd_difference
        if kind == "near zero":
            sd = pilot.sd_sum
        difference = sig.smallest_difference(n, sd)
    draw = pair(Model(error=base), Model(error=base + difference))
    return share_different(f"smallest {kind}", draw, n, trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, help="folder of finished demo runs")
    folder = parser.parse_args().demo
    trials = int(os.environ.get("PROMPTCAL_TRIALS", "2000"))
    started = time.process_time()
    size = dict(SIZE)
    power = dict(POWER)
    if folder is not None:
        tpt = demo_sample(folder, "TPT")
        soc = demo_sample(folder, "SoC")
        size["demo: TPT and SoC exchanged at random per image"] = resampled(tpt, soc, True)
        power["demo resampled: TPT, SoC"] = resampled(tpt, soc, False)
        power["demo resampled: TPT, zero-shot"] = resampled(tpt, demo_sample(folder, "ZeroShot"), False)

    print_shares("size, %", size, (100, 300, 1000, 4000), trials)
    print_shares("size, other designs, %", OTHER_SIZE, (100, 300, 1000, 4000), trials)
    print_shares("size, several sets, %", SIZE_OF_SETS, (200, 1000), trials // 2)
    print_shares("power, %", power, (300, 1000, 4000), trials // 2)
    print_shares("power, several sets, %", POWER_OF_SETS, (200, 1000), trials // 2)
    print_smallest(trials // 2)
    print_coverage(trials)
    print_selective(trials // 2)
    print(f"{trials:,} trials (half at n = 4,000, for several sets and for power); "
          f"{(time.process_time() - started) / 60:.1f} minutes of processor time.")


if __name__ == "__main__":
    main()
