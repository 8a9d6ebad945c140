"""Reads, merges and checks layers of settings, one value at a time.

The layers are the defaults, the trainer's yaml, the data set's yaml, a config file and the command.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import flatten, plain_value, read_yaml
from ...datasets.utils.registry import nearest
from .dassl_compat import (
    OUR_KEYS_WITH_OTHER_VALUES,
    check_dropped,
    coop_settings,
    describe,
    describes_training,
    is_dropped,
    is_ignored,
    refuse_other_trainers,
    rename_value,
    translate,
)
from .registry import (
    BASE,
    TRAINER_REGISTRY,
    MethodInfo,
    branch_of,
    method_info,
    method_settings,
    registered_name,
)
from .schema import Setting, undeclared_setting
from .table import SHARED

# `configs` is next to `trainers`, in a checkout and in an installed package.
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# Settings that are numbers, and the number that `auto` stands for.
NUMBER_OF_AUTO = {"DATALOADER.NUM_WORKERS": -1, "TTA.EPISODES": 0}
KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")  # the key in KEY=VALUE

# The file or command that settings come from, for messages; and pairs of full key and value.
Layer = tuple[str, list[tuple[str, object]]]


class Config(CfgNode):
    """Settings that know their baseline: what they are without a config file, flags and pairs."""

    baseline: Mapping[str, object] | None = None

    def remember(self, baseline: Mapping[str, object]) -> None:
        """Stores the baseline."""
        # Not by setattr: CfgNode would take the attribute for a setting. Copies keep it.
        self.__dict__["baseline"] = dict(baseline)


@dataclass
class Merged:
    """Settings from their layers.

    Attributes:
        cfg: The settings that the method has, each one checked.
        method: The method.
        values: The values of all settings that may be given, also of other methods, by full key.
        notes: Lines for the log.
    """

    cfg: Config
    method: MethodInfo
    values: Mapping[str, object]
    notes: list[str]


def merge_layers(lower: Sequence[Layer], upper: Sequence[Layer]) -> Merged:
    """Settings from their layers.

    Args:
        lower: What a run has without a user's changes: the data set's yaml.
        upper: What a user changed, in this command or in the run that it resumes. The last layer is
            that of KEY VALUE pairs.
    """
    name = find_trainer([*lower, *upper])
    if not name:
        # A key that is misspelt may be the trainer's, so that is said first.
        merge(default_values(declared_rows()), [*lower, *upper], trained=False)
        raise ConfigError(
            f"no trainer given: use --trainer with one of {', '.join(sorted(TRAINER_REGISTRY))}"
        )
    TRAINER_REGISTRY.get(name)  # refuses unknown names
    method = method_info(name)
    lower = with_trainer_layer(lower, name)
    rows, all_rows = needed_rows(name, [*lower, *upper])

    values = default_values(all_rows)
    values["TRAINER.NAME"] = name
    notes = merge(values, lower, method.trained)
    baseline = dict(values)  # before the user's layers: what tags, labels and records compare with
    notes += merge(values, upper, method.trained)
    if values["TRAINER.NAME"] != name:  # it was given in another spelling
        notes.append(f"trainer {values['TRAINER.NAME']} is {name}")
        values["TRAINER.NAME"] = name
    _, pairs = upper[-1]
    other_methods = [key for key, _ in pairs if key in values and key not in rows]
    if other_methods:
        notes.append(f"no effect on {name}, because another method's: {', '.join(other_methods)}")

    resolve_augmix(values, baseline)

    cfg = Config()
    cfg.remember(baseline)
    for key, row in rows.items():
        add_setting(cfg, key, checked_value(row, values[key], method))
    return Merged(cfg, method, values, notes)


def find_trainer(layers: Sequence[Layer]) -> str:
    """Returns the registered name of the trainer that the last layer with a name asks for.

    A name that is not registered is returned as it is: the registry refuses it. "" is returned if
    no layer has a name.
    """
    name = ""
    for source, values in layers:
        for key, value in values:
            if key == "TRAINER.NAME":
                name = str(cast_like_default(key, value, "", source))
    if not name or name in TRAINER_REGISTRY:
        return name
    translated, _ = translate("TRAINER.NAME", name, "")
    return registered_name(str(translated["TRAINER.NAME"]))


def needed_rows(
    trainer: str, layers: Sequence[Layer],
) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Returns the rows of the settings that a trainer has, and of all that may be given.

    Other methods are imported only if a setting of theirs is given, as in the yaml of a shifted
    data set, or if their terms are added.

    Args:
        trainer: A registered trainer.
        layers: The settings that are given, layer by layer.
    """
    pairs: list[tuple[str, object]] = []
    for _, values in layers:
        pairs += values
    methods: Iterable[str] = [trainer]
    if any(key == "TRAINER.REGULARISERS" and value for key, value in pairs):
        methods = TRAINER_REGISTRY
    rows = declared_rows(methods)
    if all(key in rows for key, _ in pairs):
        return rows, rows
    return rows, declared_rows()


