"""Makes one frozen, checked config from defaults, yaml files, flags and KEY VALUE pairs."""
from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError, explaining_faults
from ...datasets.utils.files import flatten
from .layers import (
    CONFIGS,
    KEY,
    Config,
    Layer,
    Merged,
    cast_like_default,
    config_layer,
    dataset_file_of,
    dataset_layers,
    file_layer,
    layers_of_dataset,
    merge_layers,
    pairs_layer,
    read_pairs,
)
from .registry import MethodInfo, method_key
from .settings import tag_of, without_effect
from .table import EVERY_IMAGE, MEAN, SIMILARITY

__all__ = [
    "CONFIGS", "COOP", "ENSEMBLE", "KEY", "MEAN", "SEPARATOR", "SIMILARITY", "build_cfg",
    "cast_like_default", "cfg_from_python", "dataset_file_of", "parse_regularisers",
    "refuse_arguments", "require", "require_kept_views", "require_one_of", "split_templates",
    "validate",
]

logger = logging.getLogger(__name__)

COOP, ENSEMBLE = "coop", "ensemble"  # values of PROMPT.TEMPLATE that name templates
SEPARATOR = "|"  # between templates in PROMPT.TEMPLATE


@explaining_faults()
def build_cfg(
    trainer: str = "",
    dataset_config_file: str = "",
    config_file: str = "",
    resume: str = "",
    flags: Sequence = (),
    opts: Sequence = (),
) -> Config:
    """The settings of a run: defaults < the trainer's yaml < data set yaml < `config_file` < flags
    < opts.

    The settings of a resumed run lie above the trainer's yaml. What differs from that yaml and the
    data set's counts as changed, as it did when the run began. The trainer's yaml of a method with
    `own_views` overrides the data set's.

    Args:
        trainer: The name of a trainer; "" if a file or pair has it.
        dataset_config_file: A yaml of a data set, or its name; "" = none.
        config_file: A yaml with further settings, or a name that CoOp's scripts have for one; "" =
            none.
        resume: The folder of a run to continue; "" = none.
        flags: KEY VALUE pairs that flags of a command stand for.
        opts: KEY VALUE pairs.

    Returns:
        Frozen settings, with their baseline: what they are without a user's changes.
    """
    lower = dataset_layers(dataset_config_file)
    upper: list[Layer] = []
    notes: list[str] = []
    if config_file:
        layer, note = config_layer(config_file)
        upper.append(layer)
        if note:
            notes.append(note)
    upper.append(pairs_layer("the command", trainer, flags, opts))
    if resume:
        if not Path(resume, "config.yaml").is_file():
            raise ConfigError(
                f"--resume {resume}: it is not a run folder, because it has no config.yaml"
            )
        run_layer = file_layer(Path(resume, "config.yaml"))
        # A data set of this command replaces that of the run.
        upper = [run_layer, *lower, *upper]
        if not lower:
            lower = layers_of_dataset(run_layer)
    return complete(merge_layers(lower, upper), notes)


@explaining_faults()
def cfg_from_python(
    trainer: str, dataset: str = "", flags: Sequence = (), opts: Sequence = (),
) -> Config:
    """Builds the settings of a call from Python, as `build_cfg` does.

    Messages call the argument `opts`, not the command.

    Args:
        trainer: Name of the method, an argument of the call.
        dataset: Name of the data set; "" = none.
        flags: KEY VALUE pairs that other arguments of the call stand for.
        opts: KEY VALUE pairs as the caller gave them.
    """
    refuse_arguments(opts, {"TRAINER.NAME": (trainer, "the method")})
    upper = [pairs_layer("opts", trainer, flags, opts)]
    return complete(merge_layers(dataset_layers(dataset), upper))


def refuse_arguments(opts: Sequence, arguments: Mapping[str, tuple[str, str]]) -> None:
    """Refuses settings that say otherwise than an argument of the same call.

    They would have no effect, or results would be labelled by the one and computed by the other.

    Args:
        opts: KEY VALUE pairs as the caller gave them.
        arguments: For each setting that an argument stands for: the argument's value, and its name.
    """
    for key, value in read_pairs(opts):
        if key not in arguments:
            continue
        stated, argument = arguments[key]
        is_same = str(value) == stated
        if key.endswith(".NAME") and method_key(str(value)) == method_key(stated):
            is_same = True
        if not is_same:
            raise ConfigError(f"{key} {value!r:.80} cannot be given as a setting here: {argument} "
                              f"is an argument of its own")


def complete(merged: Merged, notes: Sequence[str] = ()) -> Config:
    """Returns the config of merged layers: checked as a whole, with its TAG, and frozen.

    Args:
        merged: The merged layers.
        notes: Lines for the log that were found while reading the layers.
    """
    cfg = merged.cfg
    method = merged.method
    if method.cls is not None:
        method.cls.validate(cfg)
    validate(cfg, method)
    notes = [*notes, *merged.notes]
    for key, remedy in without_effect(cfg):
        notes.append(f"no effect with {method.name}: {key} {merged.values[key]} ({remedy})")
    if not cfg.TAG:
        cfg.TAG = tag_of(cfg)
    cfg.freeze()
    for note in dict.fromkeys(notes):
        logger.info("%s", note)
    return cfg


# Checks of two settings, or of a setting and the method. Single values are checked by their rows in
# the table of settings.

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
