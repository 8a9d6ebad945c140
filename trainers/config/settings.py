"""Finds the settings of a run that have an effect or were changed; makes its labels and its folder.

The rows themselves are in table.py and in the methods' files.
"""
from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import run_name
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import flatten, read_regular
from .layers import Config, declared_rows, default_settings, get_cfg_default
from .registry import TRAINER_REGISTRY, branch_of, method_info, method_key, method_settings
from .schema import (
    PREDICTION_ROLES,
    Check,
    OneOf,
    Range,
    Role,
    Setting,
    plain_number,
    undeclared_setting,
)
from .table import SHARED

__all__ = [
    "Check",
    "OneOf",
    "Range",
    "Role",
    "Setting",
    "backbone_name",
    "baseline_of",
    "changed_settings",
    "default_settings",
    "effective_settings",
    "event_folder",
    "event_folders",
    "file_label",
    "find_setting",
    "get_cfg_default",
    "leaves",
    "method_settings",
    "path_safe",
    "results_name",
    "retag",
    "run_path",
    "setting_title",
    "setting_words",
    "settings_of_training",
    "short_hash",
    "tag_of",
    "untuned_words",
    "without_effect",
    "zero_shot_event_folder",
]

MAX_LENGTH = 100  # characters of a part of a run folder's path
# The label of a learnt prompt, such as `CoOp 2 shots`, which vlm/prompt_protocol.py makes.
SHOTS = re.compile(r"(.+) (\d+ shots?)")

Resolved = Mapping[str, object]  # what defaults stand for, known from model and data: {KEY: value}


def leaves(cfg: CfgNode) -> dict[str, object]:
    """Every setting by its full key."""
    return dict(flatten(cfg))


def baseline_of(cfg: CfgNode) -> Mapping[str, object]:
    """The settings of a config's trainer on its data set that a user gets without changing any."""
    if isinstance(cfg, Config) and cfg.baseline is not None:
        return cfg.baseline
    return default_settings(cfg.TRAINER.NAME, cfg.DATASET.NAME)


# Rows

def find_setting(key: str) -> Setting:
    """The row of a full key.

    A key that a plugin adds by `extend_defaults`, or that is not declared, gets a neutral row.
    """
    return declared_setting(key) or undeclared_setting(key)


def declared_setting(key: str) -> Setting | None:
    """The row of a full key; None if no row declares it."""
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
    return None


def rows_of(settings: Mapping[str, object], trainer: str) -> dict[str, Setting]:
    """Returns the row of each setting of a config.

    Args:
        settings: The settings by their full keys.
        trainer: The name of the method, whose rows may be anywhere in the tree.
    """
    method_rows = {row.key: row for row in method_info(trainer).settings}
    rows = {}
    for key, value in settings.items():
        row = SHARED.get(key) or method_rows.get(key) or declared_setting(key)
        rows[key] = row or undeclared_setting(key, value)
    return rows


def influences_predictions(row: Setting) -> bool:
    """Whether a setting changes predictions by more than rounding, where it has an effect."""
    return row.role in PREDICTION_ROLES and not row.rounding


# Effects

# A setting has an effect if the method reads it and no other setting makes it void. Those without
# an effect are in no record and no folder name, so that runs which predict the same are one run.


