"""Translates or refuses keys, values and config files of Dassl, CoOp and version 1.0.

A yaml file or command line written for CoOp works as it is. Keys without a meaning here are
ignored, with one log line. Keys with another name are translated: those of the table's column
`alias`, and TRANSLATED. Values that ask for something unavailable are refused by name. Of settings
that version 1.0 had, the value that is used anyway is accepted, and any other is refused with what
to use.

CoOp's scripts name config files that are not here, such as `trainers/CoOp/vit_b16_ep50.yaml`. Their
names say what they hold: the backbone, the number of epochs and whether the context starts from
words. All else in them is the same in each file.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath

from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import plain_value
from .registry import TRAINER_REGISTRY, registered_name
from .table import TABLE

# Ignored with any value. Full names, or prefixes that end in a dot.
IGNORED = (
    "VERSION", "VERBOSE", "TRAIN.", "LOSS.", "DATALOADER.TEST.", "DATALOADER.TRAIN_U.",
    "MODEL.HEAD.", "INPUT.INTERPOLATION", "INPUT.TRANSFORMS", "INPUT.NO_TRANSFORM",
    "INPUT.CROP_PADDING", "INPUT.RRCROP_SCALE", "DATALOADER.TRAIN_X.N_DOMAIN",
    "DATALOADER.TRAIN_X.N_INS", "OPTIM.STEPSIZE", "OPTIM.GAMMA", "OPTIM.WARMUP_MIN_LR",
    "TEST.PER_CLASS_RESULT", "TEST.COMPUTE_CMAT", "TRAINER.COOP.ALPHA", "TRAINER.COOP.W",
    "TRAINER.COCOOP.", "TRAINER.MAPLE.", "TRAINER.IVLP.", "TRAINER.VPT.", "TRAINER.PROMPTSRC.",
)
# Values of CoOp's keys that describe what happens here anyway. Others are refused.
EMPTY = ("", None, "()", ())
AS_HERE: Mapping[str, tuple] = {
    "RESUME": EMPTY,
    "DATASET.SOURCE_DOMAINS": EMPTY,
    "DATASET.TARGET_DOMAINS": EMPTY,
    "MODEL.HEAD.NAME": EMPTY,
    "DATALOADER.TRAIN_X.SAMPLER": ("RandomSampler",),
    "MODEL.BACKBONE.PRETRAINED": (True,),
    "OPTIM.LR_SCHEDULER": ("cosine",),
    "OPTIM.WARMUP_TYPE": ("constant",),
    "OPTIM.WARMUP_RECOUNT": (True,),
    "TEST.EVALUATOR": ("Classification", "Calibration"),
    "TEST.NO_TEST": (False,),
    "TEST.FINAL_MODEL": ("last_step",),
}
# CoOp's key -> one of its values -> our settings. Other values of these keys are ours too.
TRANSLATED: Mapping[str, Mapping[object, Mapping[str, object]]] = {
    # ProGrad and KgCoOp say only whether the context starts from words; CoOp says from which.
    "TRAINER.COOP.CTX_INIT": {
        True: {"TRAINER.COOP.CTX_INIT": "a photo of a"},
        False: {"TRAINER.COOP.CTX_INIT": ""},
    },
    "TRAINER.NAME": {
        "ZeroshotCLIP": {"TRAINER.NAME": "ZeroShot", "PROMPT.TEMPLATE": "coop"},
        "ZeroshotCLIP2": {"TRAINER.NAME": "ZeroShot", "PROMPT.TEMPLATE": "ensemble"},
    },
}
# Values that have another name now: key -> {old value: new value}.
RENAMED_VALUES = {
    "TRAINER.PENALTY.RANGE": {"flow": "confident"},
    "TRAINER.ZSNORM.RANGE": {"flow": "confident"},
}
# Key -> the only value that is still possible, and what to use instead of another one.
DROPPED = {
    "TEST.SALS": (False, "the report measures SaLS for every run: python tools/report.py FOLDER"),
    "TTA.JACOBIAN_GB": (4.5, "use TTA.JACOBIAN on, which has no limit of memory, or off"),
}
OPTIMIZER = "OPTIM.NAME"
UNAVAILABLE_TRAINERS = ("CoCoOp", "MaPLe", "KgCoOp", "ProGrad", "PromptSRC", "IVLP", "VPT")

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


def alias_table() -> dict[str, tuple[str, Mapping[object, object]]]:
    """CoOp's key -> our key, and our value for each of its values."""
    aliases = {}
    for row in TABLE:
        if row.alias is not None:
            their_key, values = row.alias
            aliases[their_key] = (row.key, values)
    return aliases


ALIASES = alias_table()
# Keys of ours with values that mean something else in CoOp's files, or that have another name now.
OUR_KEYS_WITH_OTHER_VALUES = frozenset(["INPUT.SIZE", *TRANSLATED, *RENAMED_VALUES])


