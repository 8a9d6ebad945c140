"""Conformal sets: coverage on exchangeable data, scores and thresholds by hand, bad input, the
report's table."""

import numpy as np
import pytest
from promptcal.tools.report import main as report
from promptcal.trainers.functional.conformal import KINDS, conformal, halves, scores, threshold
from scipy import stats

from made_runs import make_run


def exchangeable(n: int, classes: int, seed: int, sharpness: float = 2.0):
    """Logits (n, K) and labels (n,) of an over-confident model."""
    rng = np.random.default_rng(seed)
    logits = sharpness * rng.normal(size=(n, classes))
    labels = (logits + rng.gumbel(size=(n, classes))).argmax(axis=1)
    return 3 * logits, labels


@pytest.mark.parametrize("alpha", [0.1, 0.3])
@pytest.mark.parametrize("kind", KINDS)
def test_coverage_holds(kind, alpha):
    coverages = []
    for seed in range(150):
        sets = conformal(*exchangeable(400, 8, seed), kind, alpha, seed)
        coverages.append(sets.coverage)
    error = np.std(coverages) / np.sqrt(len(coverages))
    assert 1 - alpha - 4 * error < np.mean(coverages) < 1 - alpha + 1 / 201 + 4 * error


def test_intervals_of_coverage_and_size():
    """For this threshold: on many new images both lie in the interval in 95 % of the draws."""
    sets = conformal(*exchangeable(1000, 8, 0), "LAC")
    exact = stats.binomtest(round(500 * sets.coverage), 500).proportion_ci(method="wilson")
    interval = sets.coverage_interval
    assert interval.value == sets.coverage
    assert [interval.low, interval.high] == pytest.approx([exact.low, exact.high])
    assert sets.size_interval.low < sets.size == sets.size_interval.value < sets.size_interval.high
    sizes = []
    widths = []
    for seed in range(60):
        other = conformal(*exchangeable(1000, 8, seed), "LAC")
        sizes.append(other.size)
        widths.append(other.size_interval.high - other.size_interval.low)
    assert 0.01 < np.mean(widths) < 0.5 * np.mean(sizes)
    tiny = conformal(np.zeros((2, 3)), np.zeros(2, dtype=int), "LAC")
    assert (tiny.size_interval.low, tiny.size_interval.high) == (0, 3)


def test_scores_thresholds_and_halves_by_hand():
    p = np.array([[0.5, 0.2, 0.3]])
    u = np.array([0.4])
    aps = scores(p, u, "APS")
    np.testing.assert_allclose(scores(p, u, "LAC"), [[0.5, 0.8, 0.7]])
    np.testing.assert_allclose(aps, [[0.4 * 0.5, 0.8 + 0.4 * 0.2, 0.5 + 0.4 * 0.3]])
    np.testing.assert_allclose(scores(p, u, "RAPS") - aps, [[0, 0.002, 0.001]], atol=1e-12)
    values = np.arange(1, 20) / 20  # 19 scores: the 18th of 20 places for α = 0.1
    assert threshold(values, 0.1) == 0.9 and threshold(values, 0.05) == 0.95
    assert threshold(values[:8], 0.1) == np.inf  # nine images are needed
    labels = np.repeat(np.arange(5), [10, 11, 3, 1, 40])
    first_half = halves(labels, 0)
    assert np.array_equal(first_half, halves(labels, 0))
    assert not np.array_equal(first_half, halves(labels, 1))
    for k, n in enumerate(np.bincount(labels)):
        assert abs(first_half[labels == k].sum() - n / 2) <= 0.5


def test_sizes_of_sets():
    """A sharper model has smaller sets; with one class they hold it."""
    blunt = conformal(*exchangeable(2000, 10, 0, sharpness=1.0), "LAC")
    sharp = conformal(*exchangeable(2000, 10, 0, sharpness=4.0), "LAC")
    assert sharp.size < blunt.size
    one_class = conformal(np.zeros((6, 1)), np.zeros(6, dtype=int), "APS")
    assert (one_class.coverage, one_class.size) == (1, 1)


@pytest.mark.parametrize(("n", "arguments", "message"), [
    (6, ("XYZ",), "kind"), (6, ("LAC", 1.5), "alpha"), (1, ("LAC",), "Two samples"),
])
def test_bad_input(n, arguments, message):
    with pytest.raises(ValueError, match=message):
        conformal(np.zeros((n, 2)), np.zeros(n, dtype=int), *arguments)


def test_the_report_has_the_sets(tmp_path, capsys):
    for trainer in ("ZeroShot", "TPT"):
        make_run(tmp_path, trainer=trainer)
    report([str(tmp_path), "--no-figures", "--posthoc"])
    out = capsys.readouterr().out
    assert "Conformal sets with nominal coverage 90 %" in out
    for column in ("LAC coverage", "APS size", "RAPS size"):
        assert column in out
