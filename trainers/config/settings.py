"""What the settings of a run mean: which have an effect, which a user changed, and their names.

The rows themselves are in table.py and in the methods' files.
"""
from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from yacs.config import CfgNode

from .declared import find_setting, get_cfg_default, leaves, method_settings, rows_of
from .layers import baseline_of, default_settings
from .names import file_label, path_safe
from .registry import TRAINER_REGISTRY, method_info, method_key
from .setting import Check, OneOf, Range, Role, Setting, plain_number

__all__ = [
    "Check",
    "OneOf",
    "Range",
    "Role",
    "Setting",
    "baseline_of",
    "changed_settings",
    "default_settings",
    "effective_settings",
    "find_setting",
    "get_cfg_default",
    "leaves",
    "method_settings",
    "retag",
    "setting_title",
    "setting_words",
    "settings_of_training",
    "tag_of",
    "without_effect",
]

Resolved = Mapping[str, object]  # what defaults stand for, known from model and data: {KEY: value}


def effective_settings(
    cfg: CfgNode, resolved: Resolved | None = None, trains: bool = True,
) -> dict[str, object]:
    """The settings that a run's predictions depend on, by their full keys.

    Settings without an effect for this trainer and these values are absent. Values are canonical:
    one spelling for values that mean the same, and a file's label and content hash instead of its
    path.

    Args:
        cfg: The settings of a run.
        resolved: What defaults such as `auto` stand for, where only the model or the data tell,
            such as {"INPUT.PIXEL_MEAN": [0.48, 0.46, 0.41], "TEST.LIMIT": number of images}.
        trains: Whether a method that learns from labelled images does so in this run. If it tests
            a finished prompt instead, the settings of its training have no effect.
    """
    settings = leaves(cfg)
    values = {}
    for key, row in effective_rows(settings, cfg.TRAINER.NAME, trains).items():
        values[key] = effective_value(row, settings[key], settings, resolved or {})
    return values


def changed_settings(
    cfg: CfgNode, resolved: Resolved | None = None, trains: bool = True,
) -> dict[str, tuple[object, object]]:
    """The effective settings that are not the defaults of the trainer on this data set.

    A value that means the same as the default counts as the default. Settings that have a folder of
    their own in a run's path (data set, corruption, backbone, trainer, seed) are left out.

    Args:
        cfg: The settings of a run.
        resolved: See `effective_settings`.
        trains: See `effective_settings`.

    Returns:
        For each key the default and the value, both as in `effective_settings`.
    """
    settings = leaves(cfg)
    baseline = baseline_of(cfg)
    changed = {}
    for key, row in effective_rows(settings, cfg.TRAINER.NAME, trains).items():
        default = baseline.get(key, row.default)
        value = settings[key]
        if row.in_path or row.canonical(value) == row.canonical(default):
            continue
        effective_default = effective_value(row, default, settings, resolved or {})
        effective = effective_value(row, value, settings, resolved or {})
        if effective != effective_default:
            changed[key] = (effective_default, effective)
    return changed


def without_effect(cfg: CfgNode) -> list[tuple[str, str]]:
    """The settings that a user changed although they have no effect here, each with what to do."""
    settings = leaves(cfg)
    baseline = baseline_of(cfg)
    method = method_info(cfg.TRAINER.NAME)
    unused = []
    for key, row in rows_of(settings, method.name).items():
        if not row.influences_predictions:
            continue
        remedy = row.reason_without_effect(settings, method)
        if not remedy:
            continue
        default = effective_value(row, baseline.get(key, row.default), settings, {})
        if effective_value(row, settings[key], settings, {}) != default:
            unused.append((key, remedy))
    return unused


def settings_of_training(cfg: CfgNode) -> list[str]:
    """The changed settings, as `KEY VALUE`, that have no effect where a finished prompt is tested.
    """
    effective = changed_settings(cfg, trains=False)
    words = []
    for key, (_, value) in changed_settings(cfg).items():
        if key not in effective:
            words.append(f"{key} {value}")
    return words


def effective_rows(
    settings: Mapping[str, object], trainer: str, trains: bool = True,
) -> dict[str, Setting]:
    """The rows of the settings that influence the predictions of a trainer."""
    method = method_info(trainer)
    only_tests = method.trained and not trains
    terms = added_terms(settings)
    foreign = foreign_keys(settings, trainer, terms)
    effective = {}
    for key, row in rows_of(settings, trainer).items():
        if key in foreign or not row.influences_predictions:
            continue
        if only_tests and row.role is Role.METHOD and not row.in_path:
            continue
        if not row.reason_without_effect(settings, method):
            effective[key] = row
    return effective


