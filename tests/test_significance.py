"""Intervals and comparisons of calibration, by simulation with a known truth (table in trainers/report/README.md)."""
from __future__ import annotations

import math
import os
from functools import partial

import numpy as np
import pytest
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.significance import corrected, difference_of, holm, paired_bootstrap

TRIALS = int(os.environ.get("PROMPTCAL_TRIALS", "60"))
SLACK = 3 * math.sqrt(0.05 * 0.95 / TRIALS)  # three standard deviations of a share of 5 % in this many trials
BROAD, MIDDLE, SHARP = (3.0, 1.2), (6.0, 1.1), (10.0, 1.0)  # beta distributions; mean accuracy 71, 85 and 91 %
Model = tuple[float, tuple[float, float]]  # calibration error, distribution of the probability to be right


def draw(n: int, rng: np.random.Generator, *chosen: Model) -> list[tuple[np.ndarray, np.ndarray]]:
    """Confidence and correctness of models on the same n images. The confidence always exceeds the probability to be
    right by the model's error. Models of one distribution are right on the same images, as methods that rescale are."""
    hardness, margin = rng.random(n), max(abs(error) for error, _ in chosen)
    unit = {shape: rng.beta(*shape, n) for _, shape in chosen}
    p = {shape: margin + (1 - 2 * margin) * values for shape, values in unit.items()}  # keeps confidence in 0..1
    return [(p[shape] + error, (hardness < p[shape]).astype(float)) for error, shape in chosen]


def coverage(n: int, error: float, metric=cal.rms_interval, repeats: int = 200) -> float:
    """How often an interval of a model's calibration error contains the true one."""
    rng, covered = np.random.default_rng([n, round(1000 * error)]), 0
    for _ in range(TRIALS):
        found = metric(*draw(n, rng, (error, BROAD))[0], repeats=repeats)
        covered += found.low <= error <= found.high
    return covered / TRIALS


def alarms(n: int, *chosen: Model, repeats: int = 200) -> float:
    """How often any pair of models is told apart, corrected by Holm's method."""
    rng, found = np.random.default_rng(n), 0
    for _ in range(TRIALS):
        samples = [cal.bins_and_gaps(*model) for model in draw(n, rng, *chosen)]
        index, gap = (np.stack(arrays, axis=1) for arrays in zip(*samples, strict=True))
        drawn = cal.resamples(partial(cal.squared_errors, bins=20), index, gap, repeats=repeats)
        pairs = [(a, b) for a in range(len(chosen)) for b in range(a)]
        found += any(one.significant for one in corrected([difference_of(drawn[:, a] - drawn[:, b]) for a, b in pairs]))
    return found / TRIALS


@pytest.mark.slow
@pytest.mark.parametrize(("n", "error"), [(200, 0), (200, 0.08), (1000, 0), (1000, 0.03), (1000, 0.2), (4000, 0.01)])
def test_the_interval_covers_the_true_error(n: int, error: float):
    assert coverage(n, error) >= 0.95 - SLACK


@pytest.mark.slow
def test_an_interval_of_ece_does_not_cover_the_true_one():
    assert coverage(1000, 0.01, partial(cal.bootstrap, cal.ece, centred=True), repeats=50) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 1000])
def test_equally_calibrated_models_are_not_told_apart(n: int):
    assert alarms(n, (0.0, BROAD), (0.0, SHARP)) <= 0.05 + SLACK
    assert alarms(n, (0.05, BROAD), (-0.05, BROAD)) <= 0.05 + SLACK  # over- against under-confident
    assert alarms(n, (0.03, BROAD), (0.03, MIDDLE)) <= 0.05 + SLACK


@pytest.mark.slow
def test_several_pairs_raise_no_more_alarms_than_one():
    assert alarms(300, (0.05, BROAD), (-0.05, BROAD), (0.05, SHARP), (-0.05, SHARP), repeats=480) <= 0.05 + SLACK


@pytest.mark.slow
def test_models_that_differ_are_told_apart():
    assert alarms(1000, (0.03, BROAD), (0.08, BROAD)) > 0.8