def resolve_augmix(values: dict[str, object], baseline: dict[str, object]) -> None:
    """Replaces TTA.AUGMIX auto by what the data set's public scripts use.

    Args:
        values: The values of all settings by their full keys; this dict is changed.
        baseline: The values without a user's changes; this dict is changed too.
    """
    if not values["DATASET.NAME"]:
        return
    augmix = DATASET_REGISTRY.get(str(values["DATASET.NAME"])).augmix
    for settings in (values, baseline):
        if settings["TTA.AUGMIX"] == "auto":
            settings["TTA.AUGMIX"] = "on" if augmix else "off"


def checked_value(row: Setting, value: object, method: MethodInfo) -> object:
    """Checks a value, and returns it in one spelling where several mean the same.

    Defaults need no check.

    Args:
        row: The row of the setting.
        value: The value, in the type of the default.
        method: The method. Methods written for version 1.0 have `choices`.

    Raises:
        ConfigError: If the value is not allowed, with one line about what it must be.
    """
    if value == row.default:
        return value
    if row.canonical is not None:
        value = row.canonical(value)
    remedy = row.problem(value)
    if not remedy and method.cls is not None and row.key in method.cls.choices:
        choices = method.cls.choices[row.key]
        if value not in choices:
            remedy = f"one of {', '.join(choices)}"
    if remedy:
        raise ConfigError(f"{row.key} is {value!r}; it must be {remedy}")
    return value


# Defaults

def declared_rows(methods: Iterable[str] = TRAINER_REGISTRY) -> dict[str, Setting]:
    """The rows of the shared settings and of those of the given methods, by their full keys."""
    rows = dict(SHARED)
    for name in methods:
        method = TRAINER_REGISTRY.get(name)
        for row in method_settings(method):
            rows[row.key] = row
        if extends_defaults(method):
            rows = extended_rows(method, rows)
    return rows


def extends_defaults(method: type[Any]) -> bool:
    """Whether a method adds settings as those for version 1.0 do."""
    for cls in method.__mro__:
        if "extend_defaults" in vars(cls):
            return cls.__name__ != BASE
    return False


def extended_rows(method: type[Any], rows: Mapping[str, Setting]) -> dict[str, Setting]:
    """Returns rows, with those that `extend_defaults` of a method adds or changes.

    Args:
        method: A class written for version 1.0.
        rows: The rows so far by their full keys.
    """
    tree = tree_of(rows)
    method.extend_defaults(tree)
    extended = {}
    for key, default in flatten(tree):
        if key in rows:
            extended[key] = replace(rows[key], default=default)
        else:
            extended[key] = undeclared_setting(key, default)
    return extended


def get_cfg_default(methods: Iterable[str] = TRAINER_REGISTRY) -> CfgNode:
    """A fresh copy of all defaults, with those of the given methods."""
    return tree_of(declared_rows(methods))


def tree_of(rows: Mapping[str, Setting]) -> CfgNode:
    """The defaults as a tree."""
    tree = CfgNode()
    for key, row in rows.items():
        add_setting(tree, key, row.default)
    return tree


def add_setting(tree: CfgNode, key: str, value: object) -> None:
    """Adds a setting to a tree, with the branches that it needs.

    Args:
        tree: The tree, which is changed.
        key: The full key, such as TTA.STEPS.
        value: The value, of which the tree gets a copy.
    """
    *groups, leaf = key.split(".")
    node = tree
    for group in groups:
        node = node.setdefault(group, CfgNode())
    node[leaf] = deepcopy(value)  # a list must not be shared


def default_values(rows: Mapping[str, Setting]) -> dict[str, object]:
    """The defaults by their full keys."""
    return {key: row.default for key, row in rows.items()}


def default_settings(trainer: str, dataset: str = "") -> dict[str, object]:
    """Returns every setting by its full key: the defaults < the trainer's yaml < the data set's.

    Args:
        trainer: A registered trainer.
        dataset: A registered data set, or any other name for no data set's yaml.
    """
    file = dataset_file_of(dataset)
    layers = [file_layer(file)] if file else []
    layers = with_trainer_layer(layers, trainer)
    settings = default_values(declared_rows())
    merge(settings, layers, TRAINER_REGISTRY.get(trainer).trained)
    return settings


