"""Calibration metrics against their definitions and scikit-learn; intervals by formula; bad
input."""
import doctest
import math
import warnings
from collections.abc import Iterable
from importlib import import_module

import numpy as np
import pytest
import torch
from promptcal.trainers import functional
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.arrays import log_softmax
from promptcal.trainers.functional.posthoc import fit_temperature
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, f1_score, log_loss, roc_auc_score

from common import PROJECT
from made_runs import over_confident
from simulate_significance import Model, draw_pair

OF_CONFIDENCE = (cal.ece, cal.ace, cal.mce, cal.auroc, cal.aurc, cal.signed_error, cal.accuracy)


@pytest.fixture(scope="module")
def sample():
    return over_confident()


def error_of(parts: Iterable[np.ndarray], confidence: np.ndarray, correct: np.ndarray) -> float:
    """The definition, given the samples of each bin."""
    total = 0.0
    for part in parts:
        if len(part) > 0:
            total += len(part) * abs(correct[part].mean() - confidence[part].mean())
    return total / len(correct)


def slow_ece(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    parts = []
    for b in range(bins):
        in_bin = (b / bins < confidence) & (confidence <= (b + 1) / bins)
        if b == 0:
            in_bin |= confidence == 0
        parts.append(np.flatnonzero(in_bin))
    return error_of(parts, confidence, correct)


def slow_ace(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    order = confidence.argsort(kind="stable")
    return error_of(np.array_split(order, bins), confidence, correct)


@pytest.mark.parametrize("name", [
    "aggregation", "arrays", "binned", "calibration", "classification", "conformal", "intervals",
    "objectives", "posthoc", "scoring", "selective", "significance", "theory",
])
def test_examples_in_docstrings(name):
    result = doctest.testmod(import_module(f"promptcal.trainers.functional.{name}"))
    assert result.attempted > 0 and result.failed == 0


def test_every_metric_has_an_example():
    for name in functional.PUBLIC:
        assert ">>>" in getattr(functional, name).__doc__, name


@pytest.mark.parametrize("bins", [1, 10, 15, 20, 30])
def test_binned_errors_equal_the_definition_and_scikit_learn(sample, bins):
    """scikit-learn's bins are closed on the other side; no value here lies on an edge."""
    _, _, confidence, correct = sample
    ece = cal.ece(confidence, correct, bins)
    ace = cal.ace(confidence, correct, bins)
    assert ece == pytest.approx(slow_ece(confidence, correct, bins), abs=1e-12)
    assert ace == pytest.approx(slow_ace(confidence, correct, bins), abs=1e-12)
    edges = np.linspace(0, 1, bins + 1)
    assert not np.isin(confidence, edges).any()
    accuracy, mean = calibration_curve(correct, confidence, n_bins=bins)
    counts, _ = np.histogram(confidence, edges)
    expected = np.abs(accuracy - mean) @ counts[counts > 0] / len(confidence)
    assert ece == pytest.approx(expected, abs=1e-12)


def test_other_metrics_equal_scikit_learn(sample):
    logits, labels, confidence, correct = sample
    p = np.exp(log_softmax(logits))
    for values in (confidence, confidence.round(1)):  # without and with ties
        assert cal.auroc(values, correct) == pytest.approx(roc_auc_score(correct, values))
    assert cal.nll(logits, labels) == pytest.approx(log_loss(labels, p, labels=range(7)))
    brier = 0.0
    classwise_ece = 0.0
    for k in range(7):
        brier += brier_score_loss(labels == k, p[:, k])
        classwise_ece += slow_ece(p[:, k], labels == k, 20) / 7
    assert cal.brier(p, labels) == pytest.approx(brier)
    assert cal.classwise_ece(p, labels) == pytest.approx(classwise_ece)


def test_metrics_by_hand():
    # In (0, 0.5]: 0.2 wrong, 0.5 right, |0.5 - 0.35| = 0.15.
    # In (0.5, 1]: 0.6 and 1.0 both right, |1 - 0.8| = 0.2.
    confidence = [0.2, 0.5, 0.6, 1.0]
    correct = [0, 1, 1, 1]
    assert cal.ece(confidence, correct, bins=2) == pytest.approx(0.175)
    assert cal.mce(confidence, correct, bins=2) == pytest.approx(0.2)
    assert cal.signed_error(confidence, correct) == pytest.approx(0.575 - 0.75)
    assert cal.accuracy(confidence, correct) == 0.75
    fewer_than_bins = cal.ace([0.9, 0.6, 0.7], [1, 0, 1], bins=20)
    assert fewer_than_bins == pytest.approx((0.1 + 0.6 + 0.3) / 3)
    assert cal.nll([[2000.0, 0.0]], [1]) == pytest.approx(2000)  # finite where softmax saturates
    assert math.isnan(cal.auroc([0.5, 0.9], [1, 1]))
    # Most confident first: right, wrong, right, so the risks are 0, 1/2 and 1/3. A tie counts half
    # an error in either order.
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
    tensors = (torch.tensor(confidence), torch.tensor(correct))
    shuffled = np.random.default_rng(1).permutation(len(confidence))
    for metric in OF_CONFIDENCE:
        value = metric(confidence, correct)
        assert metric(*tensors) == value == metric(confidence.tolist(), correct.tolist())
        if metric is not cal.ace:  # whose bins depend on the order of ties
            of_shuffled = metric(confidence[shuffled], correct[shuffled])
            assert of_shuffled == pytest.approx(value, abs=1e-12)
    assert 0 <= cal.ece(tensors[0].bfloat16(), tensors[1]) <= 1


def test_the_squared_error_is_its_formula_and_the_bins_gap_without_noise():
    confidence, correct = draw_pair(Model(error=0.1), Model(), 90, np.random.default_rng(1))[0]
    expected = 0.0
    for b in range(20):
        gap = (confidence - correct)[np.ceil(confidence * 20) == b + 1]
        if len(gap) > 1:
            expected += len(gap) / 90 * (gap.mean() ** 2 - gap.var(ddof=1) / len(gap))
    assert cal.squared_calibration_error(confidence, correct) == pytest.approx(expected)
    confidence = np.tile([0.9, 0.62], 500)
    squared = (0.01 + 0.38**2) / 2
    assert cal.squared_calibration_error(confidence, np.ones(1000)) == pytest.approx(squared)
    assert cal.rms_calibration_error(confidence, np.ones(1000)) == pytest.approx(np.sqrt(squared))
    assert cal.squared_calibration_error([0.5], [1]) == 0  # one sample has no variance


def test_ends_of_the_rms_interval_are_where_d_is_196_standard_deviations_away():
    """One bin, all gaps known: κ = 4 σ̄² / n and H = 2 (σ² / n)², up to the correction for n."""
    n = 1000
    correct = np.arange(n) % 10 < 7
    interval = cal.rms_interval(np.full(n, 0.8), correct)
    squared = cal.squared_calibration_error(np.full(n, 0.8), correct)
    variance = 0.21 * n / (n - 1)
    slope = 4 * variance / n
    for end in (interval.low, interval.high):
        distance = abs(squared - end**2) / math.sqrt(slope * end**2 + 2 * (variance / n) ** 2)
        assert distance == pytest.approx(1.96, rel=0.01)
    assert interval.value == cal.rms_calibration_error(np.full(n, 0.8), correct)
    wider = cal.rms_interval(np.full(n, 0.8), correct, level=0.99)
    assert wider.low < interval.low < interval.high < wider.high
    for level in (0, 1, 95):
        with pytest.raises(ValueError, match="level"):
            cal.rms_interval([0.5], [1], level=level)


def test_the_rms_interval_of_few_images_certain_runs_and_seeds():
    assert cal.rms_interval([0.5], [1]) == cal.Interval(0, 0, 1)
    perfect = cal.rms_interval(np.ones(200), np.ones(200))
    assert perfect.low == perfect.value == 0 and 0 < perfect.high < 0.2
    wrong = cal.rms_interval(np.ones(200), np.zeros(200))
    assert wrong.value == wrong.high == 1 and 0.9 < wrong.low < 1
    confidence, correct = draw_pair(Model(error=0.1), Model(), 300, np.random.default_rng(1))[0]
    alone = cal.rms_interval(confidence, correct)
    copies = cal.rms_interval(np.stack([confidence] * 3, axis=1), np.stack([correct] * 3, axis=1))
    assert copies.value == pytest.approx(alone.value)
    assert [copies.low, copies.high] == pytest.approx([alone.low, alone.high])
    for seed in range(300):  # where D is far below 0, no value fits it: the interval is not empty
        sample = draw_pair(Model(), Model(), 60, np.random.default_rng(seed))[0]
        interval = cal.rms_interval(*sample)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1 and interval.high > 0.05


def test_over_confidence_is_the_t_interval_with_four_more_images():
    confidence, correct = draw_pair(Model(error=0.1), Model(), 150, np.random.default_rng(1))[0]
    interval = cal.over_confidence(confidence, correct)
    mean = confidence.mean()
    gaps = np.r_[confidence - correct, mean - 1, mean - 1, mean, mean]
    expected = stats.ttest_1samp(gaps, 0).confidence_interval()
    assert [interval.low, interval.high] == pytest.approx(list(expected), rel=1e-3)
    assert interval.value == pytest.approx(cal.signed_error(confidence, correct))
    no_errors = cal.over_confidence(np.ones(50), np.ones(50))
    assert no_errors.low < no_errors.value == 0 < no_errors.high < 0.15
    for single in (cal.over_confidence([1.0], [0]), cal.over_confidence([0.4], [1])):
        assert -1 <= single.low <= single.value <= single.high <= 1
    seeds = cal.over_confidence(np.stack([confidence] * 3, axis=1), np.stack([correct] * 3, axis=1))
    assert [seeds.low, seeds.high] == pytest.approx([interval.low, interval.high])


def test_clusters_widen_the_intervals_of_over_confidence_and_accuracy():
    confidence, correct = draw_pair(Model(error=0.1), Model(), 150, np.random.default_rng(1))[0]
    twice = (np.repeat(confidence, 2), np.repeat(correct, 2))
    patient = np.repeat(np.arange(150), 2)
    for function in (cal.over_confidence, cal.accuracy_interval):
        alone = function(confidence, correct)
        clustered = function(*twice, patient)
        plain = function(*twice)
        assert clustered.high - clustered.low == pytest.approx(alone.high - alone.low, rel=0.03)
        assert plain.high - plain.low < 0.8 * (alone.high - alone.low)
        names = [f"patient {number}" for number in patient]
        assert function(*twice, names) == clustered
        with pytest.raises(ValueError, match="one entry per image"):
            function(confidence, correct, patient)
    interval = cal.accuracy_interval(confidence, correct)
    exact = stats.binomtest(int(correct.sum()), 150).proportion_ci(method="wilson")
    assert [interval.low, interval.high] == pytest.approx([exact.low, exact.high])


def test_smooth_ece_by_closed_forms():
    one_place = cal.smooth_ece(np.full(10, 0.9), np.arange(10) < 6)
    assert one_place == pytest.approx(0.3)  # |gap| at any width
    assert cal.smooth_ece([1.0], [0]) == pytest.approx(1)
    assert cal.smooth_ece([1.0, 0.0], [1, 0]) == 0
    # Gaps of −0.3 and +0.3 at 0.4 and 0.6 cancel where smoothed. The integral is
    # 0.3 erf(0.2 / (2 √2 σ)).
    sigma = cal.smooth_ece(np.repeat([0.4, 0.6], 10), np.r_[np.arange(10) < 7, np.arange(10) < 3])
    assert sigma == pytest.approx(0.3 * math.erf(0.2 / (2 * math.sqrt(2) * sigma)), abs=1e-4)


def test_smooth_ece_is_its_authors():
    relplot = pytest.importorskip("relplot")
    rng = np.random.default_rng(2)
    models = {200: Model(), 1000: Model(error=0.05), 2000: Model(0.86, 0.2), 3000: Model(0.93, -0.1)}
    for n, model in models.items():
        sample = draw_pair(model, model, n, rng)[0]
        # Their search stops at steps of 1/1024, their mesh has 200 points.
        assert cal.smooth_ece(*sample) == pytest.approx(relplot.smECE(*sample), abs=1e-3)


@pytest.mark.parametrize(("confidence", "correct"), [
    ([], []), ([np.nan], [1]), ([np.inf], [1]), ([-0.01], [1]), ([1.01], [1]), ([0.5], [2]),
    ([0.5], [np.nan]), ([0.5, 0.6], [1]), ([[0.5]], [[1]]), (0.5, 1), (["x"], [1]),
])
def test_bad_samples_are_refused(confidence, correct):
    for metric in (*OF_CONFIDENCE, cal.reliability, lambda *arrays: cal.selective(*arrays, [0.5])):
        with pytest.raises(ValueError, match=r"confidence|correct"):
            metric(confidence, correct)


@pytest.mark.parametrize(("scores", "labels"), [
    ([[0.5, 0.5]], [2]), ([[0.5, 0.5]], [-1]), ([[0.5, 0.5]], [0.0]), ([[0.5, 0.5]], [0, 1]),
    ([[np.nan, 0.5]], [0]), ([0.5, 0.5], [0, 0]), (np.zeros((0, 2)), np.zeros(0, int)),
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


@pytest.mark.parametrize("name", sorted(set(functional.PUBLIC) - {"sals", "top_class"}))
def test_every_metric_takes_logits_or_probabilities(sample, name):
    """Positional arguments as each metric needs them, or logits or probabilities of all classes by
    keyword."""
    logits, labels, confidence, correct = sample
    p = np.exp(log_softmax(logits))
    metric = getattr(functional, name)
    if name in ("classwise_ece", "brier"):
        arguments = (p, labels)
    elif name == "nll":
        arguments = (logits, labels)
    elif name in ("balanced_accuracy", "macro_f1"):
        arguments = (logits.argmax(axis=1), labels)
    else:
        arguments = (confidence, correct)
    expected = metric(*arguments)
    assert repr(metric(logits=logits, labels=labels)) == repr(expected)
    of_probabilities = metric(probabilities=torch.tensor(p), labels=labels)
    assert np.allclose(numbers(of_probabilities), numbers(expected))
    for incomplete in (
        {}, {"logits": logits}, {"labels": labels},
        {"logits": logits, "probabilities": p, "labels": labels},
    ):
        with pytest.raises(ValueError, match=r"give |must"):
            metric(**incomplete)
    with pytest.raises((TypeError, ValueError)):
        metric(*arguments, bin=3)


def numbers(value) -> np.ndarray:
    if isinstance(value, cal.Reliability):
        return np.nan_to_num(np.concatenate([value.count, value.gap]))
    if hasattr(value, "low"):
        return np.array([value.low, value.value, value.high])
    return np.array(value)


def test_metrics_of_unequal_classes_equal_scikit_learn():
    rng = np.random.default_rng(0)
    for classes, share in ((3, 0.9), (9, 0.5), (40, 0.2)):
        labels = np.where(rng.random(300) < share, 0, rng.integers(classes, size=300))
        predictions = np.where(rng.random(300) < 0.6, labels, rng.integers(classes, size=300))
        predictions[predictions == 2] = 1  # a class that is never predicted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns about classes without labels
            balanced = balanced_accuracy_score(labels, predictions)
            macro = f1_score(labels, predictions, average="macro")
        assert functional.balanced_accuracy(predictions, labels) == pytest.approx(balanced)
        assert functional.macro_f1(predictions, labels) == pytest.approx(macro)


def test_the_readme_lists_every_metric():
    text = (PROJECT / "trainers" / "functional" / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| metric |") : text.index("`calibration.selective`")]
    assert [name for name in functional.PUBLIC if f"`{name}" not in table] == []
    assert set(functional.PUBLIC) <= set(dir(functional))
