"""Comparison of two methods on the same images: paired bootstrap and McNemar's test."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .arrays import Array, ArrayLike, number_array
from .calibration import Interval, bootstrap


@dataclass(frozen=True)
class Difference(Interval):
    """The difference of a metric between two methods, with its interval."""

    @property
    def real(self) -> bool:
        """Whether the interval excludes zero."""
        return bool(self.low > 0 or self.high < 0)

    @property
    def points(self) -> tuple[float, float, float]:
        """Value and interval in percentage points."""
        return 100 * float(self.value), 100 * float(self.low), 100 * float(self.high)


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """The p-value of McNemar's exact test of two methods' correctness (N,) on the same images: the probability, if both
    are equally good, of a split of the images that only one gets right that is at least as uneven. 1 if there are
    none."""
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
    level: float = 0.95, seed: int = 0, centred: bool = False, group: ArrayLike | None = None,
) -> Difference:
    """`metric(*second) − metric(*first)` for two methods on the same images, each given as the metric's arguments.

    Every redraw takes the same rows of both, so that the variance between images cancels: two methods whose own
    intervals overlap can still differ. Redrawing raises small binned errors more than large ones, which pulls the
    difference towards zero: the interval is conservative unless it is `centred`.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"Both methods need the same arrays, got {len(first)} and {len(second)}.")
    count = len(first)

    def difference(*rows: Array) -> float:
        return metric(*rows[count:]) - metric(*rows[:count])

    found = bootstrap(
        difference, *first, *second, repeats=repeats, level=level, seed=seed, centred=centred, group=group,
    )
    return Difference(found.value, found.low, found.high)
