"""Means with their variance, by clusters of images; Student's t and Wilson's intervals.

Images are the sampling unit. Predictions of several seeds for one image are averaged before they
come here. Images that belong together, such as those of a patient, or copies of one image in
several data sets, form a cluster.
"""
from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from .arrays import Array, ArrayLike, to_numpy

LEVEL = 0.05  # of all tests; intervals have 95 %
NORMAL_QUANTILE = NormalDist().inv_cdf(1 - LEVEL / 2)  # 1.96
ROUNDING = 1e-12  # smaller differences of fractions come from rounding


@dataclass(frozen=True)
class Interval:
    """A value with its 95 % confidence interval; arrays where a metric returns several values."""

    value: float | Array
    low: float | Array
    high: float | Array


@dataclass(frozen=True)
class Estimate:
    """A difference of two methods with its 95 % confidence interval and its p-value."""

    value: float
    low: float
    high: float
    p: float

    @property
    def significant(self) -> bool:
        """Whether p is below 0.05."""
        return self.p < LEVEL


def t_p_value(t: float, dof: float) -> float:
    """Two-sided p-value of Student's t by Wallace's approximation.

    p = erfc(z / √2) with z = (8ν + 1) / (8ν + 3) · √(ν ln(1 + t²/ν)). It gives 0.0514 where the
    exact p is 0.05 at ν = 3, and is closer for more degrees of freedom.

    Args:
        t: The statistic; its sign does not matter.
        dof: Degrees of freedom ν, above 0.

    Example:
        >>> round(t_p_value(3.182, dof=3), 4)
        0.0514
        >>> round(t_p_value(1.96, dof=10_000), 4)
        0.05
    """
    z = (8 * dof + 1) / (8 * dof + 3) * math.sqrt(dof * math.log1p(t * t / dof))
    return math.erfc(z / math.sqrt(2))


def t_quantile(dof: float, level: float = 1 - LEVEL) -> float:
    """Half the width of a t interval in standard errors: the inverse of `t_p_value`.

    t = √(ν (exp((z (8ν + 3) / (8ν + 1))² / ν) − 1)), z the normal quantile (1.96 for 95 %).

    Args:
        dof: Degrees of freedom ν, above 0.
        level: Share of intervals that contain the true value.

    Example:
        >>> round(t_quantile(dof=30), 3)
        2.042
    """
    z = NormalDist().inv_cdf((1 + level) / 2) * (8 * dof + 3) / (8 * dof + 1)
    return math.sqrt(dof * math.expm1(z * z / dof))


def wilson(share: float, n: float, z: float = NORMAL_QUANTILE) -> Interval:
    """Wilson's interval of a share: all π with (share − π)² ≤ z² π (1 − π) / n.

    Args:
        share: The measured share, from 0 to 1.
        n: Number of independent images, or the effective number if they are not independent.
        z: Half the width in standard errors.

    Example:
        >>> interval = wilson(1.0, n=50)
        >>> round(interval.low, 3), interval.high
        (0.929, 1.0)
    """
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    variance = share * (1 - share) / n + z * z / (4 * n * n)
    half = z * math.sqrt(variance) / (1 + z * z / n)
    # Rounding must not move an end past the value or out of [0, 1].
    low = min(share, max(0.0, centre - half))
    high = max(share, min(1.0, centre + half))
    return Interval(share, low, high)


def mean_interval(values: ArrayLike, low: float = -math.inf, high: float = math.inf) -> Interval:
    """Mean of independent values with its 95 % t interval.

    Args:
        values: One per image, (N,).
        low: Smallest possible mean; it is the lower end for a single value.
        high: Largest possible mean.

    Example:
        >>> interval = mean_interval([1, 2, 3, 6])
        >>> round(interval.low, 2), interval.value, round(interval.high, 2)
        (-0.48, 3.0, 6.48)
    """
    array = to_numpy(values).astype(np.float64)
    value = float(array.mean())
    if len(array) < 2:
        return Interval(value, low, high)
    half = t_quantile(len(array) - 1) * float(np.linalg.norm(deviations(array)))
    return Interval(value, max(low, value - half), min(high, value + half))


