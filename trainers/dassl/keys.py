"""promptcal's settings inside Dassl's config, and the config of a run made from Dassl's.

Our keys are added to Dassl's tree with the value None, which means the method's default. Where Dassl has a key of the
same name, its value is used if it means the same. OPTIM does not: CoOp's yaml files describe there how prompts are
trained, so the optimizer at test time has TTA.OPTIM.
"""
from __future__ import annotations

from typing import Any

from yacs.config import CfgNode

from ..config.build import build_cfg, dataset_file_of
from ..config.defaults import get_cfg_default
from ..config.roles import leaves
from ..registry import TRAINER_REGISTRY

SHARED = (  # Dassl's keys that mean the same here
    "DATASET.ROOT", "DATASET.SUBSAMPLE_CLASSES", "DATALOADER.NUM_WORKERS", "MODEL.BACKBONE.NAME", "MODEL.INIT_WEIGHTS",
    "OUTPUT_DIR", "TEST.SPLIT",
)
OF_TRAINING = ("OPTIM.", "DATALOADER.TRAIN_X.", "DATASET.NUM_SHOTS")  # keys that do so for methods that are trained
SEPARATE = ("SEED", "TAG", "TRAINER.NAME", "DATASET.NAME", "INPUT.SIZE")  # handled one by one, or not read at all
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


def our_cfg(theirs: CfgNode, method: str, prompt: str = "") -> CfgNode:
    """Our config for a config of Dassl's; `prompt` is the checkpoint that --model-dir names."""
    from dassl.config import cfg_default

    given, defaults = leaves(theirs), leaves(cfg_default)
    trained = TRAINER_REGISTRY.get(method).trained
    pairs: dict[str, Any] = {}
    for key in leaves(get_cfg_default()):
        source = f"{AT_TEST_TIME}{key}" if key.startswith("OPTIM.") and not trained else key
        value = given.get(source)
        in_dassl = source in defaults and source not in SHARED
        if value is None or source in SEPARATE or (in_dassl and not (trained and source.startswith(OF_TRAINING))):
            continue
        if in_dassl and value == defaults[source]:
            continue
        pairs[key] = value
    pairs["SEED"] = max(theirs.SEED, 0)  # Dassl's negative seed means any
    if not theirs.USE_CUDA:
        pairs["DEVICE"] = "cpu"
    if prompt:
        pairs["MODEL.INIT_WEIGHTS"] = prompt
    name = theirs.DATASET.NAME
    cfg = build_cfg(method, str(dataset_file_of(name) or ""), opts=[
        item for key, value in pairs.items() if value != "" for item in (key, value)
    ])
    cfg.defrost()
    cfg.DATASET.NAME = name  # may be a data set of the checkout, which our registry does not know
    cfg.freeze()
    return cfg
