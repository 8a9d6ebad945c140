"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..registry import TRAINER_REGISTRY
from .dassl_compat import is_ignored, translate, translate_trainer
from .defaults import get_cfg_default
from .fingerprint import tag_of
from .roles import influential_settings, leaves
from .safe_yaml import flatten, plain_value, read_yaml
from .validation import validate

logger = logging.getLogger(__name__)

# `configs` is beside `trainers`, in a checkout and in an installed package.
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")  # before = in KEY=VALUE
AUTO = {"DATALOADER.NUM_WORKERS": -1}  # numbers that may be given as `auto`
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

Layer = tuple[str, list[tuple[str, object]]]  # where settings come from, and the settings by their full names


def build_cfg(
    trainer: str = "",
    dataset_config_file: str = "",
    config_file: str = "",
    resume: str = "",
    flags: Sequence = (),
    opts: Sequence = (),
    source: str = "the command",
) -> CfgNode:
    """Defaults < the trainer's yaml < data set yaml < `config_file` < flags < opts; frozen.

    The yaml of a method with `own_views` is laid over the data set's. A resumed run's own config takes the place of the
    trainer's yaml. `source` is what messages call flags and opts.
    """
    lower = [file_layer(path) for path in dataset_files(dataset_config_file)]
    upper = [file_layer(find_config(config_file, "trainers"))] if config_file else []
    named = ["TRAINER.NAME", trainer] if trainer else []
    upper.append((source, [*read_pairs(named), *read_pairs(flags), *read_pairs(opts)]))
    if resume:
        if not Path(resume, "config.yaml").is_file():
            raise ConfigError(f"--resume {resume}: no run was started there, it has no config.yaml")
        lower.insert(0, file_layer(Path(resume, "config.yaml")))
    name = find_trainer([*lower, *upper])
    method = TRAINER_REGISTRY.get(name) if name else None
    own = CONFIGS / "trainers" / f"{name.lower()}.yaml"
    if own.is_file() and not resume:
        lower.insert(len(lower) if method and method.own_views else 0, file_layer(own))

    merger = Merger(trained=not method or method.trained)
    for layer in lower:
        merger.add(*layer)
    baseline = dict(merger.settings)
    for layer in upper:
        merger.add(*layer)
    cfg = merger.config()
    validate(cfg)
    if not cfg.TAG:
        cfg.TAG = tag_of(influential_settings(leaves(cfg), name), baseline)
    cfg.freeze()
    merger.log_notes()
    return cfg


class Merger:
    """Lays settings over the defaults, layer by layer. Names and values of CoOp's are understood."""

    def __init__(self, trained: bool) -> None:
        self.trained = trained  # whether the method learns from labelled images first
        self.defaults = get_cfg_default()
        self.settings = leaves(self.defaults)
        self.unknown: dict[str, str] = {}  # key -> source
        self.ignored: dict[str, list[str]] = {}  # source -> keys without a meaning here
        self.notes: list[str] = []

    def add(self, source: str, values: Iterable[tuple[str, object]]) -> None:
        values = list(values)
        if not self.trained and source.endswith((".yaml", ".yml")) and "OPTIM.LR_SCHEDULER" in dict(values):
            self.notes.append(f"OPTIM in {source} is about learning prompts and ignored; the step at test time is ours")
            values = [(key, value) for key, value in values if not key.startswith("OPTIM.")]
        for key, value in values:
            self.add_value(key, value, source)

    def add_value(self, key: str, value: object, source: str) -> None:
        key, value, note = translate(key, value, source)
        self.notes += [note] if note else []
        if key == "TRAINER.NAME" and isinstance(value, str):
            given, (value, extra) = value, translate_trainer(value)
            for more, setting in extra.items():
                self.notes.append(f"{given} is {value} with {more} {setting} here")
                self.add_value(more, setting, source)
        if key in self.settings and not is_height_and_width(key, value):
            automatic = key in AUTO and value == "auto"
            self.settings[key] = AUTO[key] if automatic else fitted(key, value, self.settings[key], source)
        elif members := [name for name in self.settings if name.startswith(f"{key}.")]:
            raise ConfigError(f"{key} in {source} is a group of keys; give one of {', '.join(members)}")
        elif is_ignored(key, value, source):
            self.ignored.setdefault(source, []).append(key)
        else:
            self.unknown.setdefault(key, source)

    def config(self) -> CfgNode:
        """The merged config. One error names all unknown keys, each with the known key that was probably meant."""
        hints = {key: suggestion(key, list(self.settings)) for key in self.unknown}
        lines = [f"unknown key '{key}' in {self.unknown[key]}.{hint and f' Did you mean {hint!r}?'}"
                 for key, hint in hints.items()]
        if lines:
            raise ConfigError(" ".join(lines[:5]))
        for key, value in self.settings.items():
            *groups, leaf = key.split(".")
            node = self.defaults
            for group in groups:
                node = node[group]
            node[leaf] = value
        return self.defaults

    def log_notes(self) -> None:
        for source, keys in self.ignored.items():
            logger.info("ignored, without a meaning here, from %s: %s", source, ", ".join(dict.fromkeys(keys)))
        for note in dict.fromkeys(self.notes):
            logger.info("%s", note)


