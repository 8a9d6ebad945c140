"""A data set that Dassl has read, as one of promptcal's."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, Dataset, Datum
from ...datasets.utils.errors import DataError


class DasslDataset(Dataset):
    """The lists and class names that Dassl's reader has made, with its few-shot sample and its subset of classes."""

    def __init__(self, source: Any, cfg: CfgNode) -> None:
        super().__init__(Path(cfg.DATASET.ROOT).expanduser().absolute())  # as CoOp's readers do
        self.train, self.val, self.test = map(as_data, (source.train_x, source.val, source.test))
        self.classnames = class_names(source.lab2cname)
        for item in self.test:
            if not 0 <= item.label < len(self.classnames):
                raise DataError(f"{item.impath} has label {item.label}, but {cfg.DATASET.NAME} names "
                                f"{len(self.classnames)} classes: its reader must name them all")
        if cfg.DATASET.NAME in DATASET_REGISTRY:  # its template, and whether its public scripts use AugMix
            known = DATASET_REGISTRY.get(cfg.DATASET.NAME)
            self.template, self.augmix = known.template, known.augmix


def as_data(items: Iterable[Any] | None) -> list[Datum]:
    return [Datum(str(Path(item.impath)), int(item.label), int(item.domain), item.classname) for item in items or ()]


def class_names(names: dict[int, str]) -> list[str]:
    """Class names by label. Dassl takes them from the training images, so a class without any has no name."""
    absent = sorted(set(range(max(names, default=-1) + 1)) - set(names))
    if absent or not names:
        raise DataError(f"the data set names no class {absent[0] if absent else 0}: Dassl takes class names from the "
                        f"training images, of which every class needs one")
    return [str(names[label]) for label in range(len(names))]
