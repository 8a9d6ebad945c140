"""Keys and trainers of Dassl and CoOp that do not exist here.

A yaml file or command line written for CoOp works as it is. Keys without a meaning here are ignored, with one log line;
keys with another name are translated; values that ask for something unavailable are refused by name.
"""
from __future__ import annotations

from collections.abc import Mapping

from ...datasets.utils.errors import ConfigError
from .safe_yaml import plain_value

# Ignored with any value. Full names, or prefixes that end in a dot.
IGNORED = (
    "VERSION", "VERBOSE", "TRAIN.", "LOSS.", "DATALOADER.TEST.", "DATALOADER.TRAIN_U.", "MODEL.HEAD.",
    "INPUT.INTERPOLATION", "INPUT.TRANSFORMS", "INPUT.NO_TRANSFORM", "INPUT.CROP_PADDING", "INPUT.RRCROP_SCALE",
    "DATALOADER.TRAIN_X.N_DOMAIN", "DATALOADER.TRAIN_X.N_INS", "OPTIM.STEPSIZE", "OPTIM.GAMMA", "OPTIM.WARMUP_MIN_LR",
    "TEST.PER_CLASS_RESULT", "TEST.COMPUTE_CMAT", "TRAINER.COOP.ALPHA", "TRAINER.COOP.W",
    *(f"TRAINER.{name}." for name in ("COCOOP", "MAPLE", "IVLP", "VPT", "PROMPTSRC")),
)
# CoOp's key -> its values that are understood -> our settings, none where the value describes what happens anyway.
# Other values are refused, unless the key is one of ours too.
EMPTY: Mapping[object, dict] = {"": {}, None: {}, "()": {}, (): {}}
TRANSLATED: Mapping[str, Mapping[object, dict]] = {
    "RESUME": EMPTY, "DATASET.SOURCE_DOMAINS": EMPTY, "DATASET.TARGET_DOMAINS": EMPTY, "MODEL.HEAD.NAME": EMPTY,
    "DATALOADER.TRAIN_X.SAMPLER": {"RandomSampler": {}}, "MODEL.BACKBONE.PRETRAINED": {True: {}},
    "OPTIM.LR_SCHEDULER": {"cosine": {}}, "OPTIM.WARMUP_TYPE": {"constant": {}}, "OPTIM.WARMUP_RECOUNT": {True: {}},
    "TEST.EVALUATOR": {"Classification": {}, "Calibration": {}}, "TEST.NO_TEST": {False: {}},
    "TEST.FINAL_MODEL": {"last_step": {}},
    "USE_CUDA": {True: {"DEVICE": "auto"}, False: {"DEVICE": "cpu"}},
    "TRAINER.COOP.PREC": {name: {"MODEL.PREC": ours} for name, ours in (
        ("fp16", "fp16"), ("amp", "fp16"), ("fp32", "fp32"))},
    # ProGrad and KgCoOp say only whether the context starts from words; CoOp says from which.
    "TRAINER.COOP.CTX_INIT": {True: {"TRAINER.COOP.CTX_INIT": "a photo of a"}, False: {"TRAINER.COOP.CTX_INIT": ""}},
    "TRAINER.NAME": {"ZeroshotCLIP": {"TRAINER.NAME": "ZeroShot", "PROMPT.TEMPLATE": "coop"},
                     "ZeroshotCLIP2": {"TRAINER.NAME": "ZeroShot", "PROMPT.TEMPLATE": "ensemble"}},
}
UNAVAILABLE_TRAINERS = ("CoCoOp", "MaPLe", "KgCoOp", "ProGrad", "PromptSRC", "IVLP", "VPT")


def translate(key: str, value: object, source: str) -> tuple[dict[str, object], str]:
    """Our settings for one of CoOp's, none if it has no meaning here, and a line for the log if they differ."""
    if key == "TRAINER.NAME" and value in UNAVAILABLE_TRAINERS:
        raise ConfigError(f"{value} is not a promptcal trainer: run it in its own checkout, with our metrics and run "
                          f"folders, by python -m promptcal.trainers.dassl train.py ... TEST.EVALUATOR Calibration")
    if key == "INPUT.SIZE" and (isinstance(value, list | tuple) or str(value).startswith(("(", "["))):
        return {}, ""  # height and width, which the backbone decides
    if key not in TRANSLATED:
        return {key: value}, ""
    known, plain = TRANSLATED[key], plain_value(value)
    plain = tuple(plain) if isinstance(plain, list) else plain
    if plain in tuple(known):
        ours = known[plain]
        return ours, f"{key} {value} is {' with '.join(f'{k} {v}' for k, v in ours.items())} here" if ours else ""
    if any(key in ours for ours in known.values()):
        return {key: value}, ""
    choices = " or ".join(repr(choice) for choice in (known if known is not EMPTY else ("",)))
    raise ConfigError(f"{key} {value} in {source} is not offered here: it must be {choices}, or left out")
