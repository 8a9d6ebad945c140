"""The images of a run, split into parts, which are saved one by one: a kill loses at most one of them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")
Columns = Mapping[str, np.ndarray]


def evenly(total: int, wanted: int) -> list[int]:
    """`wanted` positions out of `total`, evenly spaced; 0, or more than there are, means all."""
    wanted = min(wanted or total, total)
    return [i * total // wanted for i in range(wanted)]


def shuffled(indices: Sequence[int], seed: int) -> list[int]:
    """The order in which an online method sees its images. It depends on the seed and their number alone."""
    return np.random.default_rng([seed, len(indices)]).permutation(indices).tolist()


def chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def joined(rows: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Concatenated columns of batches or parts. One without a readable image lacks a method's own columns, and has no
    rows to add."""
    whole = [row for row in rows if len(row["index"])] or rows
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if all(name in row for row in whole)]
    return {name: np.concatenate([row[name] for row in rows if name in row]) for name in names}
