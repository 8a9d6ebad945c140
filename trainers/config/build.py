"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import yaml
from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..registry import TRAINER_REGISTRY
from .dassl_compat import IGNORED, translate
from .defaults import get_cfg_default
from .fingerprint import tag_of
from .roles import influential_settings, leaves, longest_match
from .safe_yaml import flatten, plain_value, read_yaml, unflatten
from .validation import validate

logger = logging.getLogger(__name__)

# `configs` is next to `trainers`, in a checkout and in an installed package.
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")  # before = in KEY=VALUE

Layer = tuple[str, list[tuple[str, object]]]  # where settings come from, and the settings by their full names


def build_cfg(
    trainer: str = "", dataset_config_file: str = "", config_file: str = "", resume: str = "", flags: Sequence = (),
    opts: Sequence = (), source: str = "the command",
) -> CfgNode:
    """Defaults < the trainer's yaml < data set yaml < `config_file` < flags < opts; frozen. The yaml of a method with
    `own_views` is laid over the data set's; a resumed run's config replaces the trainer's. Messages say `source`."""
    lower = dataset_layers(dataset_config_file)
    upper = [file_layer(find_config(config_file, "trainers"))] if config_file else []
    named = ["TRAINER.NAME", trainer] if trainer else []
    upper.append((source, [*read_pairs(named), *read_pairs(flags), *read_pairs(opts)]))
    if resume:
        if not Path(resume, "config.yaml").is_file():
            raise ConfigError(f"--resume {resume}: it is not a run folder, because it has no config.yaml")
        lower.insert(0, file_layer(Path(resume, "config.yaml")))
    name = find_trainer([*lower, *upper])
    method = TRAINER_REGISTRY.get(name) if name else None
    file = CONFIGS / "trainers" / f"{name.lower()}.yaml"
    if file.is_file() and not resume:
        lower.insert(len(lower) if method and method.own_views else 0, file_layer(file))

    given = [pair for _, values in [*lower, *upper] for pair in values]
    adds_terms = any(key == "TRAINER.REGULARISERS" and value for key, value in given)
    own = leaves(get_cfg_default() if adds_terms or not method else get_cfg_default([name]))
    # Other methods are imported only where a setting of theirs is given, as in the yaml of a shifted data set.
    settings = dict(own) if all(key in own for key, _ in given) else leaves(get_cfg_default())
    trained = not method or method.trained
    notes = merge(settings, lower, trained)
    baseline = dict(settings)
    notes += merge(settings, upper, trained)
    if unused := [key for key, _ in upper[-1][1] if key in settings and key not in own]:
        notes.append(f"no effect on {name}, because another method's: {', '.join(unused)}")
    cfg = CfgNode(unflatten({key: value for key, value in settings.items() if key in own}))
    validate(cfg)
    if not cfg.TAG:
        cfg.TAG = tag_of(influential_settings(leaves(cfg), name), baseline)
    cfg.freeze()
    for note in dict.fromkeys(notes):
        logger.info("%s", note)
    return cfg


def baseline_settings(cfg: CfgNode) -> dict[str, object]:
    """The defaults of a method on a data set: those of the settings, of the trainer's yaml and of the data set's."""
    file = dataset_file_of(cfg.DATASET.NAME)
    pairs = ["DATASET.CORRUPTION", cfg.DATASET.CORRUPTION, "DATASET.SEVERITY", cfg.DATASET.SEVERITY]
    return leaves(build_cfg(cfg.TRAINER.NAME, str(file) if file else cfg.DATASET.NAME, opts=pairs))


def merge(settings: dict[str, object], layers: Sequence[Layer], trained: bool) -> list[str]:
    """Applies layers to `settings` and returns lines for the log. CoOp's names and values are translated. One error
    names the unknown keys, each with the known key that was probably meant."""
    notes, unknown = [], []
    for source, values in layers:
        # OPTIM in a file of CoOp's is about training prompts; the step at test time is ours.
        of_training = not trained and source.endswith((".yaml", ".yml")) and "OPTIM.LR_SCHEDULER" in dict(values)
        ignored = []
        for given, word in values:
            found, note = ({}, "") if of_training and given.startswith("OPTIM.") else translate(given, word, source)
            notes += [note] if note else []
            ignored += [] if found else [given]
            for key, value in found.items():
                if key in settings:
                    settings[key] = fitted(key, value, settings[key], source)
                elif longest_match(key, IGNORED):
                    ignored.append(key)
                else:
                    same = [name for name in settings if name.rpartition(".")[2] == key.upper().rpartition(".")[2]]
                    unknown.append(f"unknown key '{key}' in {source}.{nearest(key, same or settings)}")
        if ignored:
            notes.append(f"ignored, without a meaning here, from {source}: {', '.join(ignored)}")
    if unknown:
        raise ConfigError(" ".join(unknown[:5]))
    return notes


