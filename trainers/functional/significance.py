"""Two methods on the same images: how far a figure moves between them, and whether that is more than chance."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .arrays import Array, ArrayLike, number_array
from .calibration import Interval, bootstrap


@dataclass(frozen=True)
class Difference(Interval):
    """How far a figure moves from one method to another, with its interval."""

    @property
    def real(self) -> bool:
        """Whether the interval leaves zero out: the images at hand tell the two methods apart."""
        return bool(self.low > 0 or self.high < 0)


def mcnemar(first: ArrayLike, second: ArrayLike) -> float:
    """McNemar's exact test of two methods' correctness (N,) on the same images: how probable is a split of the images
    that only one of them gets right that is at least as uneven, if both are equally good? 1 where there are none."""
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

    Every redraw takes the same rows of both, so what the images themselves add to both figures cancels: two methods
    whose own intervals overlap can still differ. Redrawn rows raise a binned error more where it is small, which pulls
    the difference towards zero: the interval errs on the side of "no difference", unless it is `centred`.
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