class Effects:
    """Which settings have an effect on the predictions of a run.

    Attributes:
        settings: The values of all settings of the run by their full keys.
        method: The method of the run.
        used: The settings that the method reads, among those with `used_by` in the table; None if
            they are not known.
        only_tests: Whether a method that learns from labelled images tests a finished prompt.
        of_unused_methods: The settings of methods that the run does not use.
    """

    def __init__(
        self, settings: Mapping[str, object], trainer: str, trains: bool = True,
    ) -> None:
        self.settings = settings
        self.method = method_info(trainer)
        self.used: Collection[str] | None = None
        if self.method.used_settings is not None:
            self.used = self.method.used_settings(settings)
        self.only_tests = self.method.trained and not trains
        self.of_unused_methods = keys_of_unused_methods(settings, trainer)

    def has_effect(self, row: Setting) -> bool:
        """Whether a setting has an effect on the run's predictions."""
        if row.key in self.of_unused_methods or not influences_predictions(row):
            return False
        if self.only_tests and row.role is Role.METHOD and not row.in_path:
            return False
        return not self.remedy(row)

    def remedy(self, row: Setting) -> str:
        """What to do if a setting has no effect on predictions; "" if it has one."""
        if row.used_by and self.used is not None and row.key not in self.used:
            return f"only {row.used_by}, use it"
        if row.effect is not None:
            return row.effect(self.settings, self.method)
        return ""


def effective_settings(
    cfg: CfgNode,
    resolved: Resolved | None = None,
    trains: bool = True,
    keys: Collection[str] | None = None,
) -> dict[str, object]:
    """Returns the settings that a run's predictions depend on, by their full keys.

    Settings without an effect for this trainer and these values are absent. Values are canonical:
    one spelling for values that mean the same, and a file's label and content hash instead of its
    path.

    Args:
        cfg: The settings of a run.
        resolved: The values that defaults such as `auto` stand for, where only the model or the
            data tell, such as {"INPUT.PIXEL_MEAN": [0.48, 0.46, 0.41], "TEST.LIMIT": 1000}.
        trains: Whether a method that learns from labelled images does so in this run. If it tests
            a finished prompt instead, the settings of its training have no effect.
        keys: The settings that are asked for; None = all.
    """
    settings = leaves(cfg)
    effects = Effects(settings, cfg.TRAINER.NAME, trains)
    values = {}
    for key, row in rows_of(settings, cfg.TRAINER.NAME).items():
        if keys is not None and key not in keys:
            continue
        if effects.has_effect(row):
            values[key] = effective_value(row, settings[key], settings, resolved or {})
    return values


def effective_rows(settings: Mapping[str, object], trainer: str) -> dict[str, Setting]:
    """Returns the rows of the settings that influence the predictions of a trainer.

    Args:
        settings: The values of all settings by their full keys.
        trainer: Name of the method.
    """
    effects = Effects(settings, trainer)
    rows = rows_of(settings, trainer)
    return {key: row for key, row in rows.items() if effects.has_effect(row)}


def changed_settings(
    cfg: CfgNode, resolved: Resolved | None = None, trains: bool = True,
) -> dict[str, tuple[object, object]]:
    """Returns the effective settings that are not the defaults of the trainer on this data set.

    A value that means the same as the default counts as the default. Settings that have a folder of
    their own in a run's path (data set, corruption, backbone, trainer, seed) are left out.

    Args:
        cfg: The settings of a run.
        resolved: See `effective_settings`.
        trains: See `effective_settings`.

    Returns:
        For each key the default and the value, both as in `effective_settings`.
    """
    effects = Effects(leaves(cfg), cfg.TRAINER.NAME, trains)
    changed = {}
    for row, default, value in differences(cfg, resolved or {}):
        if not row.in_path and effects.has_effect(row):
            changed[row.key] = (default, value)
    return changed


def without_effect(cfg: CfgNode) -> list[tuple[str, str]]:
    """The settings that a user changed although they have no effect here, each with what to do."""
    effects = Effects(leaves(cfg), cfg.TRAINER.NAME)
    unused = []
    for row, _, _ in differences(cfg, {}):
        remedy = effects.remedy(row)
        if remedy:
            unused.append((row.key, remedy))
    return unused


