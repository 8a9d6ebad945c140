"""Keys and trainers of Dassl's and CoOp's that are none of ours, and what becomes of them.

A yaml file or a command that was written for CoOp is taken as it is: what has no meaning here is left alone and said,
what has another name is put there, and what asks for something that is not offered is refused by name.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...datasets.utils.errors import ConfigError

EMPTY = ((), [], "", "()", None)


@dataclass(frozen=True)
class Habit:
    """Why a key is no setting here, and the values that ask for what happens anyway; none stands for all of them."""

    reason: str
    fine: tuple = ()


@dataclass(frozen=True)
class Renamed:
    """Our name for a key, and for its values."""

    key: str
    values: Mapping = field(default_factory=dict)


PICTURES = Habit("pictures are prepared as the backbone wants them, and views as the method does")
IDLE = Habit("it belongs to optimizers, schedules and samplers that are not in use here")
OTHERS = Habit("no trainer here reads it")
DOMAINS = Habit("a data set has no domains here; shifted ones (ImageNetR ...) are data sets of their own", EMPTY)
UNLABELLED = Habit("nothing is learnt from unlabelled images here")
SHOWN = Habit("the log and TensorBoard always show it")

# Full names, or beginnings that end in a dot and stand for all that they begin.
HABITS: Mapping[str, Habit] = {
    "VERSION": SHOWN, "VERBOSE": SHOWN,
    "RESUME": Habit("a run goes on by itself where it stopped, or say --resume FOLDER", EMPTY),
    **{f"INPUT.{name}": PICTURES for name in (
        "SIZE", "INTERPOLATION", "TRANSFORMS", "NO_TRANSFORM", "PIXEL_MEAN", "PIXEL_STD", "CROP_PADDING",
        "RRCROP_SCALE", "CUTOUT_N", "CUTOUT_LEN", "GN_MEAN", "GN_STD", "RANDAUGMENT_N", "RANDAUGMENT_M",
        "COLORJITTER_B", "COLORJITTER_C", "COLORJITTER_S", "COLORJITTER_H", "RGS_P", "GB_P", "GB_K",
    )},
    "DATASET.SOURCE_DOMAINS": DOMAINS, "DATASET.TARGET_DOMAINS": DOMAINS,
    **{f"DATASET.{name}": UNLABELLED for name in ("NUM_LABELED", "VAL_PERCENT", "STL10_FOLD", "ALL_AS_UNLABELED")},
    "DATASET.CIFAR_C_TYPE": OTHERS, "DATASET.CIFAR_C_LEVEL": OTHERS,
    "DATALOADER.TEST.": Habit("test images are taken TTA.EPISODES at a time"),
    "DATALOADER.TRAIN_U.": UNLABELLED,
    "DATALOADER.TRAIN_X.SAMPLER": Habit("training images are drawn at random", ("RandomSampler",)),
    "DATALOADER.TRAIN_X.N_DOMAIN": IDLE, "DATALOADER.TRAIN_X.N_INS": IDLE,
    "DATALOADER.K_TRANSFORMS": Habit("training images are cropped once an epoch", (1,)),
    "DATALOADER.RETURN_IMG0": OTHERS,
    "MODEL.BACKBONE.PRETRAINED": Habit("backbones are pretrained", (True,)),
    "MODEL.HEAD.NAME": Habit("CLIP has no head; classes are its text features", EMPTY),
    "MODEL.HEAD.": OTHERS,
    "OPTIM.LR_SCHEDULER": Habit("prompts are learnt with a cosine", ("cosine",)),
    "OPTIM.WARMUP_TYPE": Habit("the warm-up is constant", ("constant",)),
    "OPTIM.WARMUP_RECOUNT": Habit("the cosine counts anew after the warm-up", (True,)),
    "OPTIM.SGD_NESTEROV": Habit("SGD is the plain one", (False,)),
    "OPTIM.SGD_DAMPNING": Habit("SGD is the plain one", (0,)),
    "OPTIM.STAGED_LR": Habit("there is one learning rate", (False,)),
    "OPTIM.ADAM_BETA1": Habit("AdamW has torch's rates", (0.9,)),
    "OPTIM.ADAM_BETA2": Habit("AdamW has torch's rates", (0.999,)),
    **{f"OPTIM.{name}": IDLE for name in (
        "STEPSIZE", "GAMMA", "RMSPROP_ALPHA", "WARMUP_MIN_LR", "NEW_LAYERS", "BASE_LR_MULT",
    )},
    "TRAIN.PRINT_FREQ": SHOWN, "TRAIN.CHECKPOINT_FREQ": Habit("the state is kept after every epoch"),
    "TRAIN.COUNT_ITER": UNLABELLED,
    "TEST.EVALUATOR": Habit("accuracy and calibration are always measured", ("Classification", "Calibration")),
    "TEST.PER_CLASS_RESULT": Habit("the report shows every class"),
    "TEST.COMPUTE_CMAT": Habit("predictions.npz holds what it is made from"),
    "TEST.NO_TEST": Habit("a run ends with its test; a look at settings and data is --no-train", (False,)),
    "TEST.FINAL_MODEL": Habit("the last epoch's prompt is tested", ("last_step",)),
    **{f"TRAINER.{name}.": OTHERS for name in (
        "COCOOP", "MCD", "MME", "CDAC", "SE", "M3SDA", "DAEL", "CROSSGRAD", "DDAIG", "DAELDG", "DOMAINMIX", "ENTMIN",
        "MEANTEACHER", "MIXMATCH", "FIXMATCH", "MAPLE", "IVLP", "VPT", "PROMPTSRC",
    )},
    **dict.fromkeys(("LOSS.", "TRAINER.COOP.ALPHA", "TRAINER.COOP.W"), OTHERS),  # ProGrad's and KgCoOp's
}
RENAMED: Mapping[str, Renamed] = {
    "USE_CUDA": Renamed("DEVICE", {True: "auto", False: "cpu"}),
    "TRAINER.COOP.PREC": Renamed("MODEL.PREC", {"fp16": "fp16", "amp": "fp16", "fp32": "fp32"}),
}
# ProGrad and KgCoOp say only whether there are words to start from; CoOp says which.
WORDS = "TRAINER.COOP.CTX_INIT"
WORDS_MEANT = {"True": "a photo of a", "False": ""}
# CoOp's zero-shot baselines are one trainer here, with other templates.
TRAINERS = {"ZeroshotCLIP": ("ZeroShot", "coop"), "ZeroshotCLIP2": ("ZeroShot", "ensemble")}
BACKBONES = {"rn50": "RN50", "rn101": "RN101", "vit_b32": "ViT-B/32", "vit_b16": "ViT-B/16"}
NOT_HERE = ("CoCoOp", "MaPLe", "KgCoOp", "ProGrad", "PromptSRC", "IVLP", "VPT")


def coops_backbone(stem: str) -> str:
    """What CoOp's yaml of that name (vit_b16_ep50_ctxv1) says of the backbone, as the end of a remedy."""
    found = [name for start, name in BACKBONES.items() if stem.startswith(start)]
    return f", the backbone is --backbone {found[0]}" if found else ""