def added_terms(settings: Mapping[str, object]) -> set[str]:
    """The methods that TRAINER.REGULARISERS adds, in one spelling."""
    terms = str(settings.get("TRAINER.REGULARISERS") or "").split(",")
    return {method_key(term.partition(":")[0]) for term in terms if term.strip()}


def foreign_keys(settings: Mapping[str, object], trainer: str, terms: set[str]) -> set[str]:
    """The settings of methods that a run does not use.

    A config with added terms has the settings of all methods. Of an added term all count but its λ,
    which its weight in TRAINER.REGULARISERS replaces.
    """
    if trainer not in TRAINER_REGISTRY:
        return set()
    own_keys = leaves(get_cfg_default([trainer])).keys()
    foreign = set()
    for key in settings:
        if key in own_keys:
            continue
        branch = method_key(key.split(".")[1]) if "." in key else ""
        if branch not in terms or key.endswith(".LAMBDA"):
            foreign.add(key)
    return foreign


def effective_value(
    row: Setting, value: object, settings: Mapping[str, object], resolved: Resolved,
) -> object:
    """A value as records state it."""
    if row.names_file and value:
        return resolved.get(row.key) or file_label(str(value))
    if row.names_file:
        return value
    if row.recorded is not None:
        return row.recorded(str(value))
    value = row.canonical(value)
    if row.key in resolved:
        meaning = resolved[row.key]
    elif row.resolve is not None:
        meaning = row.resolve(settings)
    else:
        meaning = None
    if meaning is None:
        return value
    if value == row.default or row.same(value, meaning):
        # The default of `auto` settings stands for another value. That of the others is stated.
        return meaning if row.auto else row.default
    return value


def tag_of(cfg: CfgNode, resolved: Resolved | None = None, trains: bool = True) -> str:
    """A readable folder name from the changed settings: `default`, or `STEPS-2_LAMBDA-10.0`.

    Args:
        cfg: The settings of a run.
        resolved: See `effective_settings`. For MODEL.INIT_WEIGHTS it is the name of the protocol by
            which the prompt was learnt, such as `CoOp-2-shots`, so that seeds lie side by side.
        trains: See `effective_settings`.
    """
    parts = []
    for key, (_, value) in changed_settings(cfg, resolved, trains).items():
        if key == "MODEL.INIT_WEIGHTS" and resolved and key in resolved:
            parts.append(str(value))
        else:
            parts.append(f"{key.rpartition('.')[2]}-{value}")
    return path_safe("_".join(parts)) or "default"


def retag(cfg: CfgNode, resolved: Resolved, trains: bool = True) -> CfgNode:
    """The same settings with the TAG that they have once model and data are known.

    A TAG that is not made of the settings was chosen, and stays.

    Args:
        cfg: The settings of a run.
        resolved: See `tag_of`.
        trains: See `effective_settings`.
    """
    automatic_tag = tag_of(cfg)
    if automatic_tag != cfg.TAG:
        return cfg
    copy = cfg.clone()
    copy.defrost()
    copy.TAG = tag_of(cfg, resolved, trains)
    copy.freeze()
    return copy


def setting_words(key: str, value: object) -> str:
    """A setting as a row, a title or a legend states it: `λ 10`, `2 steps`, `never reset`.

    Two settings or values never have the same words.
    """
    words = find_setting(key).words(value)
    if words:
        return words
    leaf = key.rpartition(".")[2]
    name = key.removeprefix("TRAINER.") if leaf in ambiguous_names() else leaf
    return f"{name} {plain_number(value) or 'none'}"


def setting_title(key: str, methods: str = "") -> str:
    """What a table that compares the values of a setting is called.

    Args:
        key: The setting.
        methods: The labels of the methods that have it.
    """
    if key.endswith(".LAMBDA"):
        return f"λ of {methods}" if methods else "λ"
    return find_setting(key).title or key


@cache
def ambiguous_names() -> frozenset[str]:
    """Last names that several settings have, at least one of them outside TRAINER."""
    groups: dict[str, set[str]] = {}
    for key in leaves(get_cfg_default()):
        group, _, leaf = key.rpartition(".")
        shared_group = "TRAINER" if group.startswith("TRAINER.") else group
        groups.setdefault(leaf, set()).add(shared_group)
    return frozenset(leaf for leaf, members in groups.items() if len(members) > 1)
