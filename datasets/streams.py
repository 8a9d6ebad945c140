"""Draws long-tailed subsets of a split, and the order in which an online method sees its images."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .utils.errors import ConfigError

MOST_SLOTS = 100  # largest number of slots of a correlated order
WINDOW = 64  # number of successive images among which classes are counted


def shuffled(indices: Sequence[int], seed: int) -> list[int]:
    """Shuffles indices. The order depends on the seed and the number of indices alone.

    Args:
        indices: Positions of the images in the split.
        seed: Seed of the run.
    """
    rng = np.random.default_rng([seed, len(indices)])
    return rng.permutation(indices).tolist()


def image_order(
    indices: Sequence[int], labels: Sequence[int], order: str, concentration: float, seed: int,
) -> list[int]:
    """Returns the positions of the images in the order in which an online method sees them.

    Args:
        indices: Positions of the images in the split.
        labels: Labels of these images.
        order: Kind of order: `random`; `sorted` by label, with the images of a class shuffled; or
            `correlated`, with neighbours of the same class.
        concentration: Concentration of a correlated order; see `correlated`.
        seed: Seed of the run.
    """
    random_order = shuffled(indices, seed)
    if order == "random":
        return random_order
    if order == "sorted":
        label_of = dict(zip(indices, labels, strict=True))
        return sorted(random_order, key=label_of.__getitem__)
    rng = np.random.default_rng([seed, len(indices)])
    return correlated(np.asarray(indices), np.asarray(labels), concentration, rng)


def correlated(
    indices: np.ndarray, labels: np.ndarray, concentration: float, rng: np.random.Generator,
) -> list[int]:
    """Draws an order in which neighbours are often of one class. (Yuan et al., RoTTA, CVPR 2023.)

    Each class is divided among min(K, 100) slots in shares drawn from a symmetric Dirichlet
    distribution. Slot follows slot. Within a slot the classes come in random order, and the images
    of a class in that of the list. No draw is rejected, so this ends for any concentration.

    Args:
        indices: Positions of the images in the split, shape (N,).
        labels: Labels of these images, shape (N,).
        concentration: RoTTA's γ, above 0; lower is more correlated.
        rng: Source of random numbers.
    """
    classes = np.unique(labels)
    if len(classes) == len(labels):
        raise ConfigError(
            f"TEST.ORDER correlated cannot be drawn: each of the {len(labels)} images has a class "
            f"of its own; use more images (TEST.LIMIT), or TEST.ORDER random or sorted")
    slots = min(len(classes), MOST_SLOTS)
    shares = rng.dirichlet(np.full(slots, concentration), len(classes))  # (K, slots)
    if not np.allclose(shares.sum(1), 1):
        raise ConfigError(f"TEST.CORRELATION {concentration:g} cannot be drawn: use a number such "
                          f"as 0.1")
    pieces = []  # the images of each class by slot
    for label, share in zip(classes, shares, strict=True):
        images = indices[labels == label]
        # Ends of all slots but the last, whose images are the rest.
        ends = (share.cumsum()[:-1] * len(images)).astype(int)
        pieces.append(np.split(images, ends))
    order: list[int] = []
    for slot in range(slots):
        for position in rng.permutation(len(classes)):
            order.extend(pieces[position][slot].tolist())
    return order


def long_tailed(labels: Sequence[int], exponent: float) -> list[int]:
    """Draws images that form a long-tailed set, and returns their positions.

    The class of rank r keeps at most n · r^−exponent of its images and at least one, where n is
    the size of the largest class. Ranks and images are drawn without replacement, so that no image
    counts twice. (LAME, CVPR 2022, draws with replacement.) They do not depend on the seed of the
    run: all seeds of a comparison have the same images.

    Args:
        labels: Labels of all images.
        exponent: TEST.IMBALANCE, above 0; higher is less balanced.
    """
    all_labels = np.asarray(labels)
    rng = np.random.default_rng(len(labels))
    classes, counts = np.unique(all_labels, return_counts=True)
    if counts.max() == 1:
        raise ConfigError(f"TEST.IMBALANCE {exponent:g} cannot be drawn: each of the {len(labels)} "
                          f"images has a class of its own; use 0")
    positions: list[int] = []
    for rank, label in enumerate(rng.permutation(classes), start=1):
        of_class = np.flatnonzero(all_labels == label)
        most = max(1, round(counts.max() * rank ** -exponent))
        chosen = rng.choice(of_class, min(most, len(of_class)), replace=False)
        positions.extend(chosen.tolist())
    return sorted(positions)


def classes_in_window(labels: Sequence[int], window: int = WINDOW) -> float:
    """Returns the mean number of classes among successive images.

    Args:
        labels: Labels of the images in their order.
        window: Number of successive images.
    """
    counts = []
    for start in range(max(1, len(labels) - window + 1)):
        counts.append(len(set(labels[start : start + window])))
    return float(np.mean(counts))
