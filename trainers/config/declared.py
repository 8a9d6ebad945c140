"""All settings: those of the table and those that methods declare, as rows and as a tree."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from yacs.config import CfgNode

from .registry import TRAINER_REGISTRY, branch_of
from .safe_yaml import flatten
from .setting import Range, Setting
from .table import TABLE

SHARED: Mapping[str, Setting] = {row.key: row for row in TABLE}


def method_settings(method: type[Any]) -> tuple[Setting, ...]:
    """The rows that a method declares, with full keys.

    A class has the rows of the classes that it is derived from, in their branches, except those
    that it declares again under the same name in its own branch.
    """
    rows: dict[str, Setting] = {}
    for cls in method.__mro__:
        for row in vars(cls).get("settings", ()):
            if row.key in rows:
                continue
            full_key = row.key
            if "." not in full_key:
                full_key = f"TRAINER.{branch_of(cls.__name__)}.{row.key}"
            rows[row.key] = replace(row, key=full_key)
    return tuple(rows.values())


def get_cfg_default(methods: Iterable[str] = TRAINER_REGISTRY) -> CfgNode:
    """A fresh copy of all defaults, with those of the given methods."""
    cfg = CfgNode()
    for row in TABLE:
        add_default(cfg, row)
    for name in methods:
        method = TRAINER_REGISTRY.get(name)
        for row in method_settings(method):
            add_default(cfg, row)
        method.extend_defaults(cfg)
    return cfg


def add_default(cfg: CfgNode, row: Setting) -> None:
    """Adds a setting to a tree."""
    *groups, leaf = row.key.split(".")
    node = cfg
    for group in groups:
        node = node.setdefault(group, CfgNode())
    node[leaf] = deepcopy(row.default)  # a list must not be shared


def leaves(cfg: CfgNode) -> dict[str, object]:
    """Every setting by its full key."""
    return dict(flatten(cfg))


def find_setting(key: str) -> Setting:
    """The row of a full key.

    A key that a plugin adds by `extend_defaults`, or that is not declared, gets a neutral row.
    """
    if key in SHARED:
        return SHARED[key]
    # Methods are imported only as far as needed: first the one that has the key's branch.
    names = sorted(
        TRAINER_REGISTRY, key=lambda name: not key.startswith(f"TRAINER.{branch_of(name)}.")
    )
    for name in names:
        for row in method_settings(TRAINER_REGISTRY.get(name)):
            if row.key == key:
                return row
        if key.startswith(f"TRAINER.{branch_of(name)}."):
            break  # the plugin adds it by extend_defaults
    return undeclared_setting(key)


def rows_of(settings: Mapping[str, object], trainer: str) -> dict[str, Setting]:
    """The row of each setting of a config.

    Args:
        settings: The settings by their full keys.
        trainer: The name of the method, whose rows may be anywhere in the tree. Methods that are
            added to it as terms have theirs in their branches.
    """
    declared = dict(SHARED)
    branches = {key.split(".")[1] for key in settings if key.startswith("TRAINER.")}
    for name in TRAINER_REGISTRY:
        if name == trainer or branch_of(name) in branches:
            for row in method_settings(TRAINER_REGISTRY.get(name)):
                declared.setdefault(row.key, row)
    rows = {}
    for key, value in settings.items():
        if key in declared:
            rows[key] = declared[key]
        else:
            rows[key] = undeclared_setting(key, value)
    return rows


def undeclared_setting(key: str, default: object = "") -> Setting:
    """The row of a setting that no row declares: it belongs to a method."""
    if key.rpartition(".")[2] == "LAMBDA":
        return Setting(key, default, "λ", allowed=Range(least=0), show="λ {}")
    return Setting(key, default, "")
