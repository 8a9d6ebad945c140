"""Comparison of methods on the same images: paired bootstrap, McNemar's test, and Holm's correction for several."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from .arrays import Array, ArrayLike, number_array
from .calibration import Interval, resamples

LEVEL = 0.05  # of all tests


@dataclass(frozen=True)
class Difference(Interval):
    """The difference of a metric between two methods, with its 95 % interval and its p-value."""

    p: float

    @property
    def significant(self) -> bool:
        """Whether p is below 0.05."""
        return self.p < LEVEL


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """The p-value of McNemar's exact test of two methods' correctness (N,) on the same images: the probability, if both
    are equally good, of an at least as uneven split of the images that only one gets right. 1 if there are none."""
    first, second = (number_array(values, "correct", ndim=1) > 0 for values in (first, second))
    if first.shape != second.shape:
        raise ValueError(f"Both methods need the same images, got {len(first)} and {len(second)}.")
    fewer, more = sorted((int((first & ~second).sum()), int((second & ~first).sum())))
    count = fewer + more
    k = np.arange(fewer + 1, dtype=np.float64)
    log_choose = (torch.lgamma(torch.tensor(count + 1.0, dtype=torch.float64)) - torch.lgamma(torch.as_tensor(k + 1))
                  - torch.lgamma(torch.as_tensor(count - k + 1)))
    return min(1.0, 2 * float(torch.exp(log_choose - count * np.log(2)).sum()))


def paired_bootstrap(
    metric: Callable[..., float], first: Sequence[ArrayLike], second: Sequence[ArrayLike], repeats: int = 1000,
    seed: int = 0,
) -> Difference:
    """`metric(*second) − metric(*first)` for two methods on the same images, each given as the metric's arguments.

    Every resample takes the same rows of both, so that the variance between images cancels: two methods whose own
    intervals overlap can still differ. To compare calibration, take `squared_calibration_error`: chance adds more to
    the ECE of one method than to that of another.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"Both methods need the same arrays, got {len(first)} and {len(second)}.")
    count = len(first)

    def difference(*rows: Array) -> float:
        return metric(*rows[count:]) - metric(*rows[:count])

    return difference_of(resamples(difference, *first, *second, repeats=repeats, seed=seed))


def difference_of(drawn: Array) -> Difference:
    """From a difference and its resamples (1 + repeats,), shifted to have the difference as their mean: percentiles,
    and as p the level at which the interval would touch zero, at least 2 / (1 + repeats)."""
    shifted = drawn - drawn.mean() + drawn[0]
    low, high = np.quantile(shifted, [LEVEL / 2, 1 - LEVEL / 2])
    beyond = min((shifted[1:] <= 0).sum(), (shifted[1:] >= 0).sum())
    return Difference(float(drawn[0]), float(low), float(high), min(1.0, 2 * float(beyond + 1) / len(drawn)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values of several tests: the probability of any false alarm among them stays at the level."""
    order = np.argsort(p_values, kind="stable")
    adjusted, highest = [1.0] * len(p_values), 0.0
    for place, test in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * float(p_values[test])))
        adjusted[test] = highest
    return adjusted


def corrected(found: Sequence[Difference]) -> list[Difference]:
    """The same differences with Holm's adjusted p-values."""
    return [replace(one, p=p) for one, p in zip(found, holm([one.p for one in found]), strict=True)]