def differences(
    cfg: CfgNode, resolved: Resolved,
) -> Iterator[tuple[Setting, object, object]]:
    """Yields the settings that mean something else than the trainer's defaults on this data set.

    Args:
        cfg: The settings of a run.
        resolved: See `effective_settings`.

    Yields:
        The row of each, the default and the value, both as in `effective_settings`.
    """
    settings = leaves(cfg)
    baseline = baseline_of(cfg)
    for key, value in settings.items():
        if key in baseline and baseline[key] == value:
            continue
        row = find_setting(key)
        if not influences_predictions(row):
            continue
        default = effective_value(row, baseline.get(key, row.default), settings, resolved)
        effective = effective_value(row, value, settings, resolved)
        if effective != default:
            yield row, default, effective


def settings_of_training(cfg: CfgNode) -> list[str]:
    """The changed settings, as `KEY VALUE`, that have no effect where a finished prompt is tested.
    """
    effective = changed_settings(cfg, trains=False)
    words = []
    for key, (_, value) in changed_settings(cfg).items():
        if key not in effective:
            words.append(f"{key} {value}")
    return words


def added_terms(settings: Mapping[str, object]) -> set[str]:
    """The methods that TRAINER.REGULARISERS adds, in one spelling."""
    terms = str(settings.get("TRAINER.REGULARISERS") or "").split(",")
    return {method_key(term.partition(":")[0]) for term in terms if term.strip()}


def keys_of_unused_methods(settings: Mapping[str, object], trainer: str) -> set[str]:
    """Returns the settings of methods that a run does not use.

    A config with added terms has the settings of all methods. An added term uses its settings
    except its λ, which its weight in TRAINER.REGULARISERS replaces.

    Args:
        settings: The values of all settings by their full keys.
        trainer: Name of the run's method.
    """
    if trainer not in TRAINER_REGISTRY:
        return set()
    own_keys = declared_rows([trainer]).keys()
    terms = added_terms(settings)
    keys = set()
    for key in settings:
        if key in own_keys:
            continue
        branch = ""
        if "." in key:
            branch = method_key(key.split(".")[1])
        if branch not in terms or key.endswith(".LAMBDA"):
            keys.add(key)
    return keys


def effective_value(
    row: Setting, value: object, settings: Mapping[str, object], resolved: Resolved,
) -> object:
    """Returns a value as records state it.

    Args:
        row: The setting.
        value: The setting's value.
        settings: The values of all settings of the run by their full keys.
        resolved: See `effective_settings`.
    """
    if row.names_file and value:
        return resolved.get(row.key) or file_label(str(value))
    if row.names_file:
        return value
    if row.names_backbone:
        return backbone_name(str(value))
    if row.canonical is not None:
        value = row.canonical(value)
    if row.key in resolved:
        meaning = resolved[row.key]
    elif row.resolve is not None:
        meaning = row.resolve(settings)
    else:
        meaning = None
    if meaning is None:
        return value
    is_default = value in (row.default, meaning)
    # A limit that is not below what there is limits nothing.
    if row.is_limit and isinstance(value, int) and isinstance(meaning, int):
        is_default = is_default or 0 < meaning <= value
    if is_default:
        # A default such as `auto` stands for another value, which is stated. Other defaults are
        # stated as they are.
        if row.auto:
            return meaning
        return row.default
    return value


def tag_of(cfg: CfgNode, resolved: Resolved | None = None, trains: bool = True) -> str:
    """Makes a readable folder name of the changed settings: `default`, or `STEPS-2_LAMBDA-10.0`.

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
    """Returns the same settings with the TAG that they have once model and data are known.

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
    """Returns the words for a setting in a row, a title or a legend: `λ 10`, `2 steps`.

    Two settings or values never have the same words.

    Args:
        key: The full key of the setting.
        value: The value.
    """
    show = find_setting(key).show
    if callable(show):
        return show(value)
    if isinstance(value, float):
        value = plain_number(value)
    if show:
        return show.format(value)
    name = key.rpartition(".")[2]
    if name in ambiguous_names():
        name = key.removeprefix("TRAINER.")
    return f"{name} {value if str(value) else 'none'}"


