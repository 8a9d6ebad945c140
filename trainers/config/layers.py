"""Layers of settings: defaults, the trainer's yaml, the data set's yaml, a config file, the
command.
"""
from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import yaml
from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from .coop_files import coop_settings, describe, refuse_other_trainers
from .dassl_compat import check_dropped, is_dropped, is_ignored, rename_value, translate
from .declared import get_cfg_default, leaves
from .registry import TRAINER_REGISTRY, branch_of
from .safe_yaml import flatten, plain_value, read_yaml

# `configs` is next to `trainers`, in a checkout and in an installed package.
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# Settings that are numbers, and the number that `auto` stands for.
NUMBER_OF_AUTO = {"DATALOADER.NUM_WORKERS": -1, "TTA.EPISODES": 0}
KEY = re.compile(r"[A-Z][A-Z0-9_]*(\.[A-Z][A-Z0-9_]*)*")  # before = in KEY=VALUE

# Where settings come from, and the settings by their full keys.
Layer = tuple[str, list[tuple[str, object]]]


class Config(CfgNode):
    """Settings that know their baseline: what they are without a config file, flags and pairs."""

    @property
    def baseline(self) -> Mapping[str, object] | None:
        return self.__dict__.get("_baseline")

    def remember(self, baseline: Mapping[str, object]) -> None:
        # Set past CfgNode, which would take an attribute for a setting. Copies keep it.
        self.__dict__["_baseline"] = dict(baseline)


def baseline_of(cfg: CfgNode) -> Mapping[str, object]:
    """The settings of a config's trainer on its data set that a user gets without changing any."""
    if isinstance(cfg, Config) and cfg.baseline is not None:
        return cfg.baseline
    return default_settings(cfg.TRAINER.NAME, cfg.DATASET.NAME)


def default_settings(trainer: str, dataset: str = "") -> dict[str, object]:
    """Every setting: the defaults < the trainer's yaml < the data set's yaml.

    Args:
        trainer: A registered trainer.
        dataset: A registered data set, or any other name for no data set's yaml.
    """
    file = dataset_file_of(dataset)
    layers = [file_layer(file)] if file else []
    layers = with_trainer_layer(layers, trainer)
    settings = leaves(get_cfg_default())
    merge(settings, layers, TRAINER_REGISTRY.get(trainer).trained)
    return settings


def default_pairs(trainer: str, dataset: str) -> list[object]:
    """The method's own settings (λ …) on a data set, as KEY VALUE pairs."""
    prefix = f"TRAINER.{branch_of(trainer)}."
    pairs: list[object] = []
    for key, value in default_settings(trainer, dataset).items():
        if key.startswith(prefix):
            pairs += [key, value]
    return pairs


def with_trainer_layer(layers: Sequence[Layer], trainer: str) -> list[Layer]:
    """Layers of a data set with the trainer's yaml below them.

    A method with `own_views` uses the same views on every data set, so its yaml is above them.
    """
    file = CONFIGS / "trainers" / f"{trainer.lower()}.yaml"
    if not file.is_file():
        return list(layers)
    if trainer in TRAINER_REGISTRY and TRAINER_REGISTRY.get(trainer).own_views:
        return [*layers, file_layer(file)]
    return [file_layer(file), *layers]


def merge(settings: dict[str, object], layers: Sequence[Layer], trained: bool) -> list[str]:
    """Applies layers to settings. CoOp's names and values are translated.

    Args:
        settings: All settings by their full keys, which are changed.
        layers: The first one is the lowest.
        trained: Whether the method learns from labelled images.

    Returns:
        Lines for the log.

    Raises:
        ConfigError: One error names the unknown keys, each with the one that was probably meant.
    """
    notes: list[str] = []
    unknown: list[str] = []
    for source, values in layers:
        ignored: list[str] = []
        is_training_file = describes_training(source, values)
        for key, value in values:
            if is_training_file and not trained and key.startswith("OPTIM."):
                # OPTIM in CoOp's files is about training prompts; the step at test time is ours.
                ignored.append(key)
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


def describes_training(source: str, values: Collection[tuple[str, object]]) -> bool:
    """Whether a layer is a file in which OPTIM is about training prompts, as in CoOp's files."""
    if source.endswith((".yaml", ".yml")) and "OPTIM.LR_SCHEDULER" in dict(values):
        return True
    return coop_settings(source) is not None


def probable_key(key: str, known: Iterable[str]) -> str:
    """` Did you mean 'X'?` for a known key that is like this one, if possible one that ends alike.
    """
    known = list(known)
    ending = key.upper().rpartition(".")[2]
    ending_alike = [name for name in known if name.rpartition(".")[2] == ending]
    return nearest(key, ending_alike or known)


def cast_like_default(key: str, value: object, default: object, source: str) -> object:
    """`value` in the type of `default`.

    Text is read as in yaml, but `1e-3` is a number, `010` is 10, and whole numbers are floats too.
    """
    kind = type(default)
    if value == "auto" and key in NUMBER_OF_AUTO:
        value = NUMBER_OF_AUTO[key]
    if kind is str and isinstance(value, bool):
        value = "on" if value else "off"
    elif kind is str and (isinstance(value, str) or not isinstance(value, Collection)):
        value = "" if value is None else str(value)  # numbers and paths
    elif kind is bool and isinstance(value, str):
        value = yaml.SafeLoader.bool_values.get(value.lower(), value)
    elif isinstance(value, str):
        value = plain_value(value)
    if kind in (int, float) and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = kind(value)
    if type(value) is not kind:
        raise ConfigError(f"{key} in {source} must be of type {kind.__name__}, not {value!r}")
    return value


def file_layer(path: Path) -> Layer:
    values = list(flatten(read_yaml(path)))
    if len(dict(values)) < len(values):
        raise ConfigError(
            f"cannot read config file {path}: it has a key twice, as one name with dots and in a "
            "group"
        )
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


def find_config(name: str, folder: str) -> Path:
    """The file that is meant.

    `configs/datasets/dtd.yaml`, `configs/datasets/dtd` and `dtd` work from anywhere.

    Args:
        name: A path, as it is or below the project, with or without `.yaml`, or a name.
        folder: The folder of `configs` that a name is in.
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
    """The layer of --config-file, and a line for the log.

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
    """The yaml of a data set.

    That of a CoOp checkout holds only a name, so our yaml of the same data set is laid below it. A
    registered data set, such as a plugin's, needs no yaml.
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


@cache
def dataset_file_of(dataset: str) -> Path | None:
    """The yaml in configs/datasets of a registered data set."""
    if dataset not in DATASET_REGISTRY:
        return None
    for file in sorted((CONFIGS / "datasets").glob("*.yaml")):
        if read_yaml(file).get("DATASET", {}).get("NAME") == dataset:
            return file
    return None
