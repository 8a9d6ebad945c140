"""A run's images cut into parts: the unit that is saved, shared among ranks and lost at most by a kill."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def evenly(total: int, wanted: int) -> list[int]:
    """`wanted` places out of `total`, spread evenly; 0, or more than there are, means all."""
    wanted = min(wanted or total, total)
    return [i * total // wanted for i in range(wanted)]


def shuffled(places: Sequence[int], seed: int) -> list[int]:
    """The order in which an online method meets its images: the seed's, whatever else is drawn from it."""
    return np.random.default_rng([seed, len(places)]).permutation(places).tolist()


def chunks(items: Sequence, size: int) -> list[Sequence]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def part_name(part: Sequence[int]) -> str:
    """What a part's file is called, here and in the view cache."""
    return f"{part[0]:07d}-{part[-1]:07d}"


def joined(rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Columns of several batches or parts, one below the other. One without a readable image lacks what only a method
    can tell of an image, and has no rows to add. What a part of an older version lacks is left out of all."""
    whole = [row for row in rows if len(row["index"])] or rows
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if all(name in row for row in whole)]
    return {name: np.concatenate([row[name] for row in rows if name in row]) for name in names}
