"""Comparison of methods on the same images: calibration, accuracy, and corrections for many tests.

`compare_calibration` asks two questions and combines their answers. Level: is mean confidence
nearer to accuracy? Squared: is confidence nearer to accuracy bin by bin? All p-values and
intervals are formulas of the images' values; nothing is resampled.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from . import BINS
from .arrays import Array, ArrayLike, check_bins, check_seeds, number_array
from .binned import BinnedRun, binned_runs, influence, null_variance
from .intervals import (
    LEVEL,
    ROUNDING,
    ClusteredMean,
    Estimate,
    Group,
    clustered_mean,
    deviations,
    estimate,
    make_groups,
    mean_p_value,
    satterthwaite,
    t_p_value,
)

FEW_IMAGES = 100  # below it the normal approximation has not been simulated
# Standard deviations of gaps between CLIP methods at 60 to 75 % accuracy, to plan experiments:
SD_NEAR_ZERO = 0.83  # sum of both gaps; counts where one of the two is nearly calibrated
SD_UNLIKE = 0.37  # difference of the gaps of unlike methods, such as TPT and zero-shot
SD_ALIKE = 0.15  # difference of the gaps of similar methods, such as O-TPT and SoC

Sample = tuple[ArrayLike, ArrayLike]  # confidence and correct of one data set, (N,) or (N, S)


@dataclass(frozen=True)
class CalibrationComparison:
    """Two methods on the same images. Differences are second − first, in fractions.

    Attributes:
        over: Difference of over-confidence, mean confidence − accuracy.
        accuracy: Difference of accuracy.
        squared: Difference of the debiased squared calibration error D.
        level: p-value of "both have the same |over-confidence|".
        p: p-value of "both are equally calibrated": level and squared combined.
        better: −1 if the second method is better calibrated, +1 if the first is, 0 if neither is
            shown to be, or if level and squared disagree.
        images: Number of images, over all data sets.
        clusters: Number of independent clusters of images.
        few_images: Whether a data set has fewer than 100 clusters, so that p is approximate.
        sd_difference: Standard deviation per image of the difference u of both gaps.
        sd_sum: Standard deviation per image of the sum v of both gaps.
    """

    over: Estimate
    accuracy: Estimate
    squared: Estimate
    level: float
    p: float
    better: int
    images: int
    clusters: int
    few_images: bool
    sd_difference: float
    sd_sum: float

    @property
    def significant(self) -> bool:
        """Whether p is below 0.05."""
        return self.p < LEVEL


@dataclass(frozen=True)
class PairedSet:
    """One data set with the checked predictions of both methods, (N, S₁) and (N, S₂)."""

    confidence: tuple[Array, Array]
    correct: tuple[Array, Array]

    @property
    def images(self) -> int:
        """Number N of images."""
        return len(self.correct[0])

    def gaps(self) -> tuple[Array, Array]:
        """Mean over seeds of confidence − correct of each method, (N,) each."""
        gap_by_method = []
        for confidence, correct in zip(self.confidence, self.correct, strict=True):
            gap_by_method.append((confidence.astype(np.float64) - correct).mean(axis=1))
        return gap_by_method[0], gap_by_method[1]

    def accuracy_difference(self) -> Array:
        """Mean over seeds of correct, second − first, (N,)."""
        return self.correct[1].mean(axis=1) - self.correct[0].mean(axis=1)


def compare_calibration(
    first: Sequence[Sample],
    second: Sequence[Sample],
    images: Sequence[ArrayLike] | None = None,
    bins: int = BINS,
) -> CalibrationComparison:
    """Tests whether one of two methods is better calibrated on the same images.

    "Equally calibrated" means the same |over-confidence| on average and the same squared
    calibration error bin by bin. A method that is over-confident by 5 points and one that is
    under-confident by 5 are equally calibrated. Data sets have equal weight and are not sampled;
    images are independent draws unless `images` says which belong together.

    Args:
        first: For each data set `(confidence, correct)` of the first method, each (N, S) for S
            seeds on the same N images, or (N,).
        second: The same for the second method, on the same images in the same order. The number
            of seeds may differ.
        images: For each data set one identity per image: a list of hashable values, an array (N,),
            or an array (N, 16) of bytes. Equal identities form a cluster, within a data set (the
            images of a patient) and across data sets (one image under several corruptions).
            Without it all images count as independent.
        bins: Number of bins of equal width for the squared calibration error.

    Returns:
        Differences with intervals and p-values, see `CalibrationComparison`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> probability = rng.uniform(0.5, 0.8, 2000)
        >>> correct = rng.random(2000) < probability
        >>> calibrated = [(probability, correct)]
        >>> over_confident = [(probability + 0.1, correct)]
        >>> comparison = compare_calibration(over_confident, calibrated)
        >>> comparison.better, comparison.p < 0.001, round(comparison.over.value, 3)
        (-1, True, -0.1)
    """
    check_bins(bins)
    sets = check_pairs(first, second)
    sizes = [pair.images for pair in sets]
    groups = make_groups(sizes, images)
    clusters_by_set = count_clusters(groups)
    units = sum(group.clusters for group in groups)

    differences = []
    sums = []
    for pair in sets:
        gap_first, gap_second = pair.gaps()
        differences.append(gap_second - gap_first)
        sums.append(gap_second + gap_first)

    if min(clusters_by_set) < 2:
        return _without_test(sets, differences, bins, units)

    mean_difference = clustered_mean(differences, groups)
    mean_sum = clustered_mean(sums, groups)
    over = estimate(
        mean_difference.value, mean_difference.variance, mean_difference.dof, units)
    accuracy = compare_accuracy(sets, groups)
    squared = compare_squared(sets, groups, bins)
    set_means = np.array([values.mean() for values in (*differences, *sums)])
    covariance = mean_covariance(differences, sums, groups)
    if len(sets) == 1:
        level = level_of_one_set(mean_difference, mean_sum, units)
    else:
        dof = min(clusters_by_set) - 1
        level = level_of_several_sets(set_means, covariance, dof, units)
    level_sign = sign_of_level(set_means, covariance)
    p = simes(level, squared.p)

    count = sum(sizes)
    return CalibrationComparison(
        over=over,
        accuracy=accuracy,
        squared=squared,
        level=level,
        p=p,
        better=shared_direction(p, (level, level_sign), (squared.p, squared.value)),
        images=count,
        clusters=units,
        few_images=min(clusters_by_set) < FEW_IMAGES,
        sd_difference=math.sqrt(mean_difference.variance * count),
        sd_sum=math.sqrt(mean_sum.variance * count),
    )


def check_pairs(first: Sequence[Sample], second: Sequence[Sample]) -> list[PairedSet]:
    """Both methods' predictions by data set, checked.

    Args:
        first: For each data set `(confidence, correct)` of the first method, (N,) or (N, S).
        second: The same for the second method.

    Raises:
        ValueError: The data sets or their numbers of images differ.
    """
    if len(first) == 0 or len(first) != len(second):
        raise ValueError(
            f"Both methods need the same data sets, got {len(first)} and {len(second)}.")
    sets = []
    for sample_first, sample_second in zip(first, second, strict=True):
        confidence_first, correct_first = check_seeds(*sample_first)
        confidence_second, correct_second = check_seeds(*sample_second)
        if len(correct_first) != len(correct_second):
            raise ValueError(
                "Both methods need the same images, "
                f"got {len(correct_first)} and {len(correct_second)}.")
        sets.append(PairedSet(
            (confidence_first, confidence_second), (correct_first, correct_second)))
    return sets


def count_clusters(groups: Sequence[Group]) -> list[int]:
    """Number of clusters of each data set."""
    counts: dict[int, int] = {}
    for group in groups:
        for position, data_set in enumerate(group.sets):
            counts[data_set] = group.clusters_of(position)
    return [counts[data_set] for data_set in sorted(counts)]


def _without_test(
    sets: Sequence[PairedSet], differences: Sequence[Array], bins: int, units: int,
) -> CalibrationComparison:
    """The comparison where a data set has a single image or cluster: values without a test."""
    over = np.mean([values.mean() for values in differences])
    accuracy = np.mean([pair.accuracy_difference().mean() for pair in sets])
    squared = np.mean([_squared_difference(pair, bins) for pair in sets])
    return CalibrationComparison(
        over=Estimate(float(over), -1.0, 1.0, 1.0),
        accuracy=Estimate(float(accuracy), -1.0, 1.0, 1.0),
        squared=Estimate(float(squared), -1.0, 1.0, 1.0),
        level=1.0,
        p=1.0,
        better=0,
        images=sum(pair.images for pair in sets),
        clusters=units,
        few_images=True,
        sd_difference=math.nan,
        sd_sum=math.nan,
    )


def compare_accuracy(sets: Sequence[PairedSet], groups: Sequence[Group]) -> Estimate:
    """Difference of accuracy with Edwards' continuity correction.

    δ = 1 / (K · max N_d · max S) for K data sets and S seeds: t = max(0, |value| − δ) / √P, and
    the interval is wider by δ. For one data set and one seed t² is the statistic of McNemar's
    corrected χ² test up to O(1/n).

    Args:
        sets: The data sets, from `check_pairs`.
        groups: Which of them share images, from `make_groups`.
    """
    largest = max(pair.images for pair in sets)
    seeds = 1
    for pair in sets:
        seeds = max(seeds, pair.correct[0].shape[1], pair.correct[1].shape[1])
    correction = 1 / (len(sets) * largest * seeds)
    mean = clustered_mean([pair.accuracy_difference() for pair in sets], groups)
    units = sum(group.clusters for group in groups)
    return estimate(mean.value, mean.variance, mean.dof, units, correction)


def level_of_one_set(mean_difference: ClusteredMean, mean_sum: ClusteredMean, units: int) -> float:
    """p-value of |o₁| = |o₂| on one data set, o = over-confidence.

    It holds if the difference u of both gaps is 0 on average, or their sum v is. Both must be
    rejected, so the larger p counts (an intersection–union test). Its size is at most 5 %, whatever
    the other mean is.

    Args:
        mean_difference: Mean of u.
        mean_sum: Mean of v.
        units: Number of clusters of images.
    """
    p_values = []
    for mean in (mean_difference, mean_sum):
        p_values.append(mean_p_value(mean.value, mean.variance, mean.dof, units))
    return max(p_values)


def mean_covariance(
    differences: Sequence[Array], sums: Sequence[Array], groups: Sequence[Group],
) -> Array:
    """Covariance by clusters of the 2K means (ū_1 … ū_K, v̄_1 … v̄_K) over K data sets.

    Args:
        differences: For each data set the difference u of both gaps of each image, (N_d,).
        sums: For each data set their sum v, (N_d,).
        groups: Which data sets share images, from `make_groups`.

    Returns:
        (2K, 2K).
    """
    count = len(differences)
    covariance = np.zeros((2 * count, 2 * count))
    for group in groups:
        columns = []
        for values in (differences, sums):
            for position, data_set in enumerate(group.sets):
                columns.append(group.cluster_sums(deviations(values[data_set]), position))
        scores = np.stack(columns, axis=1)
        rows = [*group.sets, *(count + data_set for data_set in group.sets)]
        covariance[np.ix_(rows, rows)] = scores.T @ scores
    return covariance


def level_of_several_sets(means: Array, covariance: Array, dof: int, units: int) -> float:
    """p-value of Σ_d o₁d² = Σ_d o₂d² over several data sets, o = over-confidence.

    With u_d and v_d the means of difference and sum of both gaps, the hypothesis is
    Σ_d u_d v_d = 0, which is θᵀAθ = 0 for θ = (u_1 … u_K, v_1 … v_K). The test statistic is the
    distance of the estimates from the nearest θ for which it holds, in standard errors. Chance adds
    c = trace(A Σ) to θ̂ᵀAθ̂, so the nearest θ with θᵀAθ = c is taken.

    Σ = L Lᵀ, LᵀAL = Q Λ Qᵀ and η = Qᵀ L⁻¹ θ̂ make the problem diagonal. With the Lagrange
    multiplier x, Σ_j Λ_j η_j² / (1 + x Λ_j)² = c, and distance² = Σ_j η_j² (x Λ_j / (1 + x Λ_j))².

    Args:
        means: θ̂, the means (ū_1 … ū_K, v̄_1 … v̄_K), (2K,).
        covariance: Σ, of `mean_covariance`, (2K, 2K).
        dof: Degrees of freedom: the clusters of the smallest data set − 1.
        units: Number of clusters over all data sets.
    """
    count = len(means) // 2
    if np.abs(means[:count]).max() <= ROUNDING:
        return 1.0
    scale = float(np.diag(covariance).mean())
    if scale <= ROUNDING**2:
        # No image differs from another: Σ_d u_d v_d is known.
        product = float(np.dot(means[:count], means[count:]))
        return mean_p_value(product, 0.0, dof, units)

    form = np.zeros((2 * count, 2 * count))  # A
    for data_set in range(count):
        form[data_set, count + data_set] = 0.5
        form[count + data_set, data_set] = 0.5
    # The small ridge keeps the matrix invertible where two data sets are the same images.
    ridge = 1e-12 * scale * np.eye(2 * count)
    lower = np.linalg.cholesky(covariance + ridge)
    eigenvalues, vectors = np.linalg.eigh(lower.T @ form @ lower)
    coordinates = vectors.T @ np.linalg.solve(lower, means)  # η
    multiplier = _multiplier(eigenvalues, coordinates, float(eigenvalues.sum()))
    shrunk = multiplier * eigenvalues / (1 + multiplier * eigenvalues)
    distance = float(np.linalg.norm(coordinates * shrunk))
    return max(2.0 ** (1 - units), t_p_value(distance, dof))


def _multiplier(eigenvalues: Array, coordinates: Array, target: float) -> float:
    """The x with Σ_j Λ_j η_j² / (1 + x Λ_j)² = target, by bisection: the sum falls in x."""
    # A is indefinite, so the largest eigenvalue is above 0 and the smallest below. Between these
    # poles every 1 + x Λ_j is above 0. 60 halvings reach double precision.
    low = -1 / float(eigenvalues.max())
    high = -1 / float(eigenvalues.min())
    for _ in range(60):
        middle = (low + high) / 2
        value = float((eigenvalues * (coordinates / (1 + middle * eigenvalues)) ** 2).sum())
        if value > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def sign_of_level(means: Array, covariance: Array) -> float:
    """Σ_d (ū_d v̄_d − cov(ū_d, v̄_d)) estimates Σ_d (o₂d² − o₁d²); negative: the second is nearer.

    Args:
        means: (ū_1 … ū_K, v̄_1 … v̄_K), (2K,).
        covariance: Covariance of these means, (2K, 2K).
    """
    count = len(means) // 2
    products = means[:count] * means[count:]
    chance = np.diag(covariance[:count, count:])
    return float((products - chance).sum())


def compare_squared(sets: Sequence[PairedSet], groups: Sequence[Group], bins: int) -> Estimate:
    """Difference of the debiased squared calibration error D, averaged over seeds and data sets.

    The variance of each data set that shares no image is V = max(P − H/2, H), divided by K². P is
    the variance of the influence values, H what remains where all bins are calibrated. P exceeds
    the truth by H on average, so both are on the safe side. For groups that share images, and for
    clusters of several images, V = P.

    Args:
        sets: The data sets, from `check_pairs`.
        groups: Which of them share images, from `make_groups`.
        bins: Number of bins of equal width.
    """
    count = len(sets)
    total = 0.0
    influences = []
    null_variances = []
    for pair in sets:
        runs, weights = _weighted_runs(pair, bins)
        total += sum(weight * run.squared_error for run, weight in zip(runs, weights, strict=True))
        influences.append(influence(runs, weights))
        null_variances.append(null_variance(runs, weights) / count**2)

    parts = clustered_mean(influences, groups).parts.copy()  # P of each group
    for number, group in enumerate(groups):
        if group.codes is None:
            remaining = null_variances[group.sets[0]]
            parts[number] = max(parts[number] - remaining / 2, remaining)
    units = sum(group.clusters for group in groups)
    dof = satterthwaite(parts, groups)
    return estimate(total / count, float(parts.sum()), dof, units)


def _weighted_runs(pair: PairedSet, bins: int) -> tuple[list[BinnedRun], list[float]]:
    """Runs of both methods by bins, with weights −1/S₁ and 1/S₂."""
    runs = []
    weights = []
    for confidence, correct, sign in zip(pair.confidence, pair.correct, (-1, 1), strict=True):
        method_runs = binned_runs(confidence, correct, bins)
        runs += method_runs
        weights += [sign / len(method_runs)] * len(method_runs)
    return runs, weights


def _squared_difference(pair: PairedSet, bins: int) -> float:
    """D of the second method − D of the first, averaged over seeds."""
    runs, weights = _weighted_runs(pair, bins)
    return sum(weight * run.squared_error for run, weight in zip(runs, weights, strict=True))


def simes(first: float, second: float) -> float:
    """Simes' combination of two p-values: min(2 · smaller, larger), at most 1.

    Args:
        first: A p-value.
        second: Another one.

    Example:
        >>> simes(0.01, 0.5), simes(0.04, 0.03)
        (0.02, 0.04)
    """
    return min(1.0, 2 * min(first, second), max(first, second))


def shared_direction(p: float, *parts: tuple[float, float]) -> int:
    """The sign that all significant parts share; 0 if p is not significant or they disagree.

    Args:
        p: The combined p-value.
        parts: p-value and signed value of each part.
    """
    if p >= LEVEL:
        return 0
    signs = set()
    for part_p, value in parts:
        if part_p < LEVEL:
            signs.add(int(np.sign(value)))
    if len(signs) != 1:
        return 0
    return signs.pop()


def smallest_difference(images: int, sd: float = SD_NEAR_ZERO, comparisons: int = 1) -> float:
    """Difference of over-confidence that is found with about 80 % power: 3.0 · sd / √n.

    Take `sd_difference` of a comparison if both methods err to the same side by more than the
    difference, `sd_sum` if one of them is nearly calibrated. Before there are runs, take
    `SD_NEAR_ZERO`, `SD_UNLIKE` or `SD_ALIKE`, measured on CLIP at 60 to 75 % accuracy.

    Args:
        images: Number of images n.
        sd: Standard deviation of the sum or difference of both gaps, as a fraction.
        comparisons: Number of tests that Holm's method corrects for; the first step counts.

    Returns:
        A fraction; 0.08 means 8 points of over-confidence.

    Example:
        >>> round(smallest_difference(1000), 3), round(smallest_difference(1000, SD_ALIKE), 3)
        (0.079, 0.014)
    """
    normal = NormalDist()
    power = normal.inv_cdf(0.8)
    # A stricter level moves the quantile of the test; four comparisons give a factor of 1.2.
    corrected_quantile = normal.inv_cdf(1 - LEVEL / (2 * comparisons))
    factor = (corrected_quantile + power) / (normal.inv_cdf(1 - LEVEL / 2) + power)
    return 3.0 * factor * sd / math.sqrt(images)


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """McNemar's exact test of two methods' correctness on the same images.

    The p-value is the probability, if both are equally good, of an at least as uneven split of the
    images that only one of them gets right. It is 1 if there are none.

    Args:
        first: Whether each image is right, 0 or 1, (N,).
        second: The same for the other method.

    Example:
        >>> p = mcnemar([1, 1, 1, 1, 1, 0, 1], [0, 0, 0, 0, 0, 1, 1])     # 5 against 1: 2 · 7 / 64
        >>> round(p, 5)
        0.21875
    """
    right_first = number_array(first, "correct", ndim=1) > 0
    right_second = number_array(second, "correct", ndim=1) > 0
    if right_first.shape != right_second.shape:
        raise ValueError(
            f"Both methods need the same images, got {len(right_first)} and {len(right_second)}.")
    only_first = int((right_first & ~right_second).sum())
    only_second = int((right_second & ~right_first).sum())
    count = only_first + only_second
    # log (count choose k) for k = 0 … the smaller number
    k = np.arange(min(only_first, only_second) + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])
    log_choose = log_factorial[count] - log_factorial[k] - log_factorial[count - k]
    tail = float(np.exp(log_choose - count * math.log(2)).sum())
    return min(1.0, 2 * tail)


def holm(p_values: ArrayLike) -> list[float]:
    """Holm's adjusted p-values: they bound the probability of any false alarm among all tests.

    The i-th smallest of M p-values is multiplied by M − i + 1 and is never below an earlier one.

    Example:
        >>> holm([0.25, 0.015625, 0.5])
        [0.5, 0.046875, 0.5]
    """
    count = len(p_values)
    return _step_down(p_values, [count - position for position in range(count)])


def shaffer(p_values: ArrayLike) -> list[float]:
    """Shaffer's adjusted p-values of all pairs of k methods; never above Holm's.

    "Equally calibrated" is transitive, so once a pair differs, not every number of other pairs can
    be equal. S(k), the possible numbers of equal pairs among k methods, is S(0) = S(1) = {0},
    S(k) = {j (j − 1) / 2 + s : 1 ≤ j ≤ k, s in S(k − j)}. The i-th smallest of M p-values is
    multiplied by the largest number in S(k) that is at most M − i + 1.

    Args:
        p_values: One for each of the k (k − 1) / 2 pairs, in any order.

    Example:
        >>> shaffer([0.25, 0.015625, 0.5])     # three methods: factors 3, 1, 1
        [0.25, 0.046875, 0.5]
    """
    count = len(p_values)
    methods = (1 + math.isqrt(1 + 8 * count)) // 2
    if methods * (methods - 1) // 2 != count:
        raise ValueError(f"Shaffer's method needs all pairs of k methods; {count} are not all.")
    possible = possible_equal_pairs(methods)
    factors = []
    for position in range(count):
        factors.append(max(number for number in possible if number <= count - position))
    return _step_down(p_values, factors)


def possible_equal_pairs(methods: int) -> set[int]:
    """S(k): numbers of pairs that can be equal among k methods if equality is transitive.

    Example:
        >>> sorted(possible_equal_pairs(5))
        [0, 1, 2, 3, 4, 6, 10]
    """
    possible: list[set[int]] = [{0}]  # S(0), S(1), …
    for total in range(1, methods + 1):
        numbers = set()
        # A group of `equal` methods that are all equal, and the pairs among the others.
        for equal in range(1, total + 1):
            for pairs_of_others in possible[total - equal]:
                numbers.add(equal * (equal - 1) // 2 + pairs_of_others)
        possible.append(numbers)
    return possible[methods]


def _step_down(p_values: ArrayLike, factors: Sequence[int]) -> list[float]:
    """p-values times the factors in their order of size; running maximum, at most 1."""
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    multiplied = np.minimum(1.0, values[order] * np.asarray(factors, dtype=np.float64))
    adjusted = np.empty(len(values))
    adjusted[order] = np.maximum.accumulate(multiplied)
    return adjusted.tolist()
