"""The images of a run: which ones, in which order, and split into parts, which are saved one by one."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from ...datasets.utils.errors import ConfigError

SLOTS = 100  # at most, of a correlated order
WINDOW = 64  # successive images among which classes are counted

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
    """Concatenated columns of batches or parts. One without a readable image lacks a method's own columns."""
    whole = [row for row in rows if len(row["index"])] or rows
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if all(name in row for row in whole)]
    return {name: np.concatenate([row[name] for row in rows if name in row]) for name in names}


def image_order(
    indices: Sequence[int], labels: Sequence[int], order: str, concentration: float, seed: int,
) -> list[int]:
    """`indices`, whose labels are given, in a seeded order: random, by label with the images of a class shuffled
    (sorted), or with neighbours of the same class (correlated)."""
    random = shuffled(indices, seed)
    if order == "random":
        return random
    if order == "sorted":
        label_of = dict(zip(indices, labels, strict=True))
        return sorted(random, key=label_of.__getitem__)
    rng = np.random.default_rng([seed, len(indices)])
    return correlated(np.asarray(indices), np.asarray(labels), concentration, rng)


def correlated(indices: np.ndarray, labels: np.ndarray, concentration: float, rng: np.random.Generator) -> list[int]:
    """Each class is divided among min(K, 100) slots in shares drawn from a symmetric Dirichlet distribution. Slot
    follows slot, and in each the classes come in random order, the images of a class in that of the test list. (Yuan et
    al., RoTTA, CVPR 2023.) No draw is rejected, so this ends for any concentration above 0."""
    classes = np.unique(labels)
    if len(classes) == len(labels):
        raise ConfigError(f"TEST.ORDER correlated cannot be drawn: each of the {len(labels)} images has a class of its "
                          f"own; use more images (TEST.LIMIT), or TEST.ORDER random or sorted")
    slots = min(len(classes), SLOTS)
    shares = rng.dirichlet(np.full(slots, concentration), len(classes))  # (K, slots)
    if not np.allclose(shares.sum(1), 1):
        raise ConfigError(f"TEST.CORRELATION {concentration:g} cannot be drawn: use a number such as 0.1")
    pieces = []
    for label, share in zip(classes, shares, strict=True):
        own = indices[labels == label]
        pieces.append(np.split(own, (share.cumsum()[:-1] * len(own)).astype(int)))
    return [int(index) for slot in range(slots) for k in rng.permutation(len(classes)) for index in pieces[k][slot]]


def long_tailed(labels: Sequence[int], exponent: float) -> list[int]:
    """Positions of images such that the class of rank r keeps at most n·r^−exponent of its images and at least one,
    where n is the size of the largest class.

    Ranks and images are drawn without replacement, so that no image counts twice. (LAME, CVPR 2022, draws with
    replacement.) They do not depend on the seed of the run: all seeds of a comparison have the same images.
    """
    found, rng = np.asarray(labels), np.random.default_rng(len(labels))
    classes, counts = np.unique(found, return_counts=True)
    if counts.max() == 1:
        raise ConfigError(f"TEST.IMBALANCE {exponent:g} cannot be drawn: each of the {len(labels)} images has a class "
                          f"of its own; use 0")
    kept: list[int] = []
    for rank, label in enumerate(rng.permutation(classes), start=1):
        own = np.flatnonzero(found == label)
        most = max(1, round(counts.max() * rank ** -exponent))
        kept += rng.choice(own, min(most, len(own)), replace=False).tolist()
    return sorted(kept)


def classes_in_window(labels: Sequence[int], window: int = WINDOW) -> float:
    """The mean number of classes among `window` successive images."""
    windows = [set(labels[start : start + window]) for start in range(max(1, len(labels) - window + 1))]
    return float(np.mean([len(classes) for classes in windows]))
