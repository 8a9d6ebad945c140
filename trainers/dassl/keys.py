"""Our settings inside Dassl's config, and ours made again from its config.

Keys of ours stand in Dassl's tree under their own names and hold None, which means: as the method has it. Where Dassl
has a key of the same name, its value is taken if it means the same. OPTIM does not: a yaml of CoOp's describes how
prompts are learnt there, so the step at test time has TTA.OPTIM for itself.
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
OF_TRAINING = ("OPTIM.", "DATALOADER.TRAIN_X.", "DATASET.NUM_SHOTS")  # those that do for methods that learn from labels
ELSEWHERE = ("SEED", "TAG", "TRAINER.NAME", "DATASET.NAME", "INPUT.SIZE")  # seen to one by one, or not set there at all
AT_TEST_TIME = "TTA."  # before OPTIM.*: the step that adapts to an image


def add_settings(cfg: CfgNode) -> None:
    """Adds what our methods can be told."""
    for key in leaves(get_cfg_default()):
        add_key(cfg, key)
        if key.startswith("OPTIM."):
            add_key(cfg, f"{AT_TEST_TIME}{key}")


def add_key(cfg: CfgNode, key: str) -> None:
    """`key` with the value None, unless the config has it."""
    *groups, leaf = key.split(".")
    node = cfg
    for group in groups:
        node = node.setdefault(group, CfgNode())
    node.setdefault(leaf, None)


def our_cfg(theirs: CfgNode, method: str, prompt: str = "") -> CfgNode:
    """The config of our engine for a config of Dassl's; `prompt` is a checkpoint that was asked for in its manner."""
    from dassl.config import cfg_default

    given, usual = leaves(theirs), leaves(cfg_default)
    trained = TRAINER_REGISTRY.get(method).trained
    pairs: dict[str, Any] = {}
    for key in leaves(get_cfg_default()):
        source = f"{AT_TEST_TIME}{key}" if key.startswith("OPTIM.") and not trained else key
        value = given.get(source)
        theirs_too = source in usual and source not in SHARED
        if value is None or source in ELSEWHERE or (theirs_too and not (trained and source.startswith(OF_TRAINING))):
            continue
        if theirs_too and value == usual[source]:
            continue  # nobody chose it
        pairs[key] = value
    pairs["SEED"] = max(theirs.SEED, 0)  # a negative one is Dassl's way of saying any
    if not theirs.USE_CUDA:
        pairs["DEVICE"] = "cpu"
    if prompt:
        pairs["MODEL.INIT_WEIGHTS"] = prompt
    name = theirs.DATASET.NAME
    cfg = build_cfg(method, str(dataset_file_of(name) or ""), opts=[
        item for key, value in pairs.items() if value != "" for item in (key, value)
    ])
    cfg.defrost()
    cfg.DATASET.NAME = name  # which only Dassl need know
    cfg.freeze()
    return cfg