def default_pairs(trainer: str, dataset: str) -> list[object]:
    """Returns the method's own settings (λ …) on a data set, as a flat list KEY, VALUE, KEY, …."""
    prefix = f"TRAINER.{branch_of(trainer)}."
    pairs: list[object] = []
    for key, value in default_settings(trainer, dataset).items():
        if key.startswith(prefix):
            pairs += [key, value]
    return pairs


def with_trainer_layer(layers: Sequence[Layer], trainer: str) -> list[Layer]:
    """Returns the layers of a data set with the trainer's yaml below them.

    A method with `own_views` uses the same views on every data set, so its yaml is above them.
    """
    file = CONFIGS / "trainers" / f"{trainer.lower()}.yaml"
    if not file.is_file():
        return list(layers)
    if trainer in TRAINER_REGISTRY and TRAINER_REGISTRY.get(trainer).own_views:
        return [*layers, file_layer(file)]
    return [file_layer(file), *layers]


# Merging

def merge(settings: dict[str, object], layers: Sequence[Layer], trained: bool) -> list[str]:
    """Applies layers to settings. CoOp's names and values are translated.

    Args:
        settings: The values of all settings by their full keys; this dict is changed.
        layers: The layers, the lowest first.
        trained: Whether the method learns from labelled images.

    Returns:
        Lines for the log.

    Raises:
        ConfigError: If keys are unknown. It names up to five, each with the one that was probably
            meant.
    """
    notes: list[str] = []
    unknown: list[str] = []
    for source, values in layers:
        ignored: list[str] = []
        for key, value in values:
            if not trained and key.startswith("OPTIM.") and describes_training(source, values):
                # OPTIM in CoOp's files is about training prompts; the step at test time is ours.
                ignored.append(key)
                continue
            # Most keys are ours. The rest are tried as keys of earlier versions, then as CoOp's.
            if is_ours(key, value, settings):
                settings[key] = cast_like_default(key, value, settings[key], source)
                continue
            if is_dropped(key):
                notes.append(check_dropped(key, value, source, trained))
                continue
            translated, note = translate(key, value, source)
            if note:
                notes.append(note)
            if not translated:
                ignored.append(key)
            for our_key, our_value in translated.items():
                if our_key in settings:
                    renamed, note = rename_value(our_key, our_value)
                    if note:
                        notes.append(note)
                    settings[our_key] = cast_like_default(
                        our_key, renamed, settings[our_key], source
                    )
                elif is_ignored(our_key):
                    ignored.append(our_key)
                else:
                    unknown.append(
                        f"unknown key '{our_key}' in {source}.{probable_key(our_key, settings)}"
                    )
        if ignored:
            notes.append(f"ignored, without a meaning here, from {source}: {', '.join(ignored)}")
    if unknown:
        raise ConfigError(" ".join(unknown[:5]))
    return notes


def is_ours(key: str, value: object, settings: Mapping[str, object]) -> bool:
    """Whether key and value need no translation. A value that is set already needs none.

    Args:
        key: The full key.
        value: The value that is given.
        settings: The values of all settings so far by their full keys.
    """
    if key not in settings:
        return False
    return key not in OUR_KEYS_WITH_OTHER_VALUES or value == settings[key]


def probable_key(key: str, known: Iterable[str]) -> str:
    """Suggests the known key that is most like an unknown one: ` Did you mean 'X'?`.

    Keys with the same last part come first.
    """
    known = list(known)
    ending = key.upper().rpartition(".")[2]
    ending_alike = [name for name in known if name.rpartition(".")[2] == ending]
    return nearest(key, ending_alike or known)


def cast_like_default(key: str, value: object, default: object, source: str) -> object:
    """Returns `value` in the type of `default`.

    Text is read as in yaml, but `1e-3` is a number, `010` is 10, and whole numbers are floats too.

    Args:
        key: The full key, for the message.
        value: Text from the command line, or a value from yaml or Python.
        default: The setting's default.
        source: The file or command that the value comes from, for the message.

    Raises:
        ConfigError: If the value cannot have this type.
    """
    kind = type(default)
    if value == "auto" and key in NUMBER_OF_AUTO:
        value = NUMBER_OF_AUTO[key]
    if kind in (int, float) and isinstance(value, str):
        # Before yaml reads the text, to which `1e-3` and `010` are no numbers.
        with suppress(ValueError, OverflowError):
            value = kind(value)
    if kind is str and isinstance(value, bool):
        value = "on" if value else "off"  # yaml reads `on` as a bool, such as for TTA.AUGMIX
    elif kind is str and value is None:
        value = ""
    elif kind is str and (isinstance(value, str) or not isinstance(value, Collection)):
        value = str(value)  # numbers and paths
    elif kind is bool and isinstance(value, str):
        value = yaml.SafeLoader.bool_values.get(value.lower(), value)
    elif isinstance(value, str):
        value = plain_value(value)
    # A whole number is a float too, but `true` is no number.
    if kind in (int, float) and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = kind(value)
    if type(value) is not kind:
        raise ConfigError(f"{key} in {source} must be of type {kind.__name__}, not {value!r}")
    return value


