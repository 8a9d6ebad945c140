"""A data set of Dassl's as one of ours: its own reader, also one that we have never heard of."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, Dataset, Datum
from ...datasets.utils.errors import DataError


class TheirData(Dataset):
    """The lists and class names that a reader of Dassl's has made, few shots and subsampled classes included."""

    def __init__(self, theirs: Any, cfg: CfgNode) -> None:
        super().__init__(Path(cfg.DATASET.ROOT).expanduser().absolute())  # as readers in CoOp's manner make it
        self.train, self.val, self.test = map(ours, (theirs.train_x, theirs.val, theirs.test))
        self.classnames = class_names(theirs.lab2cname)
        for item in self.test:
            if not 0 <= item.label < len(self.classnames):
                raise DataError(f"{item.impath} has label {item.label}, but {cfg.DATASET.NAME} names "
                                f"{len(self.classnames)} classes: its reader must name them all")
        if cfg.DATASET.NAME in DATASET_REGISTRY:  # the data set's own template, and what its public scripts do
            known = DATASET_REGISTRY.get(cfg.DATASET.NAME)
            self.template, self.augmix = known.template, known.augmix


def ours(items: Iterable[Any] | None) -> list[Datum]:
    return [Datum(str(Path(item.impath)), int(item.label), int(item.domain), item.classname) for item in items or ()]


def class_names(names: dict[int, str]) -> list[str]:
    """By label. Dassl takes them from the training images, so that a class without any has none."""
    absent = sorted(set(range(max(names, default=-1) + 1)) - set(names))
    if absent or not names:
        raise DataError(f"the data set names no class {absent[0] if absent else 0}: Dassl takes class names from the "
                        f"training images, of which every class needs one")
    return [str(names[label]) for label in range(len(names))]