def translate(key: str, value: object, source: str) -> tuple[dict[str, object], str]:
    """Returns our settings for one of CoOp's.

    Args:
        key: The full key in CoOp.
        value: The value, as text or read from yaml.
        source: The file or command that the setting comes from, for messages.

    Returns:
        The settings, none if it has no meaning here; and a line for the log, "" if our setting is
        the same.
    """
    if key == "TRAINER.NAME" and value in UNAVAILABLE_TRAINERS:
        raise unavailable_trainer(str(value))
    if key == "INPUT.SIZE" and (
        isinstance(value, list | tuple) or str(value).startswith(("(", "["))
    ):
        return {}, ""  # height and width, which the backbone decides
    plain = plain_value(value)
    if isinstance(plain, list):
        plain = tuple(plain)
    if key in AS_HERE:
        if not is_among(plain, AS_HERE[key]):
            raise unavailable(key, value, source, AS_HERE[key])
        return {}, ""
    if key in ALIASES:
        our_key, values = ALIASES[key]
        if not is_among(plain, values):
            raise unavailable(key, value, source, values)
        our_value = values[plain]
        return {our_key: our_value}, f"{key} {value} is {our_key} {our_value} here"
    if key in TRANSLATED and is_among(plain, TRANSLATED[key]):
        ours = dict(TRANSLATED[key][plain])
        words = " with ".join(f"{our_key} {our_value}" for our_key, our_value in ours.items())
        return ours, f"{key} {value} is {words} here"
    return {key: value}, ""


def unavailable_trainer(name: str) -> ConfigError:
    """The error for a trainer of another checkout, such as MaPLe."""
    return ConfigError(
        f"{name} is not a promptcal trainer: run it in its own checkout, with our metrics and run "
        f"folders, by python -m promptcal.trainers.dassl train.py ... TEST.EVALUATOR Calibration")


def is_among(value: object, known: Iterable[object]) -> bool:
    """Whether a value is one of those known. It may be a list, which cannot be looked up."""
    return any(value == other for other in known)


def unavailable(key: str, value: object, source: str, known: Iterable[object]) -> ConfigError:
    """Returns the error for a value of CoOp's that is not offered here.

    Args:
        key: The full key in CoOp.
        value: The value that was given.
        source: The file or command that it comes from.
        known: The values that are offered.
    """
    choices = ("",) if known is EMPTY else tuple(known)
    words = " or ".join(repr(choice) for choice in choices)
    return ConfigError(
        f"{key} {value} in {source} is not offered here: it must be {words}, or left out"
    )


def is_ignored(key: str) -> bool:
    """Whether a key of CoOp's has no meaning here."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in IGNORED)


def is_dropped(key: str) -> bool:
    """Whether a key is no setting any more, or one of CoOp's that has a single value here."""
    return key in DROPPED or key == OPTIMIZER


def check_dropped(key: str, value: object, source: str, trained: bool) -> str:
    """Returns a line for the log about a setting that no longer exists.

    Args:
        key: A key for which `is_dropped` holds.
        value: The given value.
        source: The file or command that it comes from, for messages.
        trained: Whether the method learns from labelled images. It decides the optimizer.

    Raises:
        ConfigError: If the value is not the one that is used anyway.
    """
    if key == OPTIMIZER:
        only_value: object = "sgd" if trained else "adamw"
        instead = f"{only_value} is the only optimizer here: leave it out"
    else:
        only_value, instead = DROPPED[key]
    if plain_value(value) != only_value:
        raise ConfigError(f"{key} {value} in {source} is no longer a setting: {instead}")
    return f"{key} is no longer a setting; {only_value} is what is used"


def rename_value(key: str, value: object) -> tuple[object, str]:
    """Returns a value under its new name.

    Args:
        key: The full key.
        value: The value, maybe under the name that it had in an earlier version.

    Returns:
        The value, and a line for the log; "" if nothing changes.
    """
    new_names = RENAMED_VALUES.get(key, {})
    if not isinstance(value, str) or value not in new_names:
        return value, ""
    return new_names[value], f"{key} {value} is {new_names[value]} here"


def coop_settings(name: str) -> dict[str, object] | None:
    """Returns the settings of a file that CoOp's scripts name.

    Args:
        name: The value of --config-file, such as `configs/trainers/CoOp/rn50_ep100.yaml`. The
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


def describes_training(source: str, values: Collection[tuple[str, object]]) -> bool:
    """Whether a layer is a file in which OPTIM is about training prompts, as in CoOp's files.

    Args:
        source: The file, or where else the settings come from.
        values: Pairs of key and value.
    """
    if source.endswith((".yaml", ".yml")) and "OPTIM.LR_SCHEDULER" in dict(values):
        return True
    return coop_settings(source) is not None


def refuse_other_trainers(name: str) -> None:
    """Refuses a config file of a trainer that exists in other checkouts only."""
    folder = PurePath(name).parent.name
    if folder in UNAVAILABLE_TRAINERS:
        raise unavailable_trainer(folder)


def describe(name: str, settings: dict[str, object]) -> str:
    """Returns the log line about a file that stands for settings.

    Args:
        name: The name of the file, as the user gave it.
        settings: The settings by their full keys.
    """
    pairs = [f"{key} {value}" for key, value in settings.items()]
    return f"{name} is not here; by CoOp's naming it stands for {', '.join(pairs)}"