@dataclass(frozen=True)
class Group:
    """Data sets that share clusters of images; other groups are independent of it.

    Attributes:
        sets: Positions of the data sets.
        clusters: Number of clusters in the group.
        codes: For each data set the cluster of each image, (N_d,), from 0 to clusters − 1.
            None if the group is one data set and each image is a cluster of its own.
    """

    sets: tuple[int, ...]
    clusters: int
    codes: tuple[Array, ...] | None

    def cluster_sums(self, values: Array, position: int) -> Array:
        """Sums values by cluster.

        Args:
            values: One per image of a data set of this group, (N_d,).
            position: Position of the data set in `sets`.

        Returns:
            The sums, (clusters,).
        """
        if self.codes is None:
            return values
        return np.bincount(self.codes[position], values, minlength=self.clusters)

    def clusters_of(self, position: int) -> int:
        """Number of clusters that have images in the group's data set number `position`."""
        if self.codes is None:
            return self.clusters
        return len(np.unique(self.codes[position]))


def identity_codes(identities: Sequence[ArrayLike]) -> list[Array]:
    """Numbers the identities of images: equal identities have equal numbers in all data sets.

    Args:
        identities: For each data set one identity per image: an array of integers, text or bytes,
            an array (N, width) whose rows are identities, or a list of any hashable values.

    Returns:
        For each data set integers of shape (N,).

    Example:
        >>> [codes.tolist() for codes in identity_codes([["cat", "dog"], ["dog", "fox"]])]
        [[0, 1], [1, 2]]
    """
    numbers: dict[Hashable, int] = {}
    codes = []
    for per_image in identities:
        numbers_of_set = []
        for identity in _hashable_rows(per_image):
            numbers_of_set.append(numbers.setdefault(identity, len(numbers)))
        codes.append(np.array(numbers_of_set, dtype=np.int64))
    return codes


def _hashable_rows(identities: ArrayLike) -> list[Hashable]:
    """The identities of one data set as a list of hashable values."""
    if isinstance(identities, list | tuple):
        return list(identities)
    array = to_numpy(identities)
    if array.ndim == 2:
        # A digest per image, (N, 16) bytes: each row becomes one value.
        row_type = np.dtype((np.void, array.dtype.itemsize * array.shape[1]))
        array = np.ascontiguousarray(array).view(row_type).ravel()
    return array.tolist()


def make_groups(sizes: Sequence[int], images: Sequence[ArrayLike] | None = None) -> list[Group]:
    """Groups of data sets that share images. Without identities, data sets count as disjoint.

    Args:
        sizes: Number of images of each data set.
        images: For each data set the identity of each image, see `identity_codes`.

    Example:
        >>> [group.sets for group in make_groups([2, 2, 1], [["a", "b"], ["b", "c"], ["d"]])]
        [(0, 1), (2,)]
    """
    if images is None:
        return [Group((number,), size, None) for number, size in enumerate(sizes)]
    if len(images) != len(sizes):
        raise ValueError(f"images needs one list per data set, got {len(images)} for {len(sizes)}.")
    all_codes = identity_codes(images)
    for codes, size in zip(all_codes, sizes, strict=True):
        if len(codes) != size:
            raise ValueError(f"images needs one identity per image, got {len(codes)} for {size}.")

    groups = []
    for members in _connected_sets(all_codes):
        joined = np.concatenate([all_codes[number] for number in members])
        names, renumbered = np.unique(joined, return_inverse=True)
        if len(members) == 1 and len(names) == len(joined):
            groups.append(Group(members, len(names), None))
            continue
        ends = np.cumsum([sizes[number] for number in members])
        codes_by_set = tuple(np.split(renumbered.ravel(), ends[:-1]))
        groups.append(Group(members, len(names), codes_by_set))
    return groups


