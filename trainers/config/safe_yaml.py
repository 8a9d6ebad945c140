"""Reads yaml as plain data: no code, no aliases, no duplicate keys, and no surprising types."""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from ...datasets.utils.errors import ConfigError, one_line
from ...datasets.utils.files import read_regular


class Loader(yaml.SafeLoader):
    """YAML 1.1 without its traps: `010` (8 there), `1:30` (90), `yes`, `0x1F`, `1_000` and dates
    stay text.
    """

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 - only those that are added below

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        # Aliases of aliases can expand to more values than fit into memory.
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases (*name): write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        # Of a key that is there twice PyYAML takes the last value, without a word.
        lines: dict[str, int] = {}  # the line of each key, from 1
        for key, _ in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"'{name}' is there twice, in lines {lines[name]} and {line}")
            lines[name] = line
        return super().construct_mapping(node, deep)


# What unquoted text must look like for each type, and with which letters it may begin, by which
# PyYAML finds the patterns to try. Other text stays text.
for tag, pattern, first_letters in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first_letters)
    )


@lru_cache(maxsize=200)  # a plan of many runs reads the same few files thousands of times
def parse_yaml(text: str | bytes) -> Any:
    """The plain data in yaml text, which callers share and must not change.

    Raises:
        yaml.YAMLError: For any fault of the text.
    """
    try:
        if len(text) > 1_000_000:
            raise yaml.YAMLError("it is longer than a million characters")
        return yaml.load(text, Loader)
    # PyYAML raises many kinds: ValueError, RecursionError, TypeError ...
    except Exception as error:
        raise yaml.YAMLError(one_line(error, 300) or type(error).__name__) from error


def plain_value(value: object) -> object:
    """Text as yaml reads it; text that is not yaml stays text."""
    if isinstance(value, str):
        with suppress(yaml.YAMLError):
            return deepcopy(parse_yaml(value))  # two settings may have the same text
    return value


def read_yaml(path: Path) -> dict:
    """The plain data in a yaml file.

    Python files, which yacs would execute, and yaml tags are refused.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"config file {path} is not a .yaml file; other kinds are refused because they can run "
            "code"
        )
    try:
        content = parse_yaml(read_regular(path))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(
            f"cannot read config file {path}: {getattr(error, 'strerror', error)}"
        ) from error
    if not isinstance(content, dict | None):
        raise ConfigError(
            f"config file {path} must hold KEY: value pairs, not {type(content).__name__}"
        )
    return content or {}


def flatten(tree: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the values of nested dicts by their full names.

    Args:
        tree: Nested dicts such as {"TTA": {"STEPS": 1}}.
        prefix: Text before each name, with its dot.

    Yields:
        Pairs such as ("TTA.STEPS", 1).
    """
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def unflatten(values: Mapping[str, object]) -> dict[str, Any]:
    """Nested dicts from values by their full names: the reverse of `flatten`."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *groups, leaf = key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return tree
