"""Checks of a config before anything is loaded.

Single values are checked by their rows in the table of settings. Here are checks of two settings,
or of a setting and the method.
"""
from __future__ import annotations

import math
from contextlib import suppress

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import flatten
from .registry import MethodInfo, method_key
from .table import EVERY_IMAGE, MEAN, SIMILARITY

__all__ = [
    "COOP", "ENSEMBLE", "MEAN", "SEPARATOR", "SIMILARITY", "parse_regularisers", "require",
    "require_kept_views", "require_one_of", "split_templates", "validate",
]

COOP, ENSEMBLE = "coop", "ensemble"  # values of PROMPT.TEMPLATE that name templates
SEPARATOR = "|"  # between templates in PROMPT.TEMPLATE


def require(cfg: CfgNode, condition: bool, key: str, remedy: str) -> None:
    """Refuses the value of a setting unless a condition holds.

    Args:
        cfg: All settings.
        condition: Whether the value is accepted.
        key: The setting that the error names.
        remedy: Words that complete "it must be …".
    """
    if not condition:
        raise ConfigError(f"{key} is {dict(flatten(cfg))[key]!r}; it must be {remedy}")


def require_one_of(cfg: CfgNode, key: str, *choices: str) -> None:
    """Refuses a value of a setting that is none of the choices.

    Args:
        cfg: All settings.
        key: The full key of the setting.
        choices: The allowed values.
    """
    require(cfg, dict(flatten(cfg))[key] in choices, key, f"one of {', '.join(choices)}")


def require_kept_views(cfg: CfgNode) -> None:
    """Refuses a selection that keeps no view."""
    # 1 / V, rounded up to four digits, so that V times the number in the message is at least 1.
    least = math.ceil(1e4 / max(cfg.TTA.VIEWS, 1)) / 1e4
    require(cfg, int(cfg.TTA.VIEWS * cfg.TTA.SELECT) >= 1, "TTA.SELECT",
            f"at least {least:g} to keep one of {cfg.TTA.VIEWS} views")


def validate(cfg: CfgNode, method: MethodInfo) -> None:
    """Refuses settings that cannot work together, with one line about values that would.

    Args:
        cfg: All settings.
        method: The method of the run.
    """
    if cfg.DATASET.NAME:  # `adapt` works on tensors and needs no data set
        dataset = DATASET_REGISTRY.get(cfg.DATASET.NAME)
        if cfg.DATASET.CORRUPTION or not dataset.clean:
            dataset.check_corruption(cfg.DATASET.CORRUPTION, cfg.DATASET.SEVERITY)
    check_texts(cfg, method.tunes_context or method.trained)
    if not method.tunes_by_gradients:
        refuse_gradient_settings(cfg)


def refuse_gradient_settings(cfg: CfgNode) -> None:
    """Refuses settings of gradient steps, for a method that takes none."""
    methods = "works only with methods that tune by gradients (TPT, RTPT, TPS …)"
    if cfg.TRAINER.REGULARISERS:
        raise ConfigError(f"TRAINER.REGULARISERS {cfg.TRAINER.REGULARISERS} {methods}.")
    if cfg.TTA.RESET not in EVERY_IMAGE:
        raise ConfigError(f"TTA.RESET {cfg.TTA.RESET} {methods}.")


def check_texts(cfg: CfgNode, changes_context: bool) -> None:
    """Refuses templates and descriptions that cannot work.

    Args:
        cfg: The settings.
        changes_context: Whether the method changes the context. Such a method takes neither.
    """
    texts = {"PROMPT.TEMPLATE": cfg.PROMPT.TEMPLATE, "PROMPT.DESCRIPTIONS": cfg.PROMPT.DESCRIPTIONS}
    for key, value in texts.items():
        require(
            cfg,
            not value or not changes_context,
            key,
            f"empty with {cfg.TRAINER.NAME}, which changes the words of PROMPT.CTX_INIT; methods "
            "that do not, such as ZeroShot, TPS and TDA, take templates and descriptions",
        )
        require(
            cfg,
            not value or not cfg.MODEL.INIT_WEIGHTS,
            key,
            "empty where MODEL.INIT_WEIGHTS gives the prompt",
        )
    if cfg.PROMPT.TEMPLATE not in ("", COOP, ENSEMBLE):
        for template in split_templates(cfg.PROMPT.TEMPLATE):
            check_template(template)
    require(cfg, cfg.PROMPT.ENSEMBLE == MEAN or any(texts.values()), "PROMPT.ENSEMBLE",
            f"{MEAN} without PROMPT.TEMPLATE or PROMPT.DESCRIPTIONS")


def check_template(template: str) -> None:
    """Refuses a template that does not hold {} once, or that holds other braces."""
    rest = template.replace("{}", "")
    if template.count("{}") != 1 or "{" in rest or "}" in rest:
        raise ConfigError(
            f"PROMPT.TEMPLATE has the template {template!r}; it must be {COOP}, {ENSEMBLE}, or "
            f"templates separated by '{SEPARATOR}' that hold {{}} once each, where the class name "
            "goes"
        )


def split_templates(setting: str) -> list[str]:
    """The templates of PROMPT.TEMPLATE."""
    return [template.strip() for template in setting.split(SEPARATOR)]


def parse_regularisers(setting: str) -> dict[str, float]:
    """Reads TRAINER.REGULARISERS, such as `ctpt:50,atpt:10`.

    Returns:
        The weight of each added term by the method's name.
    """
    weights: dict[str, float] = {}
    names: set[str] = set()
    for part in setting.split(","):
        if not part.strip():
            continue
        name, _, number = part.partition(":")
        name = name.strip()
        weight = math.nan
        with suppress(ValueError):
            weight = float(number)
        if not name or not 0 <= weight < math.inf or method_key(name) in names:
            raise ConfigError(
                f"TRAINER.REGULARISERS has {part.strip()!r}; it must be name:weight with a weight "
                "of 0 or more, each name once, separated by commas, such as ctpt:50,atpt:10"
            )
        names.add(method_key(name))
        weights[name] = weight
    return weights
