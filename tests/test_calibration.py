"""Calibration metrics against their definitions and scikit-learn; intervals; bad input."""
from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from made_runs import over_confident
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.posthoc import fit_temperature
from promptcal.trainers.functional.significance import paired_bootstrap
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

OF_CONFIDENCE = (cal.ece, cal.ace, cal.mce, cal.auroc, cal.aurc, cal.signed_error, cal.accuracy)


@pytest.fixture(scope="module")
def sample():
    return over_confident()


def error_of(parts: Iterable[np.ndarray], confidence: np.ndarray, correct: np.ndarray) -> float:
    """The definition, given the samples of each bin."""
    gaps = [len(part) * abs(correct[part].mean() - confidence[part].mean()) for part in parts if len(part)]
    return sum(gaps) / len(correct)


def slow_ece(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    edges = [(b / bins if b else -1, (b + 1) / bins) for b in range(bins)]  # 0 belongs to the first
    parts = [np.flatnonzero((low < confidence) & (confidence <= high)) for low, high in edges]
    return error_of(parts, confidence, correct)


def slow_ace(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    return error_of(np.array_split(confidence.argsort(kind="stable"), bins), confidence, correct)


@pytest.mark.parametrize("bins", [1, 10, 15, 20, 30])
def test_binned_errors_equal_the_definition_and_scikit_learn(sample, bins):
    """scikit-learn's bins are closed on the other side, which makes no difference where no value lies on an edge."""
    _, _, confidence, correct = sample
    assert cal.ece(confidence, correct, bins) == pytest.approx(slow_ece(confidence, correct, bins), abs=1e-12)
    assert cal.ace(confidence, correct, bins) == pytest.approx(slow_ace(confidence, correct, bins), abs=1e-12)
    edges = np.linspace(0, 1, bins + 1)
    assert not np.isin(confidence, edges).any()
    accuracy, mean = calibration_curve(correct, confidence, n_bins=bins)
    counts, _ = np.histogram(confidence, edges)
    expected = np.abs(accuracy - mean) @ counts[counts > 0] / len(confidence)
    assert cal.ece(confidence, correct, bins) == pytest.approx(expected, abs=1e-12)


def test_other_metrics_equal_scikit_learn(sample):
    logits, labels, confidence, correct = sample
    p = np.exp(cal.log_softmax(logits))
    for values in (confidence, confidence.round(1)):  # without and with ties
        assert cal.auroc(values, correct) == pytest.approx(roc_auc_score(correct, values))
    assert cal.nll(logits, labels) == pytest.approx(log_loss(labels, p, labels=range(7)))
    assert cal.brier(p, labels) == pytest.approx(sum(brier_score_loss(labels == k, p[:, k]) for k in range(7)))
    classwise = np.mean([slow_ece(p[:, k], labels == k, 20) for k in range(7)])
    assert cal.classwise_ece(p, labels) == pytest.approx(classwise)


def test_metrics_by_hand():
    # (0, 0.5]: 0.2 wrong, 0.5 right -> |0.5 - 0.35| = 0.15; (0.5, 1]: 0.6, 1.0 both right -> |1 - 0.8| = 0.2
    confidence, correct = [0.2, 0.5, 0.6, 1.0], [0, 1, 1, 1]
    assert cal.ece(confidence, correct, bins=2) == pytest.approx(0.175)
    assert cal.mce(confidence, correct, bins=2) == pytest.approx(0.2)
    assert cal.signed_error(confidence, correct) == pytest.approx(0.575 - 0.75)
    assert cal.accuracy(confidence, correct) == 0.75
    assert cal.ace([0.9, 0.6, 0.7], [1, 0, 1], bins=20) == pytest.approx((0.1 + 0.6 + 0.3) / 3)  # fewer than bins
    assert cal.nll([[2000.0, 0.0]], [1]) == pytest.approx(2000)  # finite where softmax saturates
    assert math.isnan(cal.auroc([0.5, 0.9], [1, 1]))
    # most confident first: right, wrong, right -> risks 0, 1/2, 1/3; a tie counts half an error in either order
    assert cal.aurc([0.9, 0.8, 0.7], [1, 0, 1]) == pytest.approx((0 + 1 / 2 + 1 / 3) / 3)
    assert cal.aurc([0.8, 0.8], [0, 1]) == cal.aurc([0.8, 0.8], [1, 0]) == 0.5
    accuracy, coverage = cal.selective([0.3, 0.6, 0.9], [0, 0, 1], [0.0, 0.3, 0.6, 0.9])
    np.testing.assert_allclose(accuracy, [1 / 3, 1 / 2, 1, np.nan])
    np.testing.assert_allclose(coverage, [1, 2 / 3, 1 / 3, 0])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_value_on_an_edge_belongs_to_the_bin_below(dtype):
    edges = np.arange(1, 21) / 20
    assert cal.reliability(edges.astype(dtype), np.ones(20)).count.tolist() == [1] * 20
    above = np.nextafter(edges[:-1].astype(dtype), dtype(1))
    assert cal.reliability(above, np.ones(19)).count.tolist() == [0] + [1] * 19
    table = cal.reliability(np.array([0, 1], dtype), [0, 1])
    assert table.count[0] == table.count[-1] == 1 and table.share.sum() == 1
    assert np.isnan(table.accuracy[1]) and table.gap[1] == 0


def test_input_type_and_order_do_not_matter(sample):
    _, _, confidence, correct = sample
    confidence = confidence.round(2)  # many ties, as where tuning saturates
    tensors = torch.tensor(confidence), torch.tensor(correct)
    shuffled = np.random.default_rng(1).permutation(len(confidence))
    for metric in OF_CONFIDENCE:
        value = metric(confidence, correct)
        assert metric(*tensors) == value == metric(confidence.tolist(), correct.tolist())
        if metric is not cal.ace:  # whose bins depend on the order of ties
            assert metric(confidence[shuffled], correct[shuffled]) == pytest.approx(value, abs=1e-12)
    assert 0 <= cal.ece(tensors[0].bfloat16(), tensors[1]) <= 1


def test_bootstrap_contains_the_value_and_is_seeded(sample):
    _, _, confidence, correct = sample
    first = cal.bootstrap(cal.ece, confidence, correct, repeats=200)
    assert first.value == cal.ece(confidence, correct) and first.low < first.value < first.high
    assert first == cal.bootstrap(cal.ece, confidence, correct, repeats=200)
    assert first != cal.bootstrap(cal.ece, confidence, correct, repeats=200, seed=1)
    flat = np.arange(400) % 4 != 0  # 75 %
    interval = cal.bootstrap(cal.accuracy, np.full(400, 0.75), flat, repeats=2000)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * math.sqrt(0.75 * 0.25 / 400), rel=0.1)  # binomial


def test_bootstrap_of_several_values(sample):
    _, _, confidence, correct = sample
    thresholds = [0.0, 0.5, 1.0]
    both = cal.bootstrap(lambda c, y: cal.selective(c, y, thresholds), confidence, correct, repeats=100)
    np.testing.assert_array_equal(both.value, cal.selective(confidence, correct, thresholds))
    alone = cal.bootstrap(lambda c, y: cal.selective(c, y, [0.5])[0][0], confidence, correct, repeats=100)
    assert (alone.low, alone.high) == (both.low[0, 1], both.high[0, 1]) and alone.low < alone.value < alone.high
    assert np.isnan([both.value[0, 2], both.low[0, 2], both.high[0, 2]]).all()  # no confidence exceeds 1
    assert both.low[1, 2] == both.high[1, 2] == 0


def test_paired_bootstrap():
    """One method is five points more confident on every image: the intervals overlap, the difference excludes zero."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 0.9, 400)
    correct = rng.random(400) < confidence
    first, second = (confidence, correct), (confidence + 0.05, correct)
    own, other = (cal.bootstrap(cal.signed_error, *pair, repeats=300) for pair in (first, second))
    assert other.low < own.high
    moved = paired_bootstrap(cal.signed_error, first, second, repeats=300)
    assert moved.significant and [moved.value, moved.low, moved.high] == pytest.approx([0.05] * 3)
    assert not paired_bootstrap(cal.ece, first, first, repeats=50).significant


@pytest.mark.parametrize(("confidence", "correct"), [
    ([], []), ([np.nan], [1]), ([np.inf], [1]), ([-0.01], [1]), ([1.01], [1]), ([0.5], [2]), ([0.5], [np.nan]),
    ([0.5, 0.6], [1]), ([[0.5]], [[1]]), (0.5, 1), (["x"], [1]),
])
def test_bad_samples_are_refused(confidence, correct):
    for metric in (*OF_CONFIDENCE, cal.reliability, lambda *arrays: cal.selective(*arrays, [0.5])):
        with pytest.raises(ValueError, match=r"confidence|correct"):
            metric(confidence, correct)


@pytest.mark.parametrize(("scores", "labels"), [
    ([[0.5, 0.5]], [2]), ([[0.5, 0.5]], [-1]), ([[0.5, 0.5]], [0.0]), ([[0.5, 0.5]], [0, 1]), ([[np.nan, 0.5]], [0]),
    ([0.5, 0.5], [0, 0]), (np.zeros((0, 2)), np.zeros(0, int)),
])
def test_bad_scores_are_refused(scores, labels):
    for metric in (cal.nll, cal.brier, cal.classwise_ece, fit_temperature, cal.top_class):
        with pytest.raises(ValueError, match=r"labels|logits|probabilities"):
            metric(scores, labels)


def test_other_bad_arguments_are_refused():
    for bins in (0, -1, 2.5, True, None):
        for metric in (cal.ece, cal.ace, cal.mce):
            with pytest.raises(ValueError, match="bins"):
                metric([0.5], [1], bins)
    for row in ([0.9, 0.9], [1.2, -0.2]):  # not a distribution
        for metric in (cal.brier, cal.classwise_ece):
            with pytest.raises(ValueError, match="probabilities"):
                metric([row], [0])
    for kwargs in ({"repeats": 0}, {"level": 1.0}):
        with pytest.raises(ValueError, match="repeats"):
            cal.bootstrap(cal.ece, [0.5], [1], **kwargs)
    with pytest.raises(ValueError, match="length"):
        cal.bootstrap(cal.ece, [0.5], [1, 0])
    with pytest.raises(ValueError, match="same arrays"):
        paired_bootstrap(cal.ece, ([0.5], [1]), ([0.5],))