# Reading

def file_layer(path: Path) -> Layer:
    """The layer of a yaml file: its path and its settings by their full keys."""
    values = list(flatten(read_yaml(path)))
    if len(dict(values)) < len(values):
        raise ConfigError(
            f"cannot read config file {path}: it has a key twice, as one name with dots and in a "
            "group"
        )
    return str(path), values


def read_pairs(tokens: Sequence) -> Iterator[tuple[str, object]]:
    """Reads pairs `KEY VALUE` and `KEY=VALUE`, from the command line or from Python."""
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


def pairs_layer(source: str, trainer: str, flags: Sequence, opts: Sequence) -> Layer:
    """Returns the layer of what a user gives besides files. Of equal keys the last one counts.

    Args:
        source: The command or argument that the settings come from, for messages.
        trainer: Value of --trainer; "" = not given.
        flags: KEY VALUE pairs that other flags, such as --backbone, stand for.
        opts: KEY VALUE pairs as the user wrote them.
    """
    trainer_pair = []
    if trainer:
        trainer_pair = ["TRAINER.NAME", trainer]
    return source, [*read_pairs(trainer_pair), *read_pairs(flags), *read_pairs(opts)]


def find_config(name: str, folder: str) -> Path:
    """Finds the yaml file that a user means.

    `configs/datasets/dtd.yaml`, `configs/datasets/dtd` and `dtd` work from anywhere.

    Args:
        name: A path, as it is or below the project, with or without `.yaml`; or a name.
        folder: The folder in `configs` in which a name is looked up, such as "datasets".
    """
    path = Path(name)
    for place in (path, CONFIGS.parent / path, CONFIGS / folder / path):
        for ending in ("", ".yaml"):
            file = Path(f"{place}{ending}")
            if file.is_file():
                return file
    if folder == "datasets":
        registered_file = dataset_file_of(DATASET_REGISTRY.find(name))
        if registered_file is not None:
            return registered_file
    hint = nearest(path.stem, [file.stem for file in (CONFIGS / folder).glob("*.yaml")])
    if not hint and folder == "trainers":
        hint = " Leave it out: each trainer has its own yaml; see --backbone."
    if not hint and folder == "datasets":
        known = sorted(file.stem for file in (CONFIGS / folder).glob("*.yaml"))
        hint = (f" Data sets: {', '.join(known)}. Own images: image_folder, table (csv), parquet; "
                f"data sets of a plugin: --plugin.")
    raise ConfigError(f"cannot read config file {path}: no such file.{hint}")


def config_layer(name: str) -> tuple[Layer, str]:
    """Returns the layer of --config-file, and a line for the log; "" if there is nothing to say.

    Names of CoOp's files work without the files.
    """
    try:
        return file_layer(find_config(name, "trainers")), ""
    except ConfigError:
        refuse_other_trainers(name)
        settings = coop_settings(name)
        if settings is None:
            raise
    return (name, list(settings.items())), describe(name, settings)


def dataset_layers(name: str) -> list[Layer]:
    """Returns the layers of --dataset-config-file.

    The yaml of a CoOp checkout holds only a name, so our yaml of the same data set is laid below
    it. A registered data set, such as a plugin's, needs no yaml.
    """
    if not name:
        return []
    try:
        file = find_config(name, "datasets")
    except ConfigError:
        registered = DATASET_REGISTRY.find(name)
        if not registered:
            raise
        return [(f"data set {registered}", [("DATASET.NAME", registered)])]
    layers = [file_layer(file)]
    if CONFIGS not in file.resolve().parents:
        our_file = dataset_file_of(str(dict(layers[0][1]).get("DATASET.NAME")))
        if our_file is not None:
            layers.insert(0, file_layer(our_file))
    return layers


def layers_of_dataset(run_layer: Layer) -> list[Layer]:
    """The yaml of the data set that the settings of a run name; none if it has no yaml.

    Args:
        run_layer: The layer of the run's config.yaml.
    """
    _, values = run_layer
    file = dataset_file_of(str(dict(values).get("DATASET.NAME")))
    if file is None:
        return []
    return [file_layer(file)]


@cache
def dataset_file_of(dataset: str) -> Path | None:
    """Returns the yaml in configs/datasets of a registered data set; None if there is none."""
    if dataset not in DATASET_REGISTRY:
        return None
    for file in sorted((CONFIGS / "datasets").glob("*.yaml")):
        if read_yaml(file).get("DATASET", {}).get("NAME") == dataset:
            return file
    return None
