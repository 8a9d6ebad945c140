"""Values from yaml files and from KEY VALUE pairs into a config: in the right type, and under a name that it has."""
from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yacs.config import CfgNode

from ...datasets.utils.errors import ConfigError, first_five
from ...datasets.utils.files import read_regular
from .dassl_compat import RENAMED, WORDS, WORDS_MEANT, leave_alone, our_name, our_trainer
from .roles import leaves
from .safe_yaml import parse_yaml

AUTO = {"DATALOADER.NUM_WORKERS": -1}  # whole numbers that may be given as `auto`
COMMAND = "the command"
KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")  # what may stand before = in KEY=VALUE
DEPTH = 5  # groups within groups that a file may have


@dataclass
class Met:
    """What was met on the way through the layers: keys nobody knows, which are told all at once, and remarks."""

    unknown: dict[str, str] = field(default_factory=dict)  # key -> where it stands
    idle: dict[str, list[str]] = field(default_factory=dict)  # source -> keys without a meaning here
    remarks: list[str] = field(default_factory=list)

    def refuse_unknown(self, cfg: CfgNode) -> None:
        """One error for all unknown keys, each with the known one that was meant, where that is plain."""
        if not self.unknown:
            return
        known = list(leaves(cfg))
        hints = {key: suggestion(key, known) for key in self.unknown}
        if len(hints) == 1:
            ((key, hint),) = hints.items()
            raise ConfigError(f"unknown key '{key}' in {self.unknown[key]}.{hint and f' Did you mean {hint!r}?'}")
        told = [f"'{key}' in {self.unknown[key]}{hint and f' (did you mean {hint!r}?)'}" for key, hint in hints.items()]
        raise ConfigError(f"unknown keys: {first_five(told)}")

    def lines(self) -> list[str]:
        """What the user is told: a line for each source with keys that were left alone, and the remarks."""
        idle = [f"without a meaning here and left alone, from {source}: {', '.join(dict.fromkeys(keys))}"
                for source, keys in self.idle.items()]
        return [*idle, *dict.fromkeys(self.remarks)]


def suggestion(key: str, known: Sequence[str]) -> str:
    """The key that was meant: one of the same last name elsewhere, the nearest of its group, or a whole name that is
    very near; nothing, rather than a guess."""
    group, _, leaf = key.upper().rpartition(".")
    alike = [name for name in known if name.rpartition(".")[2] == leaf]
    if alike:
        return max(alike, key=lambda name: difflib.SequenceMatcher(None, name, key.upper()).ratio())
    of_group = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == group}
    if near := difflib.get_close_matches(leaf, of_group, n=1, cutoff=0.6):
        return of_group[near[0]]
    whole = difflib.get_close_matches(key.upper(), known, n=1, cutoff=0.8)
    return whole[0] if whole else ""


def read_yaml(path: Path) -> dict:
    """The plain data in a yaml file. Python files, which yacs would execute, and yaml tags are refused."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"config file {path} is not a .yaml file; other kinds are refused because they can run code")
    try:
        content = parse_yaml(read_regular(path))
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = where + " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"config file {path} is not plain yaml: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"config file {path} must hold KEY: value pairs, not {type(content).__name__}")
    return content


def flatten(tree: dict, prefix: str = "", depth: int = DEPTH) -> Iterator[tuple[str, object]]:
    """The values of nested dicts by their full names; what lies deeper than any setting is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and depth:
            yield from flatten(value, f"{prefix}{key}.", depth - 1)
        else:
            yield f"{prefix}{key}", value


def in_pairs(tokens: Sequence) -> Iterator[tuple[str, object]]:
    """`KEY VALUE` and `KEY=VALUE`, as they come from the command line or from Python."""
    rest = iter(tokens)
    for token in rest:
        key, equals, value = str(token).partition("=")
        if equals and KEY.fullmatch(key):
            yield key, value
            continue
        try:
            yield str(token), next(rest)
        except StopIteration:
            raise ConfigError(f"settings come as KEY VALUE pairs; '{token}' has no partner") from None


def merge_values(cfg: CfgNode, values: Iterable[tuple[str, object]], source: str, met: Met) -> None:
    """Sets values by their full names. Names and values of CoOp's are understood; unknown ones are kept for later."""
    for given, value in values:
        key = given
        if given in RENAMED:
            key, value = our_name(given, plain_value(value), source)
            met.remarks.append(f"{given} in {source} is {key} {value} here")
        elif not is_known(cfg, given) or is_height_and_width(given, value):
            if leave_alone(given, plain_value(value), source):
                met.idle.setdefault(source, []).append(given)
            else:
                met.unknown.setdefault(given, source)
            continue
        elif given == WORDS and str(value) in WORDS_MEANT:
            value = WORDS_MEANT[str(value)]
            met.remarks += [f"{given} in {source} is '{value}' here"] if value else []
        elif given == "TRAINER.NAME" and isinstance(value, str):
            name, (value, with_it) = value, our_trainer(value)
            if with_it:
                met.remarks.append(f"{name} is {value} with {' '.join(with_it)} here")
                merge_values(cfg, in_pairs(with_it), source, met)
        set_value(cfg, key, value, source)


def set_value(cfg: CfgNode, key: str, value: object, source: str) -> None:
    *groups, leaf = key.split(".")
    node = cfg
    for group in groups:
        node = node[group]
    if isinstance(node[leaf], CfgNode):
        if source != COMMAND:
            raise ConfigError(f"{key} in {source} is a group of keys, not a value")
        raise ConfigError(f"{key} is a group of keys; give one of {', '.join(f'{key}.{k}' for k in node[leaf])}")
    node[leaf] = AUTO[key] if key in AUTO and value == "auto" else fitted(key, value, node[leaf], source)


def is_known(cfg: CfgNode, key: str) -> bool:
    node: object = cfg
    for name in key.split("."):
        if not isinstance(node, CfgNode) or name not in node:
            return False
        node = node[name]
    return True


def is_height_and_width(key: str, value: object) -> bool:
    """Whether this is CoOp's way of saying what the backbone says."""
    numbers = re.findall(r"\d+", value) if isinstance(value, str) else value
    return key == "INPUT.SIZE" and isinstance(numbers, list | tuple) and len(numbers) == 2


def plain_value(value: object) -> object:
    """Text as yaml reads it; what it cannot read stays text."""
    if isinstance(value, str):
        with suppress(yaml.YAMLError):
            return parse_yaml(value)
    return value


def fitted(key: str, value: object, default: object, source: str) -> object:
    """`value` in the type of `default`. Text from the command line is read as yaml reads it, whole numbers pass for
    floats, words such as `on` stay words where a word is expected, and nothing at all is the empty text there."""
    if isinstance(value, str) and not isinstance(default, str):
        value = plain_value(value)
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
