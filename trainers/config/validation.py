"""Checks of a config before anything is loaded."""
from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ..registry import EVERY_IMAGE, TRAINER_REGISTRY, method_key
from .roles import OF_PROMPTS, leaves

LEAST = {"SEED": 0, "INPUT.SIZE": 0, "DATALOADER.NUM_WORKERS": -1, "TTA.VIEWS": 1, "TTA.STEPS": 0, "TTA.EPISODES": 1,
         "TTA.JACOBIAN_GB": 0, "OPTIM.WEIGHT_DECAY": 0, "TEST.BINS": 1, "TEST.PART": 1, "TEST.LIMIT": 0,
         "TEST.IMBALANCE": 0}

COOP, ENSEMBLE = "coop", "ensemble"  # values of PROMPT.TEMPLATE that name templates
SEPARATOR = "|"  # between templates in PROMPT.TEMPLATE
MEAN, SIMILARITY = "mean", "similarity"  # PROMPT.ENSEMBLE


def require(cfg: CfgNode, condition: bool, key: str, remedy: str) -> None:
    """Refuses the value of `key` unless `condition` holds; `remedy` completes the sentence "it must be ..."."""
    if not condition:
        raise ConfigError(f"{key} is {leaves(cfg)[key]!r}; it must be {remedy}")


def require_one_of(cfg: CfgNode, key: str, *choices: str) -> None:
    require(cfg, leaves(cfg)[key] in choices, key, f"one of {', '.join(choices)}")


def require_kept_views(cfg: CfgNode) -> None:
    """Refuses a selection that keeps no view."""
    least = math.ceil(1e4 / max(cfg.TTA.VIEWS, 1)) / 1e4
    require(cfg, int(cfg.TTA.VIEWS * cfg.TTA.SELECT) >= 1, "TTA.SELECT",
            f"at least {least:g} to keep one of {cfg.TTA.VIEWS} views")


def validate(cfg: CfgNode) -> None:
    """Refuses settings that cannot work, with one line about values that would. Methods check their own settings."""
    settings: dict[str, Any] = leaves(cfg)
    for key, value in settings.items():
        require(cfg, not isinstance(value, float) or math.isfinite(value), key, "a finite number")
    if not cfg.TRAINER.NAME:
        raise ConfigError(f"no trainer given: use --trainer with one of {', '.join(sorted(TRAINER_REGISTRY))}")
    trainer = TRAINER_REGISTRY.get(cfg.TRAINER.NAME)
    if cfg.DATASET.NAME:  # `adapt` works on tensors and needs no data set
        DATASET_REGISTRY.get(cfg.DATASET.NAME).check_corruption(cfg.DATASET.CORRUPTION, cfg.DATASET.SEVERITY)

    for key, least in LEAST.items():
        require(cfg, settings[key] >= least, key, f"{least} or more")
    require(cfg, cfg.DATASET.NUM_SHOTS == -1 or cfg.DATASET.NUM_SHOTS > 0, "DATASET.NUM_SHOTS", "-1 (all) or above 0")
    require_one_of(cfg, "DATASET.SUBSAMPLE_CLASSES", "all", "base", "new")
    for key, lowest in (("INPUT.PIXEL_MEAN", 0), ("INPUT.PIXEL_STD", 1e-9)):
        valid = all(isinstance(number, int | float) and lowest <= number <= 1 for number in settings[key])
        require(cfg, len(settings[key]) in (0, 3) and valid, key, "[] (the backbone's) or three numbers up to 1")
    require_one_of(cfg, "DATALOADER.ON_BAD_IMAGE", "error", "skip")
    require_one_of(cfg, "MODEL.PREC", "auto", "fp32", "fp16", "bf16")
    require(cfg, bool(cfg.MODEL.BACKBONE.NAME), "MODEL.BACKBONE.NAME",
            "a model's name, a path to weights, open_clip:MODEL/TAG or hf:FOLDER")
    require_one_of(cfg, OF_PROMPTS, "end", "middle", "front")
    require(cfg, bool(cfg.PROMPT.CTX_INIT.strip(" _")), "PROMPT.CTX_INIT", "at least one word")
    require(cfg, "{" not in cfg.PROMPT.CTX_INIT, "PROMPT.CTX_INIT", "plain words; the class name follows by itself")
    check_texts(cfg, trainer.tunes_context or trainer.trained)
    require(cfg, not cfg.TRAINER.REGULARISERS or trainer.takes_regularisers, "TRAINER.REGULARISERS",
            "empty: terms can be added to methods that tune by gradients, such as TPT, RTPT and TPS")
    reset = cfg.TTA.RESET
    require(cfg, reset in ("image", "never") or bool(re.fullmatch("[1-9][0-9]{0,8}", reset)), "TTA.RESET",
            "image, never, or a number of images, such as 10")
    require(cfg, reset in EVERY_IMAGE or trainer.takes_regularisers, "TTA.RESET",
            "image: only methods that tune by gradients, such as TPT, RTPT and TPS, carry a context")
    require(cfg, 0 < cfg.TTA.SELECT <= 1, "TTA.SELECT", "a share above 0 and up to 1")
    require_one_of(cfg, "TTA.AUGMIX", "auto", "on", "off")
    require_one_of(cfg, "TTA.JACOBIAN", "auto", "on", "off")
    require(cfg, 0 < cfg.OPTIM.LR <= 1e30, "OPTIM.LR", "above 0 and at most 1e30")
    require_one_of(cfg, "TEST.SPLIT", "test", "val")
    require_one_of(cfg, "TEST.ORDER", "random", "correlated", "sorted")
    require(cfg, cfg.TEST.CORRELATION > 0, "TEST.CORRELATION", "above 0; TEST.ORDER sorted is the limit of 0")
    for key, words in trainer.choices.items():
        require_one_of(cfg, key, *words)
    for key, value in leaves(cfg).items():
        require(cfg, not key.endswith(".LAMBDA") or float(str(value)) >= 0, key, "0 or more")
    trainer.validate(cfg)


