"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from yacs.config import CfgNode

from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..registry import TRAINER_REGISTRY
from .defaults import get_cfg_default
from .fingerprint import tag_of
from .roles import influential_settings, leaves
from .validation import validate

# In a checkout and in an installed package alike, `configs` lies beside `trainers`.
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def build_cfg(
    trainer: str = "",
    dataset_config_file: str = "",
    config_file: str = "",
    resume: str = "",
    flags: Sequence = (),
    opts: Sequence = (),
) -> CfgNode:
    """Defaults < a resumed run's config < the trainer's yaml < dataset yaml < `config_file` < flags < opts; frozen.
    The yaml of a method that wants views of its own (`own_views`) stands above the data set's as well.

    `trainer` is a flag. Any later layer may name another, so whose yaml is read is found by a trial without it.
    """
    base = get_cfg_default()
    if resume:
        # A run's own config already holds every layer, so the trainer's yaml must not undo it.
        merge_file(base, Path(resume) / "config.yaml")
    data, pairs = [dataset_config_file], (["TRAINER.NAME", trainer] if trainer else [], flags, opts)
    name = layered(base, [*data, config_file], pairs).TRAINER.NAME
    if name and not resume:
        method = TRAINER_REGISTRY.get(name)
        own = CONFIGS / "trainers" / f"{name.lower()}.yaml"
        if own.is_file():
            merge_file(base, own)
            data += [str(own)] if getattr(method, "own_views", False) else []
    cfg = layered(base, [*data, config_file], pairs)
    validate(cfg)
    if not cfg.TAG:
        baseline = leaves(layered(base, data))
        cfg.TAG = tag_of(influential_settings(leaves(cfg), name), baseline)
    cfg.freeze()
    return cfg


def check_names(trainer: str, *files: str) -> None:
    """Refuses a misspelt trainer or config file before anything heavy is imported."""
    if trainer and trainer not in TRAINER_REGISTRY:
        TRAINER_REGISTRY.get(trainer)
    for path in filter(None, files):
        read_yaml(find_config(path))


def layered(base: CfgNode, files: Sequence[str], pairs: Sequence[Sequence] = ()) -> CfgNode:
    """A copy of `base` with yaml files, where a path is given, and then lists of KEY VALUE pairs laid over it."""
    cfg = base.clone()
    for path in filter(None, files):
        merge_file(cfg, find_config(path))
    for some in pairs:
        merge_pairs(cfg, some)
    return cfg


def find_config(path: str | Path) -> Path:
    """`path` as it is, or below the project, so that `configs/datasets/x.yaml` works from any folder."""
    path = Path(path)
    beside_project = CONFIGS.parent / path
    return beside_project if not path.exists() and beside_project.is_file() else path


def read_yaml(path: Path) -> dict:
    """The plain data in a yaml file. Python files, which yacs would execute, and yaml tags are refused."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"config file {path} is not a .yaml file; other kinds are refused because they can run code")
    try:
        content = parse_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"config file {path} is not plain yaml: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} must hold KEY: value pairs, not {type(content).__name__}")
    return content


def parse_yaml(text: str | bytes) -> object:
    """The plain data in yaml text. What looks like a date or a number but is none (`2024-13-45`, `0x_`), a wrong tag
    (`!!int x`) or a thousand brackets end in exceptions of many kinds inside the library: here they are one."""
    try:
        return yaml.safe_load(text)
    except Exception as error:
        raise yaml.YAMLError(str(error) or type(error).__name__) from error


def merge_file(cfg: CfgNode, path: Path) -> None:
    merge_tree(cfg, read_yaml(path), cfg, source=str(path))


def merge_tree(root: CfgNode, tree: dict, node: CfgNode, source: str, prefix: str = "") -> None:
    """Sets each value of a nested dict in `node`, naming `source` when one does not fit."""
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if key not in node:
            raise unknown_key(root, full, source)
        if isinstance(node[key], CfgNode):
            if not isinstance(value, dict):
                raise ConfigError(f"{full} in {source} is a group of keys, not a value")
            merge_tree(root, value, node[key], source, prefix=f"{full}.")
        else:
            node[key] = fitted(full, value, node[key], source)


def merge_pairs(cfg: CfgNode, pairs: Sequence) -> None:
    """Sets `KEY VALUE` pairs as they come from the command line or from Python."""
    if len(pairs) % 2:
        raise ConfigError(f"settings come as KEY VALUE pairs; '{pairs[-1]}' has no partner")
    for full, value in zip(pairs[::2], pairs[1::2], strict=True):
        *groups, leaf = str(full).split(".")
        node = cfg
        for group in groups:
            node = node.get(group) if isinstance(node, CfgNode) else None
        if not isinstance(node, CfgNode) or leaf not in node:
            raise unknown_key(cfg, str(full), "the command")
        if isinstance(node[leaf], CfgNode):
            raise ConfigError(f"{full} is a group of keys; give one of {', '.join(f'{full}.{k}' for k in node[leaf])}")
        node[leaf] = fitted(str(full), value, node[leaf], "the command")


def unknown_key(cfg: CfgNode, key: str, source: str) -> ConfigError:
    return ConfigError(f"unknown key '{key}' in {source}.{nearest(key, leaves(cfg))}")


def fitted(key: str, value: object, default: object, source: str) -> object:
    """`value` in the type of `default`. Text from the command line is read as yaml reads it, whole numbers pass for
    floats, words such as `on` stay words where a word is expected, and nothing at all is the empty text there."""
    if isinstance(value, str) and not isinstance(default, str):
        with suppress(yaml.YAMLError):  # stays text, and is refused below
            value = parse_yaml(value)
        if isinstance(value, str):
            value = as_number(value)
    if isinstance(default, str):
        if isinstance(value, bool):
            value = "on" if value else "off"  # yaml reads an unquoted on/off as a truth value
        elif not isinstance(value, Collection):
            value = "" if value is None else str(value)  # numbers, dates, paths
    elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        value = as_number(value)
    if not isinstance(value, type(default)) or isinstance(value, bool) != isinstance(default, bool):
        raise ConfigError(f"{key} in {source} must be of type {type(default).__name__}, not {value!r}")
    return value


def as_number(value: object) -> object:
    """`1e-3` is a number to people but text to yaml, which wants `1.0e-3`. What is too large for a float stays."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value