def habit_of(key: str) -> Habit | None:
    """The table's line on a key: its own, else that of its longest beginning."""
    beginnings = [name for name in HABITS if key == name or (name.endswith(".") and key.startswith(name))]
    return HABITS[max(beginnings, key=len)] if beginnings else None


def leave_alone(key: str, value: object, source: str) -> bool:
    """Whether a key that is none of ours may be left alone; refuses values that ask for what is not offered."""
    habit = habit_of(key)
    if habit is None:
        return False
    if habit.fine and value not in habit.fine:
        raise ConfigError(f"{key} {value} in {source} is not offered here: {habit.reason}")
    return True


def our_name(key: str, value: object, source: str) -> tuple[str, object]:
    """What a key that has another name here is called, and its value."""
    renamed = RENAMED[key]
    if value not in renamed.values:
        known = ", ".join(map(str, renamed.values))
        raise ConfigError(f"{key} in {source} is {value!r}; it must be one of {known}")
    return renamed.key, renamed.values[value]


def our_trainer(name: str) -> tuple[str, list[str]]:
    """What a trainer of CoOp's is called here, and the settings that make it so."""
    if name in NOT_HERE:
        raise ConfigError(f"{name} is no trainer of promptcal: run it in its own checkout, measured and kept in our "
                          f"format, with python -m promptcal.trainers.dassl train.py ... TEST.EVALUATOR Calibration")
    ours, template = TRAINERS.get(name, (name, ""))
    return ours, ["PROMPT.TEMPLATE", template] if template else []
