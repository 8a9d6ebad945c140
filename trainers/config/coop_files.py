"""Config files that CoOp's scripts name and that are not here:
`configs/trainers/CoOp/vit_b16_ep50.yaml`.

Their names say what they hold: the backbone, the number of epochs and whether the context starts
from words. All else in them is the same in each file.
"""
from __future__ import annotations

import re
from pathlib import PurePath

from .dassl_compat import UNAVAILABLE_TRAINERS, unavailable_trainer
from .registry import TRAINER_REGISTRY, registered_name

# The first part of a file's name -> the backbone.
BACKBONE_NAMES = {
    "rn50": "RN50",
    "rn101": "RN101",
    "vit_b32": "ViT-B/32",
    "vit_b16": "ViT-B/16",
    "vit_l14": "ViT-L/14",
}
# `_ep50`: epochs; `_ctxv1`: the context starts from words; `_val`: without settings of training.
FILE_NAME = re.compile(
    r"(?P<backbone>" + "|".join(BACKBONE_NAMES) + r")"
    r"((?P<val>_val)|(_ep(?P<epochs>[1-9]\d{0,3}))?(?P<words>_ctxv1)?)(\.ya?ml)?",
)
DEFAULT_EPOCHS = 200
WORDS = "a photo of a"


def coop_settings(name: str) -> dict[str, object] | None:
    """The settings of a file that CoOp's scripts name.

    Args:
        name: What was given as --config-file, such as `configs/trainers/CoOp/rn50_ep100.yaml`. The
            folder above the file is a trainer's name.

    Returns:
        The settings by their full keys; None if CoOp has no file of this name.
    """
    path = PurePath(name)
    parts = FILE_NAME.fullmatch(path.name)
    if parts is None or registered_name(path.parent.name) not in TRAINER_REGISTRY:
        return None
    settings: dict[str, object] = {"MODEL.BACKBONE.NAME": BACKBONE_NAMES[parts["backbone"]]}
    if parts["val"]:
        return settings
    settings["DATALOADER.TRAIN_X.BATCH_SIZE"] = 32
    settings["OPTIM.LR"] = 0.002
    settings["OPTIM.MAX_EPOCH"] = int(parts["epochs"] or DEFAULT_EPOCHS)
    settings["OPTIM.WARMUP_EPOCH"] = 1
    settings["OPTIM.WARMUP_CONS_LR"] = 1e-5
    if parts["words"]:
        settings["TRAINER.COOP.CTX_INIT"] = WORDS
    return settings


def refuse_other_trainers(name: str) -> None:
    """Refuses a config file of a trainer that exists in other checkouts only."""
    folder = PurePath(name).parent.name
    if folder in UNAVAILABLE_TRAINERS:
        raise unavailable_trainer(folder)


def describe(name: str, settings: dict[str, object]) -> str:
    """The log line about a file that stands for settings."""
    pairs = [f"{key} {value}" for key, value in settings.items()]
    return f"{name} is not here; by CoOp's naming it stands for {', '.join(pairs)}"
