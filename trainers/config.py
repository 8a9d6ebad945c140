"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import yaml
from yacs.config import CfgNode

from ..datasets.errors import ConfigError
from ..datasets.registry import nearest
from .defaults import get_cfg_default
from .registry import TRAINER_REGISTRY
from .runs.fingerprint import influential_settings, tag_of
from .validation import leaves, validate

# In a checkout and in an installed package alike, `configs` lies beside `trainers`.
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def build_cfg(
    trainer: str = "",
    dataset_config_file: str = "",
    config_file: str = "",
    resume: str = "",
    flags: Sequence = (),
    opts: Sequence = (),
) -> CfgNode:
    """Defaults < a resumed run's config < the trainer's yaml < dataset yaml < `config_file` < flags < opts; frozen."""
    cfg = get_cfg_default()
    if resume:
        # A run's own config already holds every layer, so the yaml files below must not undo it.
        merge_file(cfg, Path(resume) / "config.yaml")
    name = trainer or named_trainer(cfg, [dataset_config_file, config_file], opts)
    if name and not resume:
        TRAINER_REGISTRY.get(name)
        own = CONFIGS / "trainers" / f"{name.lower()}.yaml"
        if own.is_file():
            merge_file(cfg, own)
    if name:
        cfg.TRAINER.NAME = name
    for path in (dataset_config_file, config_file):
        if path:
            merge_file(cfg, find_config(path))
        if path == dataset_config_file:
            baseline = leaves(cfg)
    merge_pairs(cfg, flags)
    merge_pairs(cfg, opts)
    validate(cfg)
    if not cfg.TAG:
        branch = TRAINER_REGISTRY.get(cfg.TRAINER.NAME).branch
        cfg.TAG = tag_of(influential_settings(cfg, branch), baseline)
    cfg.freeze()
    return cfg


def named_trainer(cfg: CfgNode, files: Sequence[str], opts: Sequence) -> str:
    """The trainer's name where no flag gives it: from KEY VALUE pairs, else from the yaml files, else from `cfg`."""
    pairs = dict(zip(opts[::2], opts[1::2], strict=False))
    if "TRAINER.NAME" in pairs:
        return str(pairs["TRAINER.NAME"])
    name = cfg.TRAINER.NAME
    for path in files:
        if path:
            name = (read_yaml(find_config(path)).get("TRAINER") or {}).get("NAME", name)
    return name


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
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"config file {path} is not plain yaml: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} must hold KEY: value pairs, not {type(content).__name__}")
    return content


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
    floats, and words such as `on` stay words where a word is expected."""
    if isinstance(default, str):
        if isinstance(value, bool):
            return "on" if value else "off"  # yaml reads an unquoted on/off as a truth value
        return str(value)
    if isinstance(value, str):
        with suppress(yaml.YAMLError):  # stays text, and is refused below
            value = yaml.safe_load(value)
        if isinstance(value, str):
            value = as_number(value)
    if isinstance(default, bool):
        fits = isinstance(value, bool)
    elif isinstance(default, int):
        fits = isinstance(value, int) and not isinstance(value, bool)
    elif isinstance(default, float):
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        value = float(value) if fits else value
    else:
        fits = isinstance(value, type(default))
    if not fits:
        raise ConfigError(f"{key} in {source} must be of type {type(default).__name__}, not {value!r}")
    return value


def as_number(text: str) -> object:
    """`1e-3` is a number to people but text to yaml, which wants `1.0e-3`."""
    try:
        return float(text)
    except ValueError:
        return text