def _connected_sets(all_codes: Sequence[Array]) -> list[tuple[int, ...]]:
    """Data sets that share a code, directly or through other data sets."""
    group_of = list(range(len(all_codes)))
    total = 1 + max(int(codes.max()) for codes in all_codes)
    last_set = np.full(total, -1)  # of each code, the last data set that had it
    for number, codes in enumerate(all_codes):
        for earlier in np.unique(last_set[codes]):
            if earlier < 0:
                continue
            # Both groups get one name.
            old_name = group_of[earlier]
            for member, name in enumerate(group_of):
                if name == old_name:
                    group_of[member] = group_of[number]
        last_set[codes] = number
    members: dict[int, list[int]] = {}
    for number, name in enumerate(group_of):
        members.setdefault(name, []).append(number)
    return [tuple(numbers) for numbers in members.values()]


@dataclass(frozen=True)
class ClusteredMean:
    """A mean over data sets of equal weight.

    Attributes:
        value: The mean over data sets of the mean over images.
        parts: Variance of `value` that comes from each group of data sets, (groups,).
        dof: Degrees of freedom of the variance.
    """

    value: float
    parts: Array
    dof: float

    @property
    def variance(self) -> float:
        """Variance of `value`."""
        return float(self.parts.sum())


def deviations(values: Array) -> Array:
    """e_i = (x_i − x̄) / √(N (N − 1)): the sum of their squares is the variance of the mean x̄."""
    n = len(values)
    return (values - values.mean()) / math.sqrt(n * (n - 1))


def clustered_mean(values: Sequence[Array], groups: Sequence[Group]) -> ClusteredMean:
    """Mean over K data sets, its variance by clusters, and the degrees of freedom.

    value = (1/K) Σ_d x̄_d. With e_di = (x_di − x̄_d) / (K √(N_d (N_d − 1))), the variance is
    P = Σ_c (Σ_{(d, i) in cluster c} e_di)². For disjoint sets P = Σ_d s_d² / (K² N_d).
    ν = P² / (Σ_γ P_γ² / (m_γ − 1)) over groups γ of m_γ clusters (Satterthwaite).

    Args:
        values: For each data set one value per image, (N_d,), N_d at least 2.
        groups: The groups of data sets that share images, from `make_groups`.

    Example:
        >>> mean = clustered_mean([np.array([1.0, 2.0, 3.0, 6.0])], make_groups([4]))
        >>> mean.value, round(mean.variance, 3), mean.dof     # 4.667 / 4
        (3.0, 1.167, 3.0)
        >>> pairs = make_groups([4], [[0, 0, 1, 1]])
        >>> round(clustered_mean([np.array([1.0, 2.0, 3.0, 6.0])], pairs).variance, 3)
        1.5
    """
    count = len(values)
    value = sum(float(per_image.mean()) for per_image in values) / count
    parts = np.zeros(len(groups))
    for number, group in enumerate(groups):
        sums = np.zeros(group.clusters)
        for position, data_set in enumerate(group.sets):
            sums += group.cluster_sums(deviations(values[data_set]) / count, position)
        parts[number] = (sums**2).sum()
    return ClusteredMean(value, parts, satterthwaite(parts, groups))


def satterthwaite(parts: Array, groups: Sequence[Group]) -> float:
    """Degrees of freedom of a sum of variances: ν = P² / (Σ_γ P_γ² / (m_γ − 1)).

    Args:
        parts: Variance that comes from each group, (groups,).
        groups: The groups; each has at least two clusters.

    Example:
        >>> round(satterthwaite(np.array([2.0, 2.0]), make_groups([11, 11])), 6)
        20.0
    """
    group_dof = np.array([group.clusters - 1 for group in groups], dtype=np.float64)
    scaled = parts / max(float(parts.max()), np.finfo(np.float64).tiny)  # squares must not vanish
    below = float((scaled**2 / group_dof).sum())
    if below == 0:
        return float(group_dof.min())
    return float(scaled.sum()) ** 2 / below