def setting_title(key: str, methods: str = "") -> str:
    """Returns the title of a table that compares the values of a setting.

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


# Names of files and backbones, and the folder of a run. They are readable, and differ where
# settings differ.

def short_hash(content: bytes) -> str:
    """A hash for names that people read: 8 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:8]


def path_safe(text: str) -> str:
    """`text` as a part of a path.

    A long one is cut and ends with a hash of the whole, because runs may differ in the rest.
    """
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    if len(safe) <= MAX_LENGTH:
        return safe
    start = safe[: MAX_LENGTH - 9].rstrip("-.")
    return f"{start}-{short_hash(text.encode())}"


def file_label(name: str) -> str:
    """The short name of a prompt, a list or descriptions, with a hash of the file's content.

    CoOp names every prompt prompt_learner/model.pth.tar-<epoch>, so the folder above is the name.
    A file that cannot be read has a hash of its path. An embedded prompt is called by its name.
    """
    path = Path(name)
    content = b""
    with suppress(OSError, ValueError):
        content = read_regular(path)
    if not content and path.name == name:
        return name
    label = path.name.split(".")[0]
    if path.parent.name == "prompt_learner" and path.parent.parent.name:
        label = path.parent.parent.name
    return f"{label}-{short_hash(content or name.encode())}"


def backbone_name(name: str) -> str:
    """A backbone's short name.

    Of a file or folder it is the last name, after the family and the model if they are given.
    """
    family, colon, rest = name.partition(":")
    if not colon:
        return Path(name).stem if Path(name).suffix else name
    model, _, file = rest.partition("@")
    if Path(model).is_dir():
        model = Path(model).name
    parts = [family, model]
    if file:
        parts.append(Path(file).stem)
    return "-".join(parts)


def untuned_words(prompt: str) -> str:
    """What a learnt prompt without tuning is called: `CoOp, 2 shots, untuned`."""
    shots = SHOTS.fullmatch(prompt)
    if shots is not None:
        return f"{shots[1]}, {shots[2]}, untuned"
    return f"{prompt or 'CoOp prompt'}, untuned"


# The folder of a run

def results_name(cfg: CfgNode) -> str:
    """What run folder and results call the data set."""
    data = cfg.DATASET
    return run_name(data.NAME, data.ROOT, data.CORRUPTION, data.SEVERITY)


def run_path(cfg: CfgNode) -> Path:
    """`--output-dir`, or output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>."""
    if cfg.OUTPUT_DIR:
        return Path(cfg.OUTPUT_DIR)
    if Path(cfg.TAG).is_absolute() or ".." in Path(cfg.TAG).parts or not cfg.TAG.isprintable():
        raise ConfigError(
            f"TAG is {cfg.TAG!r}; it must be a name below output/<dataset>/<trainer>/<backbone>"
        )
    backbone = path_safe(backbone_name(cfg.MODEL.BACKBONE.NAME))
    dataset = path_safe(results_name(cfg))
    return Path(
        "output", dataset, path_safe(cfg.TRAINER.NAME), backbone, cfg.TAG, f"seed{cfg.SEED}"
    )


def event_folders(run_dir: Path, trainer: str) -> list[Path]:
    """Returns the folders of TensorBoard's events: about a run's own predictions, then about those
    before tuning.

    The predictions of ZeroShot are the zero-shot ones, so it has one folder.

    Args:
        run_dir: The folder of the run.
        trainer: Name of the method.
    """
    folders = [zero_shot_event_folder(run_dir)]
    if not method_info(trainer).zero_shot:
        folders.insert(0, run_dir / "tensorboard" / "tuned")
    return folders


def event_folder(run_dir: Path, trainer: str) -> Path:
    """The folder of TensorBoard's events about a run's own predictions."""
    return event_folders(run_dir, trainer)[0]


def zero_shot_event_folder(run_dir: Path) -> Path:
    """The folder of TensorBoard's events about the predictions before tuning."""
    return run_dir / "tensorboard" / "zero-shot"
