"""Derives the record of a run of version 1.0, which wrote none, from its results and settings.

Reports read these runs. They are not resumed. Images were not known by content then, so two of
these runs share images only if they were made on the same list.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...datasets.base import DATASET_REGISTRY, dataset_info, parse_run_name
from ...datasets.utils.errors import ConfigError, DataError, one_line
from ...datasets.utils.files import flatten, read_yaml
from ..config.layers import cast_like_default, dataset_file_of, default_settings
from ..config.schema import Role
from ..config.settings import (
    added_terms,
    backbone_name,
    effective_rows,
    find_setting,
    get_cfg_default,
    leaves,
)
from ..config.table import CLASS_TOKEN_POSITION
from ..registry import (
    EVERY_IMAGE,
    TRAINER_REGISTRY,
    backbone_label,
    branch_of,
    method_info,
    method_key,
    reset_words,
)
from ..vlm.loading import PUBLISHED_WEIGHTS
from .record import UNKNOWN_IMAGES, RunRecord, content_hash

IMAGES = "1.0:"  # prefix of the hash of a list of images
# Settings that have a place of their own in a record, outside `method.settings`.
ELSEWHERE = ("PROMPT.", "MODEL.", "INPUT.", "TEST.", "TTA.VIEWS", "TTA.AUGMIX", "TTA.RESET")
LARGEST_NUMBER = 2**64


def record_of_1_0(results: Mapping[str, Any], settings: Mapping[str, Any]) -> RunRecord:
    """Derives the record of a run that was made with version 1.0.

    Args:
        results: The content of results.json, checked.
        settings: The content of config.yaml, each value by its full key.
    """
    run = Run10(results, settings)
    compared = run.compared()
    return RunRecord(
        data=run.data(),
        views=run.views(compared),
        model=run.model(),
        method=run.method(compared),
        numerics=run.numerics(),
        seed=results["seed"],
        changed=run.changed(compared),
        names=run.names(),
    )


class Run10:
    """Results and settings of a 1.0 run, as sections of a record."""

    def __init__(self, results: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.results = results
        self.settings = settings
        self.trainer = str(results["trainer"])
        self.dataset = str(results["dataset"])
        fingerprint = results.get("fingerprint")
        self.fingerprint = fingerprint if isinstance(fingerprint, dict) else {}
        # For a folder of images, the name in results.json is longer than the registered one.
        self.registered_dataset = str(settings.get("DATASET.NAME") or self.dataset)
        self.prompt_path = str(settings.get("MODEL.INIT_WEIGHTS") or "")

    def data(self) -> dict[str, Any]:
        """The section `data`."""
        name, corruption, severity = parse_run_name(self.dataset)
        if not corruption:
            name = self.registered_dataset
            severity = 0
        data_hash = str(self.results.get("data_hash") or "")
        images = f"{UNKNOWN_IMAGES}{self.dataset}:{self.results['n']}"
        if data_hash:
            images = f"{IMAGES}{data_hash}"
        classnames = list(self.results.get("classnames") or [])
        return {
            "dataset": name,
            "split": str(self.results.get("split") or "test"),
            "n": self.results["n"] + self.skipped(),
            "images": images,
            "listing": images,
            "classes": f"{self.results['classes']}:{content_hash(classnames)}",
            "corruption": corruption,
            "severity": severity,
            "subset": self.subset(),
        }

    def skipped(self) -> int:
        """How many images could not be read."""
        skipped = self.results.get("skipped")
        if isinstance(skipped, list):
            return len(skipped)
        return 0

    def subset(self) -> str:
        """The part of the data set that was used, in words; "" for all of it."""
        words = []
        classes = self.settings.get("DATASET.SUBSAMPLE_CLASSES")
        if classes not in (None, "", "all"):
            words.append(f"{classes} classes")
        if self.settings.get("DATASET.IMAGE_LIST"):
            words.append("image list")
        if self.settings.get("TEST.IMBALANCE"):
            words.append(f"imbalance {self.settings['TEST.IMBALANCE']}")
        if self.settings.get("TEST.LIMIT"):
            words.append(f"limit {self.settings['TEST.LIMIT']}")
        return ", ".join(words)

    def views(self, compared: Mapping[str, Any]) -> dict[str, Any]:
        """The section `views`, given the settings of `compared`."""
        section: dict[str, Any] = {"pipeline": str(self.fingerprint.get("views") or "")}
        if not method_info(self.trainer).zero_shot:
            section["count"] = self.settings.get("TTA.VIEWS")
            section["augmix"] = compared.get("TTA.AUGMIX")
        return section

    def model(self) -> dict[str, Any]:
        """The section `model`."""
        weights = str(self.results.get("weights_hash") or "")
        name = str(self.results["backbone"])
        official = PUBLISHED_WEIGHTS.get(weights, "")
        return {
            "backbone": official or backbone_name(name),
            "weights": weights or f"name:{backbone_name(name)}",
            "prompt": self.prompt(),
        }

    def prompt(self) -> dict[str, Any]:
        """The prompt in the section `model`."""
        if self.prompt_path:
            return {"kind": "learnt", "protocol": self.protocol(), "hash": self.prompt_hash()}
        texts = str(self.results.get("texts") or "")
        if self.settings.get("PROMPT.TEMPLATE") or self.settings.get("PROMPT.DESCRIPTIONS"):
            return {"kind": "texts", "words": texts,
                    "hash": str(self.results.get("descriptions_hash") or "")}
        return {"kind": "words", "words": self.settings.get("PROMPT.CTX_INIT")}

    def prompt_hash(self) -> str:
        """Hash of a learnt prompt's content; "" if it was not stored."""
        return str(self.fingerprint.get("prompt") or self.results.get("init_weights_hash") or "")

    def protocol(self) -> str:
        """How a learnt prompt was made: its path with the seed and the data set left open."""
        parts = []
        for part in Path(self.prompt_path).parts:
            if method_key(part) in self.dataset_keys():
                part = "*"
            part = re.sub(
                rf"(?i)(?<![a-z0-9])(seed[-_]?){self.results['seed']}(?!\d)", r"\1*", part
            )
            parts.append(part)
        if parts == list(Path(self.prompt_path).parts):  # a file of no known layout
            return f"{Path(self.prompt_path).stem}-{self.prompt_hash()[:8]}"
        folders = [part for part in parts[:-1] if "*" not in part and part != "prompt_learner"]
        name = folders[-1] if folders else parts[-1]
        return f"{name}-{content_hash('/'.join(parts))[:8]}"

    def dataset_keys(self) -> set[str]:
        """The names of the data set, in one spelling."""
        names = [self.dataset, self.registered_dataset]
        file = dataset_file_of(self.registered_dataset)
        if file:
            names.append(file.stem)
        return {method_key(name) for name in names}

    def method(self, compared: Mapping[str, Any]) -> dict[str, Any]:
        """The section `method`, given the settings of `compared`."""
        settings = {}
        for key, value in compared.items():
            if not key.startswith(ELSEWHERE):
                settings[key] = value
        section: dict[str, Any] = {
            "trainer": self.trainer,
            "settings": settings,
            "source": {"version": "1.0", "hash": "", "plugin": self.plugin_source()},
        }
        if self.online():
            section["stream"] = {
                "order": self.settings.get("TEST.ORDER", "random"),
                "reset": str(self.settings.get("TTA.RESET", "image")),
            }
        return section

    def plugin_source(self) -> str:
        """A hash of the code of a user's method; "" for a built-in one."""
        hashes = {}
        for key, value in self.fingerprint.items():
            if key.startswith("source of ") and " in " not in key:
                hashes[key] = value
        return content_hash(hashes) if hashes else ""

    def online(self) -> bool:
        """Whether predictions depend on the order of the images."""
        method = method_info(self.trainer)
        resets = bool(reset_words(self.settings.get("TTA.RESET")))
        return method.online or (method.tuned and resets)

    def numerics(self) -> dict[str, Any]:
        """The section `numerics`."""
        return {
            "precision": str(
                self.results.get("precision") or self.settings.get("MODEL.PREC") or ""
            ),
            "device_type": str(self.results.get("device") or "")
            .partition(" ")[0]
            .partition(":")[0],
            "engine": self.fingerprint.get("engine"),
        }

    def compared(self) -> dict[str, Any]:
        """The settings in which two runs of this method may differ, with `auto` resolved."""
        settings = dict(compared_settings(self.settings, self.trainer))
        settings.pop("MODEL.INIT_WEIGHTS", None)  # its protocol says what it is
        settings.pop("MODEL.PREC", None)  # so does the precision that was used
        if settings.get("TTA.AUGMIX") == "auto":
            settings["TTA.AUGMIX"] = augmix_default(self.dataset)
        if settings.get("PROMPT.DESCRIPTIONS"):
            settings["PROMPT.DESCRIPTIONS"] = self.descriptions()
        terms = str(settings.get("TRAINER.REGULARISERS") or "")
        if terms:  # in any order and spelling the same method
            names = terms.replace(" ", "").lower().split(",")
            settings["TRAINER.REGULARISERS"] = ",".join(sorted(names))
        if str(settings.get("TTA.RESET")) in EVERY_IMAGE:
            settings["TTA.RESET"] = EVERY_IMAGE[0]
        if method_info(self.trainer).zero_shot:
            for key in list(settings):
                if not is_zero_shot(key):
                    del settings[key]
        return settings

    def descriptions(self) -> str:
        """The name of a file of descriptions: its folder's if the file is named after its data set.
        """
        path = Path(str(self.settings["PROMPT.DESCRIPTIONS"]))
        if method_key(path.stem) in self.dataset_keys() and path.parent.name:
            return path.parent.name
        return f"{path.stem}-{str(self.results.get('descriptions_hash') or '')[:8]}"

    def changed(self, compared: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The settings that differ from the defaults, as these are now.

        The defaults of 1.0 were not recorded. Those of an unknown method are not known at all: all
        its settings count as changed.
        """
        dataset = self.dataset if parse_run_name(self.dataset)[1] else self.registered_dataset
        known = self.trainer in TRAINER_REGISTRY
        defaults = defaults_of(self.trainer if known else "ZeroShot", dataset)
        if self.results.get("zero_shot") is False:  # made by another toolbox, with its own defaults
            return {}
        changed = {}
        for key, value in compared.items():
            is_of_method = key.startswith("TRAINER.") and not known
            if key in defaults and defaults[key] != value:
                changed[key] = [defaults[key], value]
            elif key not in defaults and is_of_method:
                changed[key] = [None, value]
        return changed

    def names(self) -> dict[str, str]:
        """The section `names`."""
        return {
            "method": method_info(self.trainer).label,
            "dataset": dataset_info(self.dataset).label,
            "backbone": backbone_label(backbone_name(str(self.results["backbone"]))),
            "prompt": self.protocol() if self.prompt_path else "",
        }


def augmix_default(dataset: str) -> str:
    """What TTA.AUGMIX auto means on a data set."""
    name = parse_run_name(dataset)[0]
    if name not in DATASET_REGISTRY:
        return "auto"
    return "on" if DATASET_REGISTRY.get(name).augmix else "off"


@cache
def defaults_of(trainer: str, dataset: str) -> Mapping[str, Any]:
    """Returns every setting of a method on a data set by its full key, from the files in configs/.
    """
    settings = dict(default_settings(trainer, parse_run_name(dataset)[0]))
    if settings.get("TTA.AUGMIX") == "auto":
        settings["TTA.AUGMIX"] = augmix_default(dataset)
    return settings


def compared_settings(settings: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Returns the settings in which the rows of a table may differ."""
    branches = {method_key(branch_of(trainer)), "name", "regularisers", *added_terms(settings)}
    values = {}
    for key in effective_rows(settings, trainer):
        row = find_setting(key)
        if row.role is Role.DATA or row.in_path:
            continue
        is_of_method = key.startswith("TRAINER.") and key != CLASS_TOKEN_POSITION
        if not is_of_method or method_key(key.split(".")[1]) in branches:
            values[key] = settings[key]
    return values


def is_zero_shot(key: str) -> bool:
    """Whether a setting changes the prediction before adaptation."""
    return find_setting(key).role in (Role.MODEL, Role.NUMERICS) or key.startswith("INPUT.")


def read_settings(path: Path) -> dict[str, Any]:
    """Reads config.yaml of a 1.0 run: each value by its full key, in the type of its default.

    Raises:
        DataError: If the file is not plain yaml, or a value does not have the type of its key.
    """
    try:
        settings = dict(flatten(read_yaml(path)))
        str(settings).encode()  # lone surrogates, which no page can show
        known = known_settings(str(settings.get("TRAINER.NAME")))
        if not settings.keys() <= known.keys():  # such as another method's weight in REGULARISERS
            known = known_settings("")
        for key, value in settings.items():
            if key in known:
                settings[key] = cast_like_default(key, value, known[key], path.name)
            number = settings[key]
            if isinstance(number, int) and abs(number) > LARGEST_NUMBER:
                raise ConfigError(f"{path.name}: {one_line(key, 80)} is too large")
        return settings
    except ConfigError as error:
        raise DataError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path.name} is not plain yaml ({one_line(error, 120)})") from error


@cache
def known_settings(method: str) -> Mapping[str, Any]:
    """All settings of a method, or of every method, with their defaults."""
    methods = [method] if method in TRAINER_REGISTRY else TRAINER_REGISTRY
    return leaves(get_cfg_default(methods))
