"""Keys and trainers of Dassl, CoOp and version 1.0 that do not exist here.

A yaml file or command line written for CoOp works as it is. Keys without a meaning here are
ignored, with one log line. Keys with another name are translated: those of the table's column
`alias`, and TRANSLATED. Values that ask for something unavailable are refused by name. Of settings
that version 1.0 had, the value that is used anyway is accepted, and any other is refused with what
to use.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...datasets.utils.errors import ConfigError
from .safe_yaml import plain_value
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


def alias_table() -> dict[str, tuple[str, Mapping[object, object]]]:
    """CoOp's key -> our key, and our value for each of its values."""
    aliases = {}
    for row in TABLE:
        if row.alias is not None:
            their_key, values = row.alias
            aliases[their_key] = (row.key, values)
    return aliases


ALIASES = alias_table()


def translate(key: str, value: object, source: str) -> tuple[dict[str, object], str]:
    """Our settings for one of CoOp's.

    Returns:
        The settings, none if it has no meaning here, and a line for the log if they differ.
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
    return ConfigError(
        f"{name} is not a promptcal trainer: run it in its own checkout, with our metrics and run "
        f"folders, by python -m promptcal.trainers.dassl train.py ... TEST.EVALUATOR Calibration")


def is_among(value: object, known: Iterable[object]) -> bool:
    """Whether a value is one of those known. It may be a list, which cannot be looked up."""
    return any(value == other for other in known)


def unavailable(key: str, value: object, source: str, known: Iterable[object]) -> ConfigError:
    choices = ("",) if known is EMPTY else tuple(known)
    words = " or ".join(repr(choice) for choice in choices)
    return ConfigError(
        f"{key} {value} in {source} is not offered here: it must be {words}, or left out"
    )


def is_ignored(key: str) -> bool:
    """Whether a key of CoOp's has no meaning here."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in IGNORED)


def is_dropped(key: str) -> bool:
    return key in DROPPED or key == OPTIMIZER


def check_dropped(key: str, value: object, source: str, trained: bool) -> str:
    """A line for the log about a setting that no longer exists.

    Args:
        key: One for which `is_dropped` holds.
        value: The given value.
        source: Where it comes from, for messages.
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
    """The value under its new name, and a line for the log; "" if nothing changes."""
    new_names = RENAMED_VALUES.get(key, {})
    if not isinstance(value, str) or value not in new_names:
        return value, ""
    return new_names[value], f"{key} {value} is {new_names[value]} here"