def file_layer(path: Path) -> Layer:
    values = list(flatten(read_yaml(path)))
    if len(dict(values)) < len(values):
        raise ConfigError(f"cannot read config file {path}: it has a key twice, as one name with dots and in a group")
    return str(path), values


def read_pairs(tokens: Sequence) -> Iterator[tuple[str, object]]:
    """`KEY VALUE` and `KEY=VALUE`, from the command line or from Python."""
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        key, equals, value = str(token).partition("=")
        if equals and KEY.fullmatch(key):
            yield key, value
        elif rest:
            yield str(token), rest.pop(0)
        else:
            raise ConfigError(f"settings come as KEY VALUE pairs; '{token}' has no value")


def find_trainer(layers: Sequence[Layer]) -> str:
    """The trainer that the last layer with a name asks for; "" where none has one."""
    names = [value for _, values in layers for key, value in values if key == "TRAINER.NAME"]
    name = translate("TRAINER.NAME", names[-1], "")[0]["TRAINER.NAME"] if names else ""
    return name if isinstance(name, str) else ""


def fitted(key: str, value: object, default: object, source: str) -> object:
    """`value` in the type of `default`: text as yaml reads it, `1e-3`, `010` as 10, whole numbers for floats."""
    kind = type(default)
    if key == "DATALOADER.NUM_WORKERS" and value == "auto":
        value = -1
    if kind is str and isinstance(value, bool):
        value = "on" if value else "off"
    elif kind is str and (isinstance(value, str) or not isinstance(value, Collection)):
        value = "" if value is None else str(value)  # numbers and paths
    elif isinstance(value, str):
        value = yaml.SafeLoader.bool_values.get(value.lower(), value) if kind is bool else plain_value(value)
    if kind in (int, float) and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = kind(value)
    if type(value) is not kind:
        raise ConfigError(f"{key} in {source} must be of type {kind.__name__}, not {value!r}")
    return value


def find_config(name: str, folder: str) -> Path:
    """The file that is meant: a path, as it is or below the project, with or without `.yaml`, or a name in
    configs/<folder>; so `configs/datasets/dtd.yaml`, `configs/datasets/dtd` and `dtd` work from anywhere."""
    path = Path(name)
    places = [Path(f"{place}{ending}") for place in (path, CONFIGS.parent / path, CONFIGS / folder / path)
              for ending in ("", ".yaml")]
    registered = dataset_file_of(name) if folder == "datasets" else None
    if found := next(filter(Path.is_file, places), registered):
        return found
    hint = nearest(path.stem, [file.stem for file in (CONFIGS / folder).glob("*.yaml")])
    remedy = " Leave it out: each trainer has its own yaml; see --backbone." if folder == "trainers" else ""
    raise ConfigError(f"cannot read config file {path}: no such file.{hint or remedy}")


def dataset_layers(name: str) -> list[Layer]:
    """The yaml of a data set. A CoOp checkout's holds only its name: our yaml of that data set is laid below it. A
    registered data set, such as a plugin's, needs no yaml."""
    if not name:
        return []
    try:
        found = find_config(name, "datasets")
    except ConfigError:
        if name not in DATASET_REGISTRY:
            raise
        return [(f"data set {name}", [("DATASET.NAME", name)])]
    ours = dataset_file_of(str(dict(file_layer(found)[1]).get("DATASET.NAME")))
    return [file_layer(path) for path in ([ours] if ours and CONFIGS not in found.resolve().parents else []) + [found]]


@cache
def dataset_file_of(dataset: str) -> Path | None:
    """The yaml in configs/datasets of a registered data set."""
    files = sorted((CONFIGS / "datasets").glob("*.yaml")) if dataset in DATASET_REGISTRY else []
    return next((file for file in files if read_yaml(file).get("DATASET", {}).get("NAME") == dataset), None)
