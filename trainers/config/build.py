"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
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
    config_layer,
    dataset_file_of,
    dataset_layers,
    file_layer,
    merge,
    read_pairs,
    with_trainer_layer,
)
from .registry import TRAINER_REGISTRY, registered_name
from .safe_yaml import unflatten
from .settings import tag_of, without_effect
from .validation import validate

__all__ = [
    "CONFIGS", "KEY", "build_cfg", "cast_like_default", "cfg_from_python", "dataset_file_of",
]

logger = logging.getLogger(__name__)


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

    The settings of a resumed run replace the trainer's yaml.

    Args:
        trainer: The name of a trainer; "" if a file or pair has it.
        dataset_config_file: A yaml of a data set, or its name.
        config_file: A yaml with further settings, or a name that CoOp's scripts have for one.
        resume: The folder of a run to continue.
        flags: KEY VALUE pairs that flags of a command stand for.
        opts: KEY VALUE pairs.

    Returns:
        Frozen settings that know their baseline.
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
        lower.insert(0, file_layer(Path(resume, "config.yaml")))
    return merge_layers(lower, upper, notes, resumed=bool(resume))


@explaining_faults()
def cfg_from_python(
    trainer: str, dataset: str = "", flags: Sequence = (), opts: Sequence = (),
) -> Config:
    """The settings of a call from Python. Messages say that they are in `opts`; see `build_cfg`."""
    upper = [pairs_layer("opts", trainer, flags, opts)]
    return merge_layers(dataset_layers(dataset), upper)


def pairs_layer(source: str, trainer: str, flags: Sequence, opts: Sequence) -> Layer:
    """The layer of what a user gives beside files, the last of equal keys counts."""
    trainer_pair = ["TRAINER.NAME", trainer] if trainer else []
    return source, [*read_pairs(trainer_pair), *read_pairs(flags), *read_pairs(opts)]


def merge_layers(
    lower: Sequence[Layer], upper: Sequence[Layer], notes: Sequence[str] = (), resumed: bool = False
) -> Config:
    """Settings from their layers, checked and frozen.

    Args:
        lower: What a run has without a user's changes: the data set's yaml, or a resumed run's.
        upper: What a user changed, the last layer being that of KEY VALUE pairs.
        notes: Lines for the log that were found while reading the layers.
        resumed: Whether `lower` has the settings of a run, so that the trainer's yaml is left out.
    """
    name = find_trainer([*lower, *upper])
    method = TRAINER_REGISTRY.get(name) if name else None  # refuses unknown names
    if name and not resumed:
        lower = with_trainer_layer(lower, name)

    trained = method is None or method.trained
    own_defaults, all_defaults = needed_defaults(name, [*lower, *upper])
    settings = dict(all_defaults)
    notes = [*notes, *merge(settings, lower, trained)]
    baseline = dict(settings)
    notes += merge(settings, upper, trained)
    if name and settings["TRAINER.NAME"] != name:
        notes.append(f"trainer {settings['TRAINER.NAME']} is {name}")
        settings["TRAINER.NAME"] = name
    _, pairs = upper[-1]
    other_methods = [key for key, _ in pairs if key in settings and key not in own_defaults]
    if other_methods:
        notes.append(f"no effect on {name}, because another method's: {', '.join(other_methods)}")

    cfg = Config(unflatten(canonical_values(own_defaults, settings)))
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


def canonical_values(keys: Iterable[str], settings: Mapping[str, object]) -> dict[str, object]:
    """The values of some keys, in one spelling where several mean the same."""
    values = {}
    for key in keys:
        value = settings[key]
        if key in SHARED:
            value = SHARED[key].canonical(value)
        values[key] = value
    return values


def needed_defaults(
    trainer: str, layers: Sequence[Layer]
) -> tuple[dict[str, object], dict[str, object]]:
    """The defaults of the settings that a trainer has, and of all that may be given.

    Other methods are imported only if a setting of theirs is given, as in the yaml of a shifted
    data set, or if their terms are added.
    """
    pairs: list[tuple[str, object]] = []
    for _, values in layers:
        pairs += values
    adds_terms = any(key == "TRAINER.REGULARISERS" and value for key, value in pairs)
    methods = [trainer]
    if adds_terms or not trainer:
        methods = list(TRAINER_REGISTRY)
    own_defaults = leaves(get_cfg_default(methods))
    if all(key in own_defaults for key, _ in pairs):
        return own_defaults, own_defaults
    return own_defaults, leaves(get_cfg_default())


def resolve_augmix(cfg: Config) -> None:
    """Replaces TTA.AUGMIX auto by what the data set's public scripts use."""
    resolve = SHARED["TTA.AUGMIX"].resolve
    if cfg.TTA.AUGMIX == "auto" and resolve is not None:
        cfg.TTA.AUGMIX = resolve(leaves(cfg)) or "auto"


def find_trainer(layers: Sequence[Layer]) -> str:
    """The registered name of the trainer that the last layer with a name asks for; "" if none has
    one.
    """
    name: object = ""
    for _, values in layers:
        for key, value in values:
            if key == "TRAINER.NAME":
                name = value
    if name:
        translated, _ = translate("TRAINER.NAME", name, "")
        name = translated["TRAINER.NAME"]
    return registered_name(name) if isinstance(name, str) else ""
