"""Metrics of selective prediction: definitions, ties, intervals, differences, coverage."""
import math
import os

import numpy as np
import pytest
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional import selective as sel
from scipy import stats

import simulate_significance as sim

TRIALS = int(os.environ.get("PROMPTCAL_TRIALS", "150"))
SLACK = 3 * math.sqrt(0.05 * 0.95 / TRIALS)
INFLUENCES = {
    "selective accuracy": lambda *arrays: sel.selective_accuracy_influence(*arrays, 0.7),
    "risk": lambda *arrays: sel.risk_influence(*arrays, 0.6),
    "aurc": sel.aurc_influence,
    "auroc": sel.auroc_influence,
}


@pytest.fixture
def sample() -> tuple[np.ndarray, np.ndarray]:
    return sim.draw_pair(sim.Model(), sim.Model(), 400, np.random.default_rng(0))[0]


def test_values_are_those_of_the_metrics(sample):
    correct = sample[1]
    error = 1 - correct
    # Without ties, with ties, all tied.
    for confidence in (sample[0], sample[0].round(1), np.full(400, 0.7)):
        arrays = (confidence, correct)
        assert sel.aurc_influence(*arrays).value == pytest.approx(cal.aurc(*arrays))
        assert sel.auroc_influence(*arrays).value == pytest.approx(cal.auroc(*arrays))
        accuracy = cal.selective(confidence, correct, [0.6])[0][0]
        assert sel.selective_accuracy(*arrays, 0.6).value == pytest.approx(accuracy)
        assert sel.risk_at_coverage(*arrays, 1.0).value == pytest.approx(error.mean())
    order = np.argsort(-sample[0])
    assert sel.risk_at_coverage(*sample, 0.301).value == pytest.approx(error[order[:121]].mean())
    all_tied = sel.risk_at_coverage(np.full(400, 0.7), correct, 0.25)
    assert all_tied.value == pytest.approx(error.mean())


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", INFLUENCES)
def test_influences_have_mean_zero_and_the_variance_of_a_jackknife(sample, name, ties):
    confidence, correct = sample
    if ties:
        confidence = confidence.round(1)
    measure = INFLUENCES[name]
    result = measure(confidence, correct)
    assert result.values.mean() == pytest.approx(0, abs=1e-9)
    if name == "risk":
        return  # a quantile has no jackknife
    without = []
    for left_out in range(400):
        rest = np.arange(400) != left_out
        without.append(measure(confidence[rest], correct[rest]).value)
    jackknife = math.sqrt(399 / 400 * ((np.array(without) - np.mean(without)) ** 2).sum())
    assert result.standard_error() == pytest.approx(jackknife, rel=0.05)


def test_selective_accuracy_has_wilsons_interval_and_counts_seeds_of_an_image_once(sample):
    interval = sel.selective_accuracy(*sample, 0.8)
    above = sample[0] > 0.8
    test = stats.binomtest(int(sample[1][above].sum()), int(above.sum()))
    exact = test.proportion_ci(method="wilson")
    assert [interval.low, interval.high] == pytest.approx([exact.low, exact.high])
    copies = [np.stack([values] * 3, axis=1) for values in sample]
    repeated = sel.selective_accuracy(*copies, 0.8)
    assert [repeated.low, repeated.high] == pytest.approx([interval.low, interval.high], rel=1e-3)
    assert math.isnan(sel.selective_accuracy(*sample, 1.0).value)
    all_right = sel.selective_accuracy([0.9] * 30, [1] * 30, 0.5)
    assert all_right.low == pytest.approx(30 / (30 + 1.96**2), rel=1e-3)


def test_delongs_variance(sample):
    """By all pairs of a right and a wrong image."""
    confidence = sample[0].round(2)
    correct = sample[1]
    right = confidence[correct == 1]
    wrong = confidence[correct == 0]
    pairs = (right[:, None] > wrong).astype(float) + 0.5 * (right[:, None] == wrong)
    variance = pairs.mean(axis=1).var(ddof=1) / len(right)
    variance += pairs.mean(axis=0).var(ddof=1) / len(wrong)
    standard_error = sel.auroc_influence(confidence, correct).standard_error()
    assert standard_error == pytest.approx(math.sqrt(variance), rel=0.01)
    interval = sel.auroc_interval(confidence, correct)
    assert interval.value == pytest.approx(pairs.mean())
    assert 0.5 < interval.low < interval.value < interval.high < 1


def test_what_has_no_interval(sample):
    assert math.isnan(sel.auroc_interval([0.5, 0.9], [1, 1]).low)
    separated = sel.auroc_interval([0.9, 0.8, 0.3, 0.2], [1, 1, 0, 0])
    assert separated.value == separated.high == 1 and 0 < separated.low < 0.5
    few_errors = sel.aurc_interval(np.linspace(0, 1, 100), np.arange(100) > 20)
    assert few_errors.value > 0 and math.isnan(few_errors.low)
    perfect = sel.risk_at_coverage(sample[0], np.ones(400), 0.5)
    assert perfect.value == perfect.low == 0 and 0 < perfect.high < 0.03
    for coverage in (0, 1.1, -0.5):
        with pytest.raises(ValueError, match="coverage"):
            sel.risk_at_coverage(*sample, coverage)


@pytest.mark.parametrize("name", INFLUENCES)
def test_differences_of_equal_methods_are_found_in_5_percent(name):
    """Two methods of the same accuracy on the same images, and the same method twice."""
    rng = np.random.default_rng(1)
    measure = INFLUENCES[name]
    alarms = 0
    for _ in range(TRIALS):
        first, second = sim.draw_pair(sim.Model(), sim.Model(), 500, rng)
        alarms += sel.metric_difference(measure(*first), measure(*second)).significant
    assert alarms / TRIALS <= 0.05 + SLACK
    same = sel.metric_difference(measure(*first), measure(*first))
    assert (same.value, same.p) == (0, 1)
    halves = np.arange(500) // 250
    clustered = sel.metric_difference(measure(*first), measure(*second), images=halves)
    assert clustered.p >= 0.5  # two clusters show nothing
    with pytest.raises(ValueError, match="same images"):
        sel.metric_difference(measure(*first), sel.Influence(0.5, np.zeros(3)))


def test_differences_are_found():
    rng = np.random.default_rng(1)
    first = sim.draw_pair(sim.Model(), sim.Model(), 2000, rng)[0]
    # A confidence with noise says less about which images are right.
    blurred = np.clip(first[0] + rng.normal(0, 0.3, 2000), 0, 1)
    for name in ("aurc", "auroc", "risk"):
        measure = INFLUENCES[name]
        assert sel.metric_difference(measure(*first), measure(blurred, first[1])).p < 0.01


@pytest.mark.parametrize("model", [sim.Model(), sim.Model(temperature=0.6)])
def test_intervals_cover_the_truth(model):
    for name, share in sim.selective_coverage(model, 1000, TRIALS).items():
        assert share >= 0.93 - SLACK, name
