"""Comparisons of two methods: formulas, clusters, degenerate cases; size and power simulated."""
import math
import os
from itertools import combinations

import numpy as np
import pytest
from promptcal.trainers.functional import binned, intervals, significance
from promptcal.trainers.functional import calibration as cal
from promptcal.trainers.functional.significance import (
    compare_calibration,
    holm,
    mcnemar,
    shaffer,
    simes,
    smallest_difference,
)
from scipy import optimize, stats

import simulate_significance as sim

TRIALS = int(os.environ.get("PROMPTCAL_TRIALS", "150"))
DESIGNS = {**sim.SIZE, **sim.OTHER_SIZE, **sim.SIZE_OF_SETS}


def slack(share: float) -> float:
    """Three standard deviations of a share in this many trials."""
    return 3 * math.sqrt(share * (1 - share) / TRIALS)


# Size and power


@pytest.mark.parametrize("name", DESIGNS)
def test_equally_calibrated_models_are_not_told_apart(name):
    assert sim.share_different(name, DESIGNS[name], 300, TRIALS) <= 0.05 + slack(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("n", [100, 1000])
@pytest.mark.parametrize("name", sim.SIZE)
def test_the_size_holds_for_fewer_and_more_images(name, n):
    """Of the other designs too: `python tests/simulate_significance.py`."""
    assert sim.share_different(name, sim.SIZE[name], n, TRIALS) <= 0.05 + slack(0.05)


@pytest.mark.parametrize(("name", "power"), [
    ("over 3, over 8, same predictions", 0.95),
    ("over 3, over 8, 74 and 86 %", 0.9),
    ("calibrated, over 6", 0.5),
    ("shape only: T = 1, T = 0.5, no over-confidence on average", 0.5),
    ("5 sets, over 5, over 1 (n each)", 0.98),
])
def test_models_that_differ_are_told_apart(name, power):
    design = {**sim.POWER, **sim.POWER_OF_SETS}[name]
    assert sim.share_different(name, design, 1000, TRIALS) >= power - slack(power)


@pytest.mark.parametrize("kind", ["near zero", "same side"])
def test_the_smallest_difference_is_found_in_about_four_of_five_samples(kind):
    power = sim.smallest_power(kind, 1000, TRIALS)
    assert 0.75 - slack(0.75) < power < 0.9 + slack(0.9)


def test_several_pairs_raise_no_more_alarms_than_one():
    """Four equally calibrated methods, six pairs, corrected by Shaffer's method."""
    rng = np.random.default_rng(0)
    models = (sim.Model(error=0.05), sim.Model(error=-0.05))
    alarms = 0
    for _ in range(TRIALS):
        left, right = sim.draw_pair(*models, 300, rng)
        others = sim.draw_pair(*models, 300, rng)
        p_values = []
        for first, second in combinations((left, right, *others), 2):
            p_values.append(compare_calibration([first], [second]).p)
        alarms += min(shaffer(p_values)) < 0.05
    assert alarms / TRIALS <= 0.05 + slack(0.05)


@pytest.mark.parametrize(
    ("n", "error"), [(100, 0.0), (300, 0.08), (1000, 0.0), (1000, 0.03), (1000, 0.2)])
@pytest.mark.parametrize("accuracy", [0.74, 0.98])
def test_the_interval_covers_the_true_error(n, error, accuracy):
    result = sim.coverage(sim.Model(accuracy, error), n, TRIALS)
    assert result.rms >= 0.95 - slack(0.05)
    assert result.over >= 0.94 - slack(0.05)


# Formulas


def sample(n: int, seed: int, error: float = 0.0, seeds: int | None = None) -> sim.Sample:
    rng = np.random.default_rng(seed)
    shape: tuple[int, ...] = (n,)
    if seeds is not None:
        shape = (n, seeds)
    p = rng.uniform(0.3, 0.9, shape)
    return p + error, (rng.random(shape) < p).astype(float)


def test_student_t_is_scipys():
    for dof in (3, 5, 10, 30, 100, 1e4):
        for t in (0.1, 1.0, 2.0, 3.5):
            exact = 2 * stats.t.sf(t, dof)
            assert intervals.t_p_value(t, dof) == pytest.approx(exact, rel=0.05, abs=2e-3)
        exact = stats.t.ppf(0.975, dof)
        assert intervals.t_quantile(dof) == pytest.approx(exact, rel=0.02)
        assert intervals.t_p_value(intervals.t_quantile(dof), dof) == pytest.approx(0.05)
    assert intervals.t_p_value(math.inf, 5) == 0 and intervals.t_p_value(0, 5) == 1


def test_over_confidence_is_the_paired_t_test():
    first = sample(400, 0)
    second = sample(400, 1, 0.05)
    result = compare_calibration([first], [second])
    gaps = [confidence - correct for confidence, correct in (first, second)]
    expected = stats.ttest_rel(gaps[1], gaps[0])
    assert result.over.value == pytest.approx(gaps[1].mean() - gaps[0].mean())
    assert result.over.p == pytest.approx(expected.pvalue, rel=1e-3)
    low, high = expected.confidence_interval()
    assert [result.over.low, result.over.high] == pytest.approx([low, high], rel=1e-3)
    assert (result.images, result.clusters, result.few_images) == (400, 400, False)
    assert result.sd_difference == pytest.approx((gaps[1] - gaps[0]).std(ddof=1))
    assert result.sd_sum == pytest.approx((gaps[1] + gaps[0]).std(ddof=1))
    # |o| is equal if the difference or the sum of the gaps is 0 on average: both must be rejected.
    p_of_sum = stats.ttest_1samp(gaps[0] + gaps[1], 0).pvalue
    assert result.level == pytest.approx(max(expected.pvalue, p_of_sum), rel=1e-3)


def test_several_sets_have_equal_weight_and_satterthwaites_degrees_of_freedom():
    first = [sample(50, 0), sample(400, 1)]
    second = [sample(50, 2, 0.05), sample(400, 3, 0.05)]
    gaps = [(b[0] - b[1]) - (a[0] - a[1]) for a, b in zip(first, second, strict=True)]
    result = compare_calibration(first, second)
    assert result.over.value == pytest.approx((gaps[0].mean() + gaps[1].mean()) / 2)
    parts = [gap.var(ddof=1) / len(gap) / 4 for gap in gaps]
    dof = sum(parts) ** 2 / (parts[0] ** 2 / 49 + parts[1] ** 2 / 399)
    half = stats.t.ppf(0.975, dof) * math.sqrt(sum(parts))
    assert result.over.high - result.over.value == pytest.approx(half, rel=1e-3)
    assert result.few_images and result.images == 450


def test_accuracy_is_mcnemars_corrected_test():
    first = sample(2000, 0)
    second = sample(2000, 1)
    result = compare_calibration([first], [second])
    only_first = int(((first[1] == 1) & (second[1] == 0)).sum())
    only_second = int(((first[1] == 0) & (second[1] == 1)).sum())
    chi2 = (abs(only_first - only_second) - 1) ** 2 / (only_first + only_second)
    assert result.accuracy.p == pytest.approx(stats.chi2.sf(chi2, 1), rel=0.02)
    assert result.accuracy.value == pytest.approx((only_second - only_first) / 2000)
    assert result.accuracy.p == pytest.approx(mcnemar(first[1], second[1]), rel=0.1)


def test_squared_is_the_difference_of_debiased_errors_over_seeds():
    first = sample(300, 0, seeds=2)
    second = sample(300, 1, 0.08, seeds=3)
    result = compare_calibration([first], [second])
    means = []
    for confidence, correct in (first, second):
        errors = []
        for column in range(confidence.shape[1]):
            errors.append(cal.squared_calibration_error(confidence[:, column], correct[:, column]))
        means.append(np.mean(errors))
    assert result.squared.value == pytest.approx(means[1] - means[0])
    assert result.squared.low < result.squared.value < result.squared.high


def run_of(confidence: np.ndarray, correct: np.ndarray) -> binned.BinnedRun:
    return binned.binned_run(confidence, correct, 20)


def test_the_null_variance_is_its_definition_and_the_variance_of_a_calibrated_run():
    """By loops over pairs of images, which is what the tables of bins add up."""
    runs = [run_of(*sample(80, seed)) for seed in (0, 1)]
    weights = [-1.0, 1.0]
    scaled = []
    for run in runs:
        count = run.count[run.index]
        scaled.append(run.residual * np.sqrt(count) / np.maximum(count - 1, 1))
    total = 0.0
    for i in range(80):
        for j in range(80):
            if i == j:
                continue
            kernel = 0.0
            for run, weight, rho in zip(runs, weights, scaled, strict=True):
                if run.index[i] == run.index[j]:
                    kernel += weight * rho[i] * rho[j]
            total += kernel**2
    plain = 2 / 80**2 * total
    factor = binned.null_variance(runs, weights) / plain
    assert factor >= 1 - 1e-12  # 1, or larger where a calibrated run would vary more

    rng = np.random.default_rng(0)
    errors = []
    variances = []
    for _ in range(600):
        run = run_of(*sim.draw_pair(sim.Model(), sim.Model(), 1000, rng)[0])
        errors.append(run.squared_error)
        variances.append(binned.null_variance([run], [1.0]))
    assert np.mean(variances) == pytest.approx(np.var(errors), rel=0.25)
    assert abs(np.mean(errors)) < 3 * np.std(errors) / math.sqrt(600)  # no bias


def test_the_influence_gives_the_variance_of_a_biased_run():
    rng = np.random.default_rng(0)
    errors = []
    variances = []
    for _ in range(600):
        run = run_of(*sim.draw_pair(sim.Model(error=0.15), sim.Model(), 1000, rng)[0])
        errors.append(run.squared_error)
        psi = binned.influence([run], [1.0])
        variances.append(psi.var(ddof=1) / 1000 - binned.null_variance([run], [1.0]))
    assert np.mean(variances) == pytest.approx(np.var(errors), rel=0.2)


def test_the_level_of_several_sets_is_the_distance_to_the_nearest_equal_levels():
    rng = np.random.default_rng(3)
    form = np.kron([[0, 0.5], [0.5, 0]], np.eye(3))
    for _ in range(5):
        root = rng.normal(size=(6, 6)) + 2 * np.eye(6)
        covariance = root @ root.T / 4000
        means = rng.normal(size=6) * 0.2
        p = significance.level_of_several_sets(means, covariance, dof=500, units=1500)
        precision = np.linalg.inv(covariance)
        target = float(np.trace(form @ covariance))
        distances = []
        for start in range(6):
            guess = means + np.random.default_rng(start).normal(size=6) * 0.1

            def distance(theta, means=means, precision=precision):
                return (theta - means) @ precision @ (theta - means)

            def excess(theta, target=target):
                return 1e3 * (theta @ form @ theta - target)

            nearest = optimize.minimize(
                distance, guess, method="SLSQP", options={"maxiter": 500, "ftol": 1e-12},
                constraints={"type": "eq", "fun": excess})
            if nearest.success:
                distances.append(nearest.fun)
        expected = intervals.t_p_value(math.sqrt(min(distances)), 500)
        assert p == pytest.approx(expected, rel=1e-2, abs=1e-6)
    # One set, without covariance: the nearer of 5 and 1.5 standard errors.
    covariance = np.diag([1e-4, 4e-4])
    p = significance.level_of_several_sets(np.array([0.05, 0.03]), covariance, dof=99, units=100)
    assert p == pytest.approx(intervals.t_p_value(1.5, 99), rel=1e-6)


def test_parts_are_combined_and_must_agree():
    assert simes(0.02, 0.9) == 0.04 and simes(0.03, 0.04) == 0.04 and simes(1, 1) == 1
    direction = significance.shared_direction
    assert direction(0.01, (0.01, -0.3), (0.2, 0.1)) == -1
    assert direction(0.01, (0.01, -0.3), (0.01, 0.1)) == 0
    assert direction(0.06, (0.03, -0.3), (0.06, -0.1)) == 0
    assert direction(0.01, (0.2, -0.3), (0.004, 0.1)) == 1


# Sampling units


def test_order_of_the_methods_only_changes_signs():
    first = [sample(300, 0), sample(200, 1)]
    second = [sample(300, 2, 0.1), sample(200, 3, 0.1)]
    one_way = compare_calibration(first, second)
    other_way = compare_calibration(second, first)
    for name in ("over", "accuracy", "squared"):
        forth = getattr(one_way, name)
        back = getattr(other_way, name)
        mirrored = [-forth.value, -forth.high, -forth.low, forth.p]
        assert [back.value, back.low, back.high, back.p] == pytest.approx(mirrored)
    assert other_way.level == pytest.approx(one_way.level)
    assert other_way.p == pytest.approx(one_way.p)
    assert one_way.better == 1 and other_way.better == -1 and one_way.significant


def test_copies_of_seeds_images_and_data_sets_add_nothing():
    first = sample(300, 0)
    second = sample(300, 1, 0.06)
    alone = compare_calibration([first], [second])
    copies = tuple(np.repeat(values[:, None], 3, axis=1) for values in second)
    repeated = compare_calibration([first], [copies])
    assert repeated.p == pytest.approx(alone.p) and repeated.level == pytest.approx(alone.level)
    for name in ("over", "squared"):
        assert getattr(repeated, name).high == pytest.approx(getattr(alone, name).high)
    # The same images under two names.
    names = [f"image {number}" for number in range(300)]
    twice = compare_calibration([first] * 2, [second] * 2, [names, names])
    assert [twice.over.low, twice.over.high] == pytest.approx([alone.over.low, alone.over.high])
    assert twice.over.p == pytest.approx(alone.over.p)
    assert twice.level == pytest.approx(alone.level, rel=0.2)
    assert (twice.images, twice.clusters) == (600, 300)
    independent = compare_calibration([first] * 2, [second] * 2)
    assert independent.over.p < twice.over.p and independent.clusters == 600
    # Each image of a patient twice.
    doubled = [np.repeat(first, 2, axis=1), np.repeat(second, 2, axis=1)]
    clustered = compare_calibration([doubled[0]], [doubled[1]], [np.repeat(np.arange(300), 2)])
    assert clustered.over.p == pytest.approx(alone.over.p, rel=0.05)
    assert clustered.clusters == 300
    assert clustered.sd_difference == pytest.approx(math.sqrt(2) * alone.sd_difference, rel=0.01)
    assert compare_calibration([doubled[0]], [doubled[1]]).over.p < alone.over.p


def test_identities_may_be_any_hashable_values_or_rows_of_bytes():
    first = [sample(60, 0), sample(60, 1)]
    second = [sample(60, 2, 0.1), sample(60, 3, 0.1)]
    numbers = [np.arange(60) // 2, np.arange(30, 90) // 2]
    digests = np.random.default_rng(0).integers(0, 256, (100, 16), dtype=np.uint8)
    digests[:, -1] = 0  # a digest may end in a zero
    rows = [digests[codes] for codes in numbers]
    expected = compare_calibration(first, second, numbers)
    assert expected.clusters == 45
    for images in (
        rows,
        [row.view("V16").ravel() for row in rows],
        [[bytes(identity) for identity in row] for row in rows],
        [[("patient", int(code)) for code in codes] for codes in numbers],
        [codes.astype(str) for codes in numbers],
        [codes.astype(object) for codes in numbers],
    ):
        assert compare_calibration(first, second, images) == expected


def test_sets_that_share_images_through_a_third_one_are_a_group():
    groups = intervals.make_groups([2, 2, 2, 2], [[0, 1], [4, 5], [1, 2], [2, 4]])
    assert sorted(group.sets for group in groups) == [(0, 1, 2, 3)]
    groups = intervals.make_groups([2, 3, 2], [[0, 1], [5, 6, 6], [1, 0]])
    assert sorted((group.sets, group.clusters) for group in groups) == [((0, 2), 2), ((1,), 2)]
    assert intervals.make_groups([2, 2], [[0, 1], [2, 3]])[0].codes is None  # independent images


# Degenerate cases


def test_identical_runs_do_not_differ():
    for runs in ([sample(200, 0)], [sample(200, 0), sample(90, 1)], [sample(100, 0, seeds=3)],
                 [(np.ones(50), np.ones(50))], [(np.full(50, 0.7), np.zeros(50))] * 2):
        result = compare_calibration(runs, runs)
        values = [result.over.value, result.accuracy.value, result.squared.value]
        assert values == pytest.approx([0, 0, 0], abs=1e-15)
        assert result.over.p == result.accuracy.p == result.squared.p == 1
        assert result.level == result.p == 1
        assert result.better == 0
    copies = tuple(np.repeat(values[:, None], 3, axis=1) for values in sample(200, 0))
    assert compare_calibration([sample(200, 0)], [copies]).p == 1  # up to rounding


def test_a_single_image_or_patient_shows_nothing():
    many = (sample(50, 0), sample(50, 1))
    single = (sample(1, 0), sample(1, 1))
    for result in (compare_calibration([single[0]], [single[1]]),
                   compare_calibration([many[0], single[0]], [many[1], single[1]]),
                   compare_calibration([many[0]], [many[1]], [["patient"] * 50])):
        assert result.p == result.level == 1 and result.better == 0 and result.few_images
        for part in (result.over, result.accuracy, result.squared):
            assert (part.low, part.high, part.p) == (-1, 1, 1)


def test_without_variance_p_is_the_smallest_of_a_sign_flip_test():
    right = (np.full(8, 0.9), np.ones(8))
    wrong = (np.full(8, 0.9), np.zeros(8))
    names = list(range(8))
    alone = compare_calibration([right], [wrong])
    twice = compare_calibration([right] * 2, [wrong] * 2, [names, names])
    for result in (alone, twice):
        assert result.over.p == result.accuracy.p == 2.0**-7
        assert result.over.value == pytest.approx(1) and result.over.high <= 1
        assert result.p >= 2.0**-7
    confidence, correct = sample(12, 0)
    shifted = compare_calibration([(confidence, correct)], [(confidence + 0.1, correct)])
    assert shifted.over.p == 2.0**-11


def test_confidences_near_zero_and_one():
    n = 400
    rng = np.random.default_rng(0)
    correct = (rng.random(n) < 0.9).astype(float)
    for confidence in (np.ones(n), np.zeros(n), (rng.random(n) < 0.5).astype(float)):
        result = compare_calibration([(confidence, correct)], [(np.full(n, 0.9), correct)])
        assert result.p < 1e-4 and result.better == -1
        interval = cal.rms_interval(confidence, correct)
        assert 0 <= interval.low <= interval.value <= interval.high <= 1


def test_what_does_not_fit_is_refused():
    for first, second, message in (
        ([sample(5, 0)], [sample(6, 0)], "same images"),
        ([], [], "same data sets"),
        ([sample(5, 0)] * 2, [sample(5, 0)], "same data sets"),
        ([(np.ones(3), np.ones(4))], [sample(3, 0)], "one shape"),
        ([(np.full(3, 2.0), np.ones(3))], [sample(3, 0)], "confidence"),
        ([(np.ones((3, 1, 1)), np.ones((3, 1, 1)))], [sample(3, 0)], "one shape"),
        ([(np.full(3, np.nan), np.ones(3))], [sample(3, 0)], "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            compare_calibration(first, second)
    with pytest.raises(ValueError, match="one identity per image"):
        compare_calibration([sample(5, 0)], [sample(5, 1)], [range(4)])
    with pytest.raises(ValueError, match="one list per data set"):
        compare_calibration([sample(5, 0)], [sample(5, 1)], [range(5), range(5)])
    with pytest.raises(ValueError, match="bins"):
        compare_calibration([sample(5, 0)], [sample(5, 1)], bins=0)


# Corrections


def test_holm():
    """The k-th smallest of m is multiplied by m − k + 1, and is never below an earlier one."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []
    assert holm(np.array([0.01, 0.04, 0.03])) == pytest.approx([0.03, 0.06, 0.06])


def test_shaffer():
    """Ten pairs of five methods: factors 10 6 6 6 6 4 4 3 2 1."""
    p_values = np.linspace(0.001, 0.01, 10)
    expected = np.maximum.accumulate(p_values * [10, 6, 6, 6, 6, 4, 4, 3, 2, 1])
    assert shaffer(p_values) == pytest.approx(expected)
    shuffled = np.random.default_rng(0).permutation(10)
    assert shaffer(p_values[shuffled]) == pytest.approx(expected[shuffled])
    assert shaffer([0.03]) == [0.03] and shaffer([]) == []
    assert shaffer([0.3, 0.4, 0.5]) == pytest.approx([0.9] * 3)
    for count in (3, 6, 10, 15, 45):
        drawn = np.random.default_rng(count).uniform(0, 0.2, count)
        assert (np.array(shaffer(drawn)) <= np.array(holm(drawn)) + 1e-12).all()
        assert (np.array(shaffer(drawn)) >= drawn).all()
    with pytest.raises(ValueError, match="all pairs"):
        shaffer([0.1, 0.2])


def test_smallest_difference():
    assert smallest_difference(1000, 0.83) == pytest.approx(3 * 0.83 / math.sqrt(1000))
    corrected = smallest_difference(1000, 0.83, comparisons=4)
    assert corrected == pytest.approx(1.2 * smallest_difference(1000, 0.83), rel=0.01)
    assert [round(100 * smallest_difference(n), 1) for n in (300, 1000, 4000)] == [14.4, 7.9, 3.9]