def check_texts(cfg: CfgNode, changes_context: bool) -> None:
    """Refuses templates and descriptions that cannot work. A method that changes the context takes neither."""
    own = cfg.PROMPT
    for key, value in (("PROMPT.TEMPLATE", own.TEMPLATE), ("PROMPT.DESCRIPTIONS", own.DESCRIPTIONS)):
        require(cfg, not value or not changes_context, key,
                f"empty with {cfg.TRAINER.NAME}, which changes the words of PROMPT.CTX_INIT; methods that do not, such "
                f"as ZeroShot, TPS and TDA, take templates and descriptions")
        require(cfg, not value or not cfg.MODEL.INIT_WEIGHTS, key, "empty where MODEL.INIT_WEIGHTS gives the prompt")
    for template in split_templates(own.TEMPLATE) if own.TEMPLATE not in ("", COOP, ENSEMBLE) else ():
        if template.count("{}") != 1 or set("{}") & set(template.replace("{}", "")):
            raise ConfigError(
                f"PROMPT.TEMPLATE has the template {template!r}; it must be {COOP}, {ENSEMBLE}, or templates "
                f"separated by '{SEPARATOR}' that hold {{}} once each, where the class name goes"
            )
    require_one_of(cfg, "PROMPT.DESCRIPTION_FORMAT", "auto", "sentences", "phrases")
    require_one_of(cfg, "PROMPT.ENSEMBLE", MEAN, SIMILARITY)
    require(cfg, own.ENSEMBLE == MEAN or bool(own.TEMPLATE or own.DESCRIPTIONS), "PROMPT.ENSEMBLE",
            f"{MEAN} without PROMPT.TEMPLATE or PROMPT.DESCRIPTIONS")


def split_templates(setting: str) -> list[str]:
    return [template.strip() for template in setting.split(SEPARATOR)]


def parse_regularisers(setting: str) -> dict[str, float]:
    """TRAINER.REGULARISERS, such as `ctpt:50,atpt:10`: the weight of each added term by the method's name."""
    weights: dict[str, float] = {}
    for part in filter(str.strip, setting.split(",")):
        name, _, number = (piece.strip() for piece in part.partition(":"))
        with suppress(ValueError):
            if name and 0 <= float(number) < math.inf and method_key(name) not in map(method_key, weights):
                weights[name] = float(number)
                continue
        raise ConfigError(f"TRAINER.REGULARISERS has {part.strip()!r}; it must be name:weight with a weight of 0 or "
                          f"more, each name once, separated by commas, such as ctpt:50,atpt:10")
    return weights
