"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from ...datasets.utils.errors import ConfigError, explaining_faults
from .dassl_compat import translate
from .declared import SHARED, get_cfg_default, leaves
from .layers import (
    CONFIGS,
    KEY,
    Config,
    Layer,
    cast_like_default,
    dataset_file_of,
    dataset_layers,
    file_layer,
    find_config,
    merge,
    read_pairs,
    with_trainer_layer,
)
from .registry import TRAINER_REGISTRY, registered_name
from .safe_yaml import unflatten
from .settings import tag_of, without_effect
from .validation import validate

__all__ = ["CONFIGS", "KEY", "build_cfg", "cast_like_default", "dataset_file_of"]

logger = logging.getLogger(__name__)


@explaining_faults()
def build_cfg(
    trainer: str = "", dataset_config_file: str = "", config_file: str = "", resume: str = "", flags: Sequence = (),
    opts: Sequence = (), source: str = "the command",
) -> Config:
    """The settings of a run: defaults < the trainer's yaml < data set yaml < `config_file` < flags < opts.

    The settings of a resumed run replace the trainer's yaml.

    Args:
        trainer: The name of a trainer; "" if a file or pair has it.
        dataset_config_file: A yaml of a data set, or its name.
        config_file: A yaml with further settings.
        resume: The folder of a run to continue.
        flags: KEY VALUE pairs that flags of a command stand for.
        opts: KEY VALUE pairs.
        source: Where flags and pairs come from, for messages.

    Returns:
        Frozen settings that know their baseline.
    """
    lower = dataset_layers(dataset_config_file)
    upper: list[Layer] = []
    if config_file:
        upper.append(file_layer(find_config(config_file, "trainers")))
    trainer_pair = ["TRAINER.NAME", trainer] if trainer else []
    pairs = [*read_pairs(trainer_pair), *read_pairs(flags), *read_pairs(opts)]
    upper.append((source, pairs))
    if resume:
        if not Path(resume, "config.yaml").is_file():
            raise ConfigError(f"--resume {resume}: it is not a run folder, because it has no config.yaml")
        lower.insert(0, file_layer(Path(resume, "config.yaml")))
    name = find_trainer([*lower, *upper])
    method = TRAINER_REGISTRY.get(name) if name else None  # refuses unknown names
    if name and not resume:
        lower = with_trainer_layer(lower, name)

    trained = method is None or method.trained
    own_defaults, all_defaults = needed_defaults(name, [*lower, *upper])
    settings = dict(all_defaults)
    notes = merge(settings, lower, trained)
    baseline = dict(settings)
    notes += merge(settings, upper, trained)
    if name and settings["TRAINER.NAME"] != name:
        notes.append(f"trainer {settings['TRAINER.NAME']} is {name}")
        settings["TRAINER.NAME"] = name
    other_methods = [key for key, _ in pairs if key in settings and key not in own_defaults]
    if other_methods:
        notes.append(f"no effect on {name}, because another method's: {', '.join(other_methods)}")

    own_settings = {}
    for key in own_defaults:
        value = settings[key]
        own_settings[key] = SHARED[key].canonical(value) if key in SHARED else value
    cfg = Config(unflatten(own_settings))
    validate(cfg)
    cfg.remember(baseline)
    resolve_augmix(cfg)
    if not cfg.TAG:
        cfg.TAG = tag_of(cfg)
    for key, remedy in without_effect(cfg):
        notes.append(f"no effect with {name}: {key} {settings[key]} ({remedy})")
    cfg.freeze()
    for note in dict.fromkeys(notes):
        logger.info("%s", note)
    return cfg


def needed_defaults(trainer: str, layers: Sequence[Layer]) -> tuple[dict[str, object], dict[str, object]]:
    """The defaults of the settings that a trainer has, and of all that may be given.

    Other methods are imported only if a setting of theirs is given, as in the yaml of a shifted data
    set, or if their terms are added.
    """
    given = [pair for _, values in layers for pair in values]
    adds_terms = any(key == "TRAINER.REGULARISERS" and value for key, value in given)
    methods = [trainer]
    if adds_terms or not trainer:
        methods = list(TRAINER_REGISTRY)
    own_defaults = leaves(get_cfg_default(methods))
    if all(key in own_defaults for key, _ in given):
        return own_defaults, own_defaults
    return own_defaults, leaves(get_cfg_default())


def resolve_augmix(cfg: Config) -> None:
    """Replaces TTA.AUGMIX auto by what the data set's public scripts use."""
    resolve = SHARED["TTA.AUGMIX"].resolve
    if cfg.TTA.AUGMIX == "auto" and resolve is not None:
        cfg.TTA.AUGMIX = resolve(leaves(cfg)) or "auto"


def find_trainer(layers: Sequence[Layer]) -> str:
    """The registered name of the trainer that the last layer with a name asks for; "" if none has one."""
    name: object = ""
    for _, values in layers:
        for key, value in values:
            if key == "TRAINER.NAME":
                name = value
    if name:
        translated, _ = translate("TRAINER.NAME", name, "")
        name = translated["TRAINER.NAME"]
    return registered_name(name) if isinstance(name, str) else ""
