"""promptcal's settings inside Dassl's config, and Dassl's config and data as promptcal's.

Our keys are added to Dassl's tree with the value None, which means the method's default. Where
Dassl has a key of the same name, its value is used if it means the same. OPTIM does not: CoOp's
yaml files describe there how prompts are trained, so the optimizer at test time has TTA.OPTIM.
"""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, Dataset, Datum
from ...datasets.utils.errors import DataError
from ..config.build import build_cfg, dataset_file_of
from ..config.dassl_compat import OPTIMIZER
from ..config.settings import get_cfg_default, leaves
from ..registry import TRAINER_REGISTRY

SHARED = (  # Dassl's keys that mean the same here
    "DATASET.ROOT", "DATASET.SUBSAMPLE_CLASSES", "DATALOADER.NUM_WORKERS", "MODEL.BACKBONE.NAME", "MODEL.INIT_WEIGHTS",
    "OUTPUT_DIR", "TEST.SPLIT",
)
# Keys that do so for methods that are trained.
OF_TRAINING = ("OPTIM.", "DATALOADER.TRAIN_X.", "DATASET.NUM_SHOTS")
# Handled one by one, or not read at all.
SEPARATE = ("SEED", "TAG", "TRAINER.NAME", "DATASET.NAME", "INPUT.SIZE")
AT_TEST_TIME = "TTA."  # prefix of OPTIM.* for the step that adapts to an image


def add_settings(cfg: CfgNode) -> None:
    """Adds the settings of all our methods that the config does not have, with the value None."""
    keys = list(leaves(get_cfg_default()))
    for key in [*keys, *(f"{AT_TEST_TIME}{key}" for key in keys if key.startswith("OPTIM."))]:
        *groups, leaf = key.split(".")
        node = cfg
        for group in groups:
            node = node.setdefault(group, CfgNode())
        node.setdefault(leaf, None)


def our_cfg(theirs: CfgNode, method: str, prompt: str = "", split: str | None = None) -> CfgNode:
    """Our config for a config of Dassl's; `prompt` is the checkpoint that --model-dir names,
    `split` is tested.
    """
    from dassl.config import cfg_default

    given, defaults = leaves(theirs), leaves(cfg_default)
    trained = TRAINER_REGISTRY.get(method).trained
    pairs: dict[str, Any] = {}
    # An optimizer that CoOp cannot use is refused.
    for key in [*leaves(get_cfg_default()), OPTIMIZER]:
        source = f"{AT_TEST_TIME}{key}" if key.startswith("OPTIM.") and not trained else key
        value = given.get(source)
        # Means the same only for methods that are trained.
        only_dassls = source in defaults and source not in SHARED
        means_training = trained and source.startswith(OF_TRAINING) and value != defaults.get(source)
        if value not in (None, "") and source not in SEPARATE and (means_training or not only_dassls):
            pairs[key] = value
    pairs["SEED"] = max(theirs.SEED, 0)  # Dassl's negative seed means any
    pairs |= {} if theirs.USE_CUDA else {"DEVICE": "cpu"}
    pairs |= {"MODEL.INIT_WEIGHTS": prompt} if prompt else {}
    pairs |= {"TEST.SPLIT": split} if split else {}
    name = theirs.DATASET.NAME
    cfg = build_cfg(method, str(dataset_file_of(name) or ""), opts=[item for pair in pairs.items() for item in pair])
    cfg.defrost()
    cfg.DATASET.NAME = name  # may be a data set of the checkout, which our registry does not know
    cfg.freeze()
    return cfg


class DasslDataset(Dataset):
    """The lists and class names that Dassl's reader has made, with its few-shot sample and its
    subset of classes.
    """

    def __init__(self, source: Any, cfg: CfgNode) -> None:
        super().__init__(Path(cfg.DATASET.ROOT).expanduser().absolute())  # as CoOp's readers do
        self.train, self.val, self.test = map(as_data, (source.train_x, source.val, source.test))
        names = source.lab2cname
        absent = {*range(max(names, default=0) + 1), *(item.label for item in self.test)} - set(names)
        if absent:
            raise DataError(f"the data set names no class {min(absent)}: Dassl takes class names from the training "
                            f"images, of which every class needs one")
        self.classnames = [str(names[label]) for label in sorted(names)]
        # Its template, and whether its public scripts use AugMix.
        if cfg.DATASET.NAME in DATASET_REGISTRY:
            known = DATASET_REGISTRY.get(cfg.DATASET.NAME)
            self.template, self.augmix = known.template, known.augmix


def as_data(items: Iterable[Any] | None) -> list[Datum]:
    return [Datum(str(Path(item.impath)), int(item.label), int(item.domain), item.classname) for item in items or ()]