def test_the_squared_error_is_unbiased_and_the_bins_gap_without_noise():
    rng = np.random.default_rng(0)
    found = [cal.squared_calibration_error(*draw(300, rng, (0.0, BROAD))[0]) for _ in range(400)]
    assert abs(np.mean(found)) < 3 * np.std(found) / 20
    confidence = np.tile([0.9, 0.62], 500)
    assert cal.squared_calibration_error(confidence, np.ones(1000)) == pytest.approx((0.01 + 0.38**2) / 2)
    assert cal.rms_calibration_error(confidence, np.ones(1000)) == pytest.approx(np.sqrt((0.01 + 0.38**2) / 2))
    assert cal.squared_calibration_error([0.5], [1]) == 0  # one sample has no variance


def test_the_squared_error_is_its_formula_for_several_models_at_once():
    rng = np.random.default_rng(1)
    both = draw(90, rng, (0.1, BROAD), (0.1, SHARP))
    expected = []
    for confidence, correct in both:
        bins = [(confidence - correct)[np.ceil(confidence * 20) == b + 1] for b in range(20)]
        expected.append(sum(len(g) / 90 * (g.mean() ** 2 - g.var(ddof=1) / len(g)) for g in bins if len(g) > 1))
    index, gap = (np.stack(arrays, axis=1) for arrays in zip(*(cal.bins_and_gaps(*one) for one in both), strict=True))
    assert cal.squared_errors(index, gap, 20) == pytest.approx(expected)
    assert cal.squared_calibration_error(*both[0]) == pytest.approx(expected[0])
    found = cal.rms_interval(*both[0], repeats=100)
    assert 0 <= found.low <= found.value == cal.rms_calibration_error(*both[0]) <= found.high <= 1


def test_p_is_the_level_at_which_the_interval_touches_zero():
    """Resamples around 3: two of 99 are below zero, so the interval of level 1 − 2 · 3/100 does not contain it."""
    resampled = np.r_[np.full(2, -1.0), np.full(97, 3 + 8 / 97)]
    found = difference_of(np.r_[3, resampled])
    assert found.value == 3 and found.p == pytest.approx(0.06) and not found.significant
    assert difference_of(np.ones(1001)).p == pytest.approx(2 / 1001)  # never 0
    assert difference_of(np.zeros(101)).p == 1
    first = np.array([0.5, 0.7, 0.9]), np.array([1, 0, 1])
    assert paired_bootstrap(cal.squared_calibration_error, first, first, repeats=20).p == 1


def test_holm():
    """The k-th smallest of m is multiplied by m − k + 1, and is never below an earlier one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


def test_smooth_ece_by_closed_forms():
    assert cal.smooth_ece(np.full(10, 0.9), np.arange(10) < 6) == pytest.approx(0.3)  # one place: |gap| at any width
    assert cal.smooth_ece([1.0], [0]) == pytest.approx(1) and cal.smooth_ece([1.0, 0.0], [1, 0]) == 0
    # Gaps of −0.3 and +0.3 at 0.4 and 0.6 cancel where smoothed: the integral is 0.3 erf(0.2 / (2 √2 σ)).
    found = cal.smooth_ece(np.repeat([0.4, 0.6], 10), np.r_[np.arange(10) < 7, np.arange(10) < 3])
    assert found == pytest.approx(0.3 * math.erf(0.2 / (2 * math.sqrt(2) * found)), abs=1e-4)


def test_smooth_ece_is_its_authors():
    relplot = pytest.importorskip("relplot")
    rng = np.random.default_rng(2)
    for n, error, shape in ((200, 0.0, BROAD), (1000, 0.05, BROAD), (3000, -0.1, SHARP), (2000, 0.2, MIDDLE)):
        confidence, correct = draw(n, rng, (error, shape))[0]
        # Their search stops at steps of 1/1024, their mesh has 200 points.
        assert cal.smooth_ece(confidence, correct) == pytest.approx(relplot.smECE(confidence, correct), abs=1e-3)
