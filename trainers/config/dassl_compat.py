"""Keys and trainers of Dassl and CoOp that do not exist here.

A yaml file or command line written for CoOp works as it is. Keys without a meaning here are ignored, with one log line;
keys with another name are translated; values that ask for something unavailable are refused by name.
"""
from __future__ import annotations

from collections.abc import Mapping

from ...datasets.utils.errors import ConfigError
from .roles import longest_match
from .safe_yaml import plain_value

# Ignored with any value. Full names, or prefixes that end in a dot.
IGNORED = (
    "VERSION", "VERBOSE", "TRAIN.PRINT_FREQ", "TRAIN.CHECKPOINT_FREQ", "TRAIN.COUNT_ITER",
    "INPUT.SIZE", "INPUT.INTERPOLATION", "INPUT.TRANSFORMS", "INPUT.NO_TRANSFORM", "INPUT.PIXEL_MEAN",
    "INPUT.PIXEL_STD", "INPUT.CROP_PADDING", "INPUT.RRCROP_SCALE", "INPUT.CUTOUT_N", "INPUT.CUTOUT_LEN",
    "INPUT.GN_MEAN", "INPUT.GN_STD", "INPUT.RANDAUGMENT_N", "INPUT.RANDAUGMENT_M", "INPUT.COLORJITTER_B",
    "INPUT.COLORJITTER_C", "INPUT.COLORJITTER_S", "INPUT.COLORJITTER_H", "INPUT.RGS_P", "INPUT.GB_P", "INPUT.GB_K",
    "DATASET.NUM_LABELED", "DATASET.VAL_PERCENT", "DATASET.STL10_FOLD", "DATASET.ALL_AS_UNLABELED",
    "DATASET.CIFAR_C_TYPE", "DATASET.CIFAR_C_LEVEL", "DATALOADER.TEST.", "DATALOADER.TRAIN_U.",
    "DATALOADER.TRAIN_X.N_DOMAIN", "DATALOADER.TRAIN_X.N_INS", "DATALOADER.RETURN_IMG0", "MODEL.HEAD.",
    "OPTIM.STEPSIZE", "OPTIM.GAMMA", "OPTIM.RMSPROP_ALPHA", "OPTIM.WARMUP_MIN_LR", "OPTIM.NEW_LAYERS",
    "OPTIM.BASE_LR_MULT", "TEST.PER_CLASS_RESULT", "TEST.COMPUTE_CMAT",
    *(f"TRAINER.{name}." for name in (
        "COCOOP", "MCD", "MME", "CDAC", "SE", "M3SDA", "DAEL", "CROSSGRAD", "DDAIG", "DAELDG", "DOMAINMIX",
        "ENTMIN", "MEANTEACHER", "MIXMATCH", "FIXMATCH", "MAPLE", "IVLP", "VPT", "PROMPTSRC")),
    "LOSS.", "TRAINER.COOP.ALPHA", "TRAINER.COOP.W",  # ProGrad's and KgCoOp's
)
# Ignored with the values that describe what happens here anyway. Others are refused.
EMPTY: tuple = ("", "()", (), [], None)
FIXED: Mapping[str, tuple] = {
    "RESUME": EMPTY, "DATASET.SOURCE_DOMAINS": EMPTY, "DATASET.TARGET_DOMAINS": EMPTY, "MODEL.HEAD.NAME": EMPTY,
    "DATALOADER.TRAIN_X.SAMPLER": ("RandomSampler",), "DATALOADER.K_TRANSFORMS": (1,),
    "MODEL.BACKBONE.PRETRAINED": (True,), "OPTIM.LR_SCHEDULER": ("cosine",), "OPTIM.WARMUP_TYPE": ("constant",),
    "OPTIM.WARMUP_RECOUNT": (True,), "OPTIM.SGD_NESTEROV": (False,), "OPTIM.SGD_DAMPNING": (0,),
    "OPTIM.STAGED_LR": (False,), "OPTIM.ADAM_BETA1": (0.9,), "OPTIM.ADAM_BETA2": (0.999,),
    "TEST.EVALUATOR": ("Classification", "Calibration"), "TEST.NO_TEST": (False,), "TEST.FINAL_MODEL": ("last_step",),
}
# CoOp's key -> our key, and our value for each of its values.
RENAMED: Mapping[str, tuple[str, Mapping[object, str]]] = {
    "USE_CUDA": ("DEVICE", {True: "auto", False: "cpu"}),
    "TRAINER.COOP.PREC": ("MODEL.PREC", {"fp16": "fp16", "amp": "fp16", "fp32": "fp32"}),
}
# TRAINER.COOP.CTX_INIT: ProGrad and KgCoOp say only whether the context starts from words; CoOp says which.
INITIAL_WORDS = {"True": "a photo of a", "False": ""}
# CoOp's zero-shot baselines are one trainer here, with other templates.
TRAINERS = {"ZeroshotCLIP": ("ZeroShot", "coop"), "ZeroshotCLIP2": ("ZeroShot", "ensemble")}
UNAVAILABLE_TRAINERS = ("CoCoOp", "MaPLe", "KgCoOp", "ProGrad", "PromptSRC", "IVLP", "VPT")


def is_ignored(key: str, value: object, source: str) -> bool:
    """Whether a key that is not one of ours is ignored; refuses values that ask for something unavailable."""
    if key not in FIXED:
        return bool(longest_match(key, IGNORED))
    if plain_value(value) not in FIXED[key]:
        known = " or ".join(repr(value) for value in FIXED[key] if value not in EMPTY[1:])
        raise ConfigError(f"{key} {value} in {source} is not offered here: it must be {known}, or left out")
    return True


def translate(key: str, value: object, source: str) -> tuple[str, object, str]:
    """Our key and value for one of CoOp's, and a line about it if they differ."""
    if key in RENAMED:
        (ours, values), value = RENAMED[key], plain_value(value)
        if value not in tuple(values):
            raise ConfigError(f"{key} in {source} is {value!r}; it must be one of {', '.join(map(str, values))}")
        return ours, values[value], f"{key} in {source} is {ours} {values[value]} here"
    if key == "TRAINER.COOP.CTX_INIT" and str(value) in INITIAL_WORDS:
        words = INITIAL_WORDS[str(value)]
        return key, words, f"{key} in {source} is '{words}' here" if words else ""
    return key, value, ""


def translate_trainer(name: str) -> tuple[str, dict[str, object]]:
    """Our name for a trainer of CoOp's, and the settings that go with it."""
    if name in UNAVAILABLE_TRAINERS:
        raise ConfigError(f"{name} is no trainer of promptcal: run it in its own checkout, with our measures and run "
                          f"folders, by python -m promptcal.trainers.dassl train.py ... TEST.EVALUATOR Calibration")
    ours, template = TRAINERS.get(name, (name, ""))
    return ours, {"PROMPT.TEMPLATE": template} if template else {}
