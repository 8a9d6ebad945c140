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
    "DATASET.ROOT", "DATASET.SUBSAMPLE_CLASSES", "DATALOADER.NUM_WORKERS", "MODEL.BACKBONE.NAME",
    "MODEL.INIT_WEIGHTS", "OUTPUT_DIR", "TEST.SPLIT",
)
# Keys that do so for methods that are trained.
OF_TRAINING = ("OPTIM.", "DATALOADER.TRAIN_X.", "DATASET.NUM_SHOTS")
# Handled one by one, or not read at all.
SEPARATE = ("SEED", "TAG", "TRAINER.NAME", "DATASET.NAME", "INPUT.SIZE")
AT_TEST_TIME = "TTA."  # prefix of OPTIM.* for the step that adapts to an image


def add_settings(cfg: CfgNode) -> None:
    """Adds the settings of all our methods that the config does not have, with the value None."""
    our_keys = list(leaves(get_cfg_default()))
    keys_of_step = [f"{AT_TEST_TIME}{key}" for key in our_keys if key.startswith("OPTIM.")]
    for key in [*our_keys, *keys_of_step]:
        *groups, leaf = key.split(".")
        node = cfg
        for group in groups:
            node = node.setdefault(group, CfgNode())
        node.setdefault(leaf, None)


def our_cfg(theirs: CfgNode, method: str, prompt: str = "", split: str | None = None) -> CfgNode:
    """Our config for a config of Dassl's.

    Args:
        theirs: Dassl's config, with our settings.
        method: The name of the method in our registry.
        prompt: The checkpoint that --model-dir names; "" if none is given.
        split: What is tested; None = what the config says.
    """
    from dassl.config import cfg_default

    values = leaves(theirs)
    defaults = leaves(cfg_default)
    trained = TRAINER_REGISTRY.get(method).trained
    settings: dict[str, Any] = {}
    # OPTIM.NAME is no setting of ours. It is passed on, because `build_cfg` refuses optimizers that
    # training does not have here.
    for key in [*leaves(get_cfg_default()), OPTIMIZER]:
        their_key = key
        if key.startswith("OPTIM.") and not trained:
            their_key = f"{AT_TEST_TIME}{key}"
        value = values.get(their_key)
        if value in (None, "") or their_key in SEPARATE:
            continue
        if their_key not in defaults or their_key in SHARED:
            # Our key, which `add_settings` has added, or one of Dassl's with the same meaning.
            settings[key] = value
        elif trained and their_key.startswith(OF_TRAINING) and value != defaults[their_key]:
            # A key of Dassl's own, which means the same only for methods that are trained.
            settings[key] = value
    settings["SEED"] = max(theirs.SEED, 0)  # Dassl's negative seed means any
    if not theirs.USE_CUDA:
        settings["DEVICE"] = "cpu"
    if prompt:
        settings["MODEL.INIT_WEIGHTS"] = prompt
    if split:
        settings["TEST.SPLIT"] = split
    pairs: list[Any] = []
    for key, value in settings.items():
        pairs += [key, value]
    name = theirs.DATASET.NAME
    cfg = build_cfg(method, str(dataset_file_of(name) or ""), opts=pairs)
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
        self.train = as_data(source.train_x)
        self.val = as_data(source.val)
        self.test = as_data(source.test)
        names = source.lab2cname
        labels = set(range(max(names, default=0) + 1))
        labels.update(item.label for item in self.test)
        absent = labels - set(names)
        if absent:
            raise DataError(f"the data set names no class {min(absent)}: Dassl takes class names "
                            f"from the training images, of which every class needs one")
        self.classnames = [str(names[label]) for label in sorted(names)]
        if cfg.DATASET.NAME in DATASET_REGISTRY:
            our_reader = DATASET_REGISTRY.get(cfg.DATASET.NAME)
            self.template = our_reader.template
            self.augmix = our_reader.augmix  # whether the public scripts use it on this data set


def as_data(items: Iterable[Any] | None) -> list[Datum]:
    """Dassl's list of images as ours.

    Args:
        items: Objects with `impath`, `label`, `domain` and `classname`; None is an empty list.
    """
    data = []
    for item in items or ():
        path = str(Path(item.impath))
        data.append(Datum(path, int(item.label), int(item.domain), item.classname))
    return data