def estimate(
    value: float, variance: float, dof: float, units: int, correction: float = 0.0,
) -> Estimate:
    """Interval value ± (t √variance + correction), clipped to [−1, 1], and its p-value.

    t = max(0, |value| − correction) / √variance. p is never below 2^(1 − units), the smallest
    p-value that a test by flipping signs of so many units can have. Without variance p is that
    smallest value, or 1 if the value is 0 too.

    Args:
        value: A difference of fractions.
        variance: Variance of the value.
        dof: Degrees of freedom of the variance.
        units: Number of independent units (clusters).
        correction: Continuity correction; 0 for values that are continuous.

    Example:
        >>> difference = estimate(0.05, 0.0004, dof=100, units=101)
        >>> round(difference.low, 3), round(difference.high, 3), round(difference.p, 3)
        (0.01, 0.09, 0.014)
    """
    half = t_quantile(dof) * math.sqrt(variance) + correction
    low = max(-1.0, value - half)
    high = min(1.0, value + half)
    return Estimate(value, low, high, mean_p_value(value, variance, dof, units, correction))


def mean_p_value(
    value: float, variance: float, dof: float, units: int, correction: float = 0.0,
) -> float:
    """The p-value of `estimate`.

    Args:
        value: A difference of fractions.
        variance: Variance of the value.
        dof: Degrees of freedom of the variance.
        units: Number of independent units (clusters).
        correction: Continuity correction; 0 for values that are continuous.
    """
    smallest = 2.0 ** (1 - units)
    distance = max(0.0, abs(value) - correction)
    if distance <= ROUNDING:
        return 1.0
    if variance <= ROUNDING**2:
        return smallest
    return max(smallest, t_p_value(distance / math.sqrt(variance), dof))


def cluster_codes(clusters: ArrayLike | None, n: int) -> Array:
    """The cluster of each image as an integer, (n,).

    Args:
        clusters: For each image the group it belongs to; None = each image is a group.
        n: Number of images.
    """
    if clusters is None:
        return np.arange(n)
    codes = identity_codes([clusters])[0]
    if len(codes) != n:
        raise ValueError(f"clusters needs one entry per image, got {len(codes)} for {n}.")
    return codes


def share_interval(right: Array, counted: Array, clusters: ArrayLike | None = None) -> Interval:
    """Share of `right` among the counted predictions, with Wilson's interval.

    Predictions of one image or cluster are not independent. They count as n_eff = a (1 − a) / var
    independent ones, where a is the share and var the variance of the ratio Σ right / Σ counted
    over clusters. n_eff is at most the number of counted predictions, and at least that number
    divided by the predictions of the largest cluster.

    Args:
        right: 0 or 1, (N, S) for S seeds.
        counted: Whether a prediction counts, (N, S).
        clusters: For each image the group it belongs to; without it images are independent.

    Returns:
        Value and ends as fractions; NaN if no prediction counts.

    Example:
        >>> right = np.array([[1.0], [1.0], [0.0], [1.0]])
        >>> interval = share_interval(right, right >= 0)
        >>> round(interval.low, 3), interval.value, round(interval.high, 3)
        (0.301, 0.75, 0.954)
    """
    total = int(counted.sum())
    if total == 0:
        return Interval(math.nan, math.nan, math.nan)
    codes = cluster_codes(clusters, len(right))
    counts = np.bincount(codes, counted.sum(axis=1))
    rights = np.bincount(codes, (right * counted).sum(axis=1))
    rights = rights[counts > 0]
    counts = counts[counts > 0]
    share = float(rights.sum()) / total

    fewest = total / float(counts.max())
    effective = fewest
    residuals = rights - share * counts
    squares = float((residuals**2).sum())
    if len(counts) > 1 and squares > 0:
        variance = squares / total**2 * len(counts) / (len(counts) - 1)
        effective = min(float(total), max(fewest, share * (1 - share) / variance))
    z = NORMAL_QUANTILE
    if clusters is not None:
        z = t_quantile(max(1, len(counts) - 1))  # patients can be few
    return wilson(share, effective, z)
