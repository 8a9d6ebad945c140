"""What is read of a data set."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import SEVERITIES
from .utils.errors import ConfigError

CLASS_SUBSETS = ("all", "base", "new")


@dataclass(frozen=True)
class DataOptions:
    """What is read of a data set; by default all of it.

    Attributes:
        num_shots: Labelled images per class; -1 = all.
        seed: Of the few-shot sample.
        subsample_classes: `all`, or CoOp's `base` or `new` classes.
        fewshot_dir: Where few-shot lists are kept; "" = with the data.
        corruption: Of the test images; "" = none.
        severity: Of the corruption.
        image_list: A file with the test images to use; "" = all.
        columns: The columns of a table, as in DATASET.COLUMNS.
        classnames: Words for the classes of own images, as in DATASET.CLASSNAMES.
    """

    num_shots: int = -1
    seed: int = 0
    subsample_classes: str = "all"
    fewshot_dir: str = ""
    corruption: str = ""
    severity: int = SEVERITIES[-1]
    image_list: str = ""
    columns: str = ""
    classnames: str = ""

    @classmethod
    def from_settings(cls, cfg: Any) -> DataOptions:
        """The options that the settings of a run ask for."""
        data = cfg.DATASET
        return cls(
            num_shots=data.NUM_SHOTS,
            # The seed draws the labelled images. Without these all seeds read the same.
            seed=cfg.SEED if data.NUM_SHOTS > 0 else 0,
            subsample_classes=data.SUBSAMPLE_CLASSES,
            fewshot_dir=data.FEWSHOT_DIR,
            corruption=data.CORRUPTION,
            severity=data.SEVERITY,
            image_list=data.IMAGE_LIST,
            columns=data.COLUMNS,
            classnames=data.CLASSNAMES,
        )

    def check(self) -> None:
        """Refuses values that no data set takes."""
        if self.subsample_classes not in CLASS_SUBSETS:
            raise ConfigError(f"DATASET.SUBSAMPLE_CLASSES is '{self.subsample_classes}'; it must "
                              f"be all, base or new")
        if self.num_shots == 0 or self.num_shots < -1:
            raise ConfigError(f"DATASET.NUM_SHOTS is {self.num_shots}; it must be -1 (all images) "
                              f"or at least 1")


ALL_DATA = DataOptions()
