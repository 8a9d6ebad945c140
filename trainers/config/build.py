"""Makes one frozen, validated config from defaults, yaml files, flags and KEY VALUE pairs."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...datasets.utils.errors import ConfigError, explaining_faults
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
from .registry import method_key
from .settings import tag_of, without_effect
from .validation import validate

__all__ = [
    "CONFIGS", "KEY", "build_cfg", "cast_like_default", "cfg_from_python", "dataset_file_of",
    "refuse_arguments",
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