def file_layer(path: Path) -> Layer:
    return str(path), list(flatten(read_yaml(path)))


def read_pairs(tokens: Sequence) -> Iterator[tuple[str, object]]:
    """`KEY VALUE` and `KEY=VALUE`, from the command line or from Python."""
    rest = iter(tokens)
    for token in rest:
        key, equals, value = str(token).partition("=")
        if equals and KEY.fullmatch(key):
            yield key, value
            continue
        try:
            yield str(token), next(rest)
        except StopIteration:
            raise ConfigError(f"settings come as KEY VALUE pairs; '{token}' has no value") from None


def find_trainer(layers: Sequence[Layer]) -> str:
    """The trainer that the last layer with a name asks for; "" where none has one."""
    names = [value for _, values in layers for key, value in values if key == "TRAINER.NAME"]
    return translate_trainer(names[-1])[0] if names and isinstance(names[-1], str) else ""


def fitted(key: str, value: object, default: object, source: str) -> object:
    """`value` in the type of `default`: text as yaml reads it, `1e-3`, `010` as 10, whole numbers for floats."""
    kind = type(default)
    if isinstance(value, str) and kind is not str:
        value = BOOLEANS.get(value.lower(), value) if kind is bool else plain_value(value)
    if kind is str and isinstance(value, bool):
        value = "on" if value else "off"
    elif kind is str and not isinstance(value, Collection):
        value = "" if value is None else str(value)  # numbers and paths
    elif kind in (int, float) and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = kind(value)
    if type(value) is not kind and not (kind is str and isinstance(value, str)):
        raise ConfigError(f"{key} in {source} must be of type {kind.__name__}, not {value!r}")
    return value


def is_height_and_width(key: str, value: object) -> bool:
    """Whether this is CoOp's `INPUT.SIZE (224, 224)`, which the backbone decides here."""
    numbers = re.findall(r"\d+", value) if isinstance(value, str) else value
    return key == "INPUT.SIZE" and isinstance(numbers, list | tuple) and len(numbers) == 2


def suggestion(key: str, known: Sequence[str]) -> str:
    """The known key that was probably meant: one with the same last name, or one that is very close; "" if none is."""
    leaf = key.upper().rpartition(".")[2]
    same = [name for name in known if name.rpartition(".")[2] == leaf]
    return next(iter(difflib.get_close_matches(key.upper(), same or known, n=1, cutoff=0.0 if same else 0.75)), "")


def find_config(name: str, folder: str) -> Path:
    """The file that is meant: a path, as it is or below the project, with or without `.yaml`, or a name in
    configs/<folder>; so `configs/datasets/dtd.yaml`, `configs/datasets/dtd` and `dtd` work from anywhere."""
    path = Path(name)
    for place in (path, CONFIGS.parent / path, CONFIGS / folder / path):
        for found in (place, Path(f"{place}.yaml")):
            if found.is_file():
                return found
    if folder == "datasets" and (registered := dataset_file_of(name)):
        return registered
    if path.suffix not in ("", ".yaml", ".yml"):
        return path  # `read_yaml` refuses it
    shipped = {file.stem: f"configs/{folder}/{file.name}" for file in (CONFIGS / folder).glob("*.yaml")}
    hint = re.sub("'(.*)'", lambda found: f"'{shipped[found[1]]}'", nearest(path.stem, shipped))
    if folder == "trainers" and not hint:
        hint = " Give its path in your checkout, or leave it out: trainers know their settings, but for --backbone."
    reason = "it is a folder" if path.is_dir() else "No such file"
    raise ConfigError(f"cannot read config file {path}: {reason}.{hint}")


def dataset_files(name: str) -> list[Path]:
    """The yaml of a data set. A CoOp checkout's holds only its name: our yaml of that data set is laid below it."""
    if not name:
        return []
    found = find_config(name, "datasets")
    ours = dataset_file_of(str(dict(flatten(read_yaml(found))).get("DATASET.NAME")))
    return [found] if ours is None or CONFIGS in found.resolve().parents else [ours, found]


@cache
def dataset_file_of(dataset: str) -> Path | None:
    """The yaml in configs/datasets of a registered data set."""
    files = sorted((CONFIGS / "datasets").glob("*.yaml")) if dataset in DATASET_REGISTRY else []
    return next((file for file in files if read_yaml(file).get("DATASET", {}).get("NAME") == dataset), None)
