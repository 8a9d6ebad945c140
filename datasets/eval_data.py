"""Selects the images that a run predicts, and their order."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from .base import Dataset, Datum
from .selection import image_order, long_tailed
from .utils.errors import DataError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvalData:
    """The test or validation images of a run.

    Attributes:
        dataset: The reader.
        split: Name of the split: `test` or `val`.
        items: All images of the split.
        classnames: Words for the classes, by label.
        indices: Positions in `items` of the images of the run, ascending.
        selected: The images of the run, in the order of `indices`.
        order: The same positions as `indices`, in the order in which the method sees the images.
        subset: The part of the data set in words; "" for the whole split.
        available: Number of images that TEST.LIMIT selects from.
    """

    dataset: Dataset
    split: str
    items: Sequence[Datum]
    classnames: Sequence[str]
    indices: Sequence[int]
    selected: Sequence[Datum]
    order: Sequence[int]
    subset: str
    available: int

    @classmethod
    def from_settings(cls, cfg: Any, dataset: Dataset, online: bool) -> EvalData:
        """Selects the images that the branches DATASET and TEST of the settings ask for.

        Args:
            cfg: All settings.
            dataset: The reader, made from the same settings.
            online: Whether the method sees the images in the order TEST.ORDER.
        """
        items = dataset.test
        if cfg.TEST.SPLIT == "val":
            items = dataset.val
        total = len(items)
        if total == 0:
            raise DataError(f"{cfg.DATASET.NAME} has no {cfg.TEST.SPLIT} images")
        labels = [item.label for item in items]
        candidates: Sequence[int] = range(total)
        if cfg.TEST.IMBALANCE:
            candidates = long_tailed(labels, cfg.TEST.IMBALANCE)
        indices = evenly_spaced(candidates, cfg.TEST.LIMIT)
        order: Sequence[int] = indices
        if online:
            labels_of_run = [labels[index] for index in indices]
            order = image_order(indices, labels_of_run, cfg.TEST.ORDER, cfg.TEST.CORRELATION,
                                cfg.SEED)
        subset = describe_subset(cfg, len(indices), len(candidates))
        name = cfg.DATASET.LABEL or cfg.DATASET.NAME
        logger.info("%s: %d of %d %s images, %d classes", name, len(indices), total,
                    cfg.TEST.SPLIT, len(dataset.classnames))
        return cls(
            dataset=dataset,
            split=cfg.TEST.SPLIT,
            items=items,
            classnames=dataset.classnames,
            indices=indices,
            selected=[items[index] for index in indices],
            order=order,
            subset=subset,
            available=len(candidates),
        )

    def read_image(self, index: int) -> Image.Image:
        """Reads the image at a position of the split."""
        return self.dataset.read_image(self.items[index])


def evenly_spaced(candidates: Sequence[int], wanted: int) -> list[int]:
    """Selects some of the candidates, spread evenly over them.

    Args:
        candidates: Positions of images.
        wanted: Number of images to select; 0, or more than there are, means all.
    """
    total = len(candidates)
    count = min(wanted or total, total)
    # Data sets list class after class, so the first images would all be of few classes.
    return [candidates[number * total // count] for number in range(count)]


def describe_subset(cfg: Any, count: int, candidates: int) -> str:
    """Says which part of a data set is used; "" for all of it.

    Args:
        cfg: All settings.
        count: Number of images of the run.
        candidates: Number of images that TEST.LIMIT selects from.
    """
    words = []
    if cfg.DATASET.SUBSAMPLE_CLASSES != "all":
        words.append(f"{cfg.DATASET.SUBSAMPLE_CLASSES} classes")
    if cfg.DATASET.IMAGE_LIST:
        words.append("image list")
    if cfg.TEST.IMBALANCE:
        words.append(f"imbalance {cfg.TEST.IMBALANCE:g}")
    if count < candidates:
        words.append(f"{count:,} of {candidates:,} images")
    return ", ".join(words)
