"""Reads finished runs. This is the only file of the report that knows the layout of a run folder."""
from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ...datasets.base import DATASET_REGISTRY, parse_run_name
from ...datasets.utils.cli import counted
from ...datasets.utils.errors import DataError
from ...datasets.utils.files import Damaged, read_arrays
from ..config.build import dataset_file_of
from ..config.names import file_label as prompt_name
from ..config.names import short_hash
from ..config.roles import compared_settings, is_zero_shot
from ..functional.arrays import Array
from ..registry import EVERY_IMAGE, method_info, method_key, reset_words
from .schema import read_results, read_settings

logger = logging.getLogger(__name__)

# Arrays of predictions.npz: kinds of numbers that numpy may have for it, and the length of each axis.
COLUMNS = {
    "index": ("iu", "n"), "label": ("iu", "n"), "logits": ("fiu", "n", "classes"),
    "zero_shot_logits": ("fiu", "n", "classes"), "flagged": ("biu", "n"), "text": ("fiu", "classes", "width"),
    "cots_tau": ("fiu", "n"), "strong_log_p": ("fiu", "n", "classes"), "position": ("iu", "n"),
}
OPTIONAL = ("text", "cots_tau", "strong_log_p", "position")  # of methods that use several views; of online ones


@dataclass(frozen=True)
class Predictions:
    """Per-image outputs of a run: `logits` after adaptation, `zero_shot_logits` before it, both (N, K)."""

    index: Array  # (N,), position of the image in the test list
    label: Array  # (N,)
    logits: Array
    zero_shot_logits: Array
    flagged: Array  # (N,), images that fell back to zero-shot
    text: Array | None = None  # (K, d), the class features before adaptation
    cots_tau: Array | None = None  # (N,), CoTS's temperatures, of methods that use several views
    strong_log_p: Array | None = None  # (N, K), the strong views' mean log-prediction at these temperatures
    position: Array | None = None  # (N,), place in the stream, of online methods


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, the content of results.json, and its config as flat `KEY: value` pairs."""

    folder: Path
    results: dict
    settings: dict
    pools_prompts: bool = True  # whether prompts of several seeds or data sets may have one name

    @property
    def trainer(self) -> str:
        return self.results["trainer"]

    @property
    def dataset(self) -> str:
        return self.results["dataset"]

    @property
    def backbone(self) -> str:
        return self.results["backbone"]

    @property
    def seed(self) -> int:
        return self.results["seed"]

    @property
    def online(self) -> bool:
        """Whether its predictions depend on the order of the images: by its method, or by TTA.RESET."""
        method = method_info(self.trainer)
        return method.online or (method.tuned and bool(reset_words(self.settings.get("TTA.RESET"))))

    @property
    def data_hash(self) -> str:
        return str(self.results.get("data_hash", ""))

    @property
    def split(self) -> str:
        return self.results.get("split", "test")

    @cached_property
    def compared(self) -> dict[str, object]:
        """The settings that define the run's experiment, without those that do not concern its method."""
        settings = with_augmix(compared_settings(self.settings, self.trainer), self.registered_dataset)
        if settings.get("MODEL.INIT_WEIGHTS"):
            settings["MODEL.INIT_WEIGHTS"] = self.prompt
        if settings.get("PROMPT.DESCRIPTIONS"):
            settings["PROMPT.DESCRIPTIONS"] = self.descriptions
        if terms := str(settings.get("TRAINER.REGULARISERS") or ""):  # in any order and spelling the same method
            settings["TRAINER.REGULARISERS"] = ",".join(sorted(terms.replace(" ", "").lower().split(",")))
        if str(settings.get("TTA.RESET")) in EVERY_IMAGE:
            settings["TTA.RESET"] = EVERY_IMAGE[0]
        if settings.get("MODEL.PREC") == ("fp32" if str(self.results.get("device")).startswith("cpu") else "fp16"):
            settings["MODEL.PREC"] = "auto"
        adapts = not method_info(self.trainer).zero_shot
        return {key: value for key, value in settings.items() if adapts or is_zero_shot(key)}

    @property
    def registered_dataset(self) -> str:
        """The name that the data set is registered under; that of a folder of images in results.json is longer."""
        return str(self.settings.get("DATASET.NAME") or self.dataset)

    @property
    def part(self) -> str:
        """How the test set differs from the data set's: its classes, and how unequal they are; "" if it does not."""
        classes, exponent = (self.settings.get(key) for key in ("DATASET.SUBSAMPLE_CLASSES", "TEST.IMBALANCE"))
        words = [f"{classes} classes"] if classes not in (None, "", "all") else []
        return ", ".join([*words, *([f"imbalance {exponent}"] if exponent else [])])

    @property
    def prompt_hash(self) -> str:
        """Of the content of the learnt prompt that the run started from; "" if it is not known."""
        return str(self.results.get("init_weights_hash") or "")

    @property
    def prompt(self) -> str:
        """The name of the learnt prompt that the run started from; "" if there is none. Prompts whose paths differ only
        in `seed<k>`, the run's seed, and in the data set are one protocol's and have one name. That of any other has
        the hash of its content."""
        path = str(self.settings.get("MODEL.INIT_WEIGHTS") or "")
        parts = [re.sub(rf"(?i)(?<![a-z0-9])(seed[-_]?){self.seed}(?!\d)", r"\1*", part)
                 for part in ("*" if method_key(part) in self.dataset_keys else part for part in Path(path).parts)]
        if path and self.pools_prompts and parts != list(Path(path).parts):
            folders = [part for part in parts[:-1] if "*" not in part and part != "prompt_learner"]
            return f"{folders[-1] if folders else parts[-1]}-{short_hash('/'.join(parts).encode())}"
        name = prompt_name(path) if path else ""
        return f"{name.rpartition('-')[0]}-{self.prompt_hash[:8]}" if self.prompt_hash and name != path else name

    @property
    def descriptions(self) -> str:
        """The name of the file of descriptions, with the hash of its content; of files that are named after their data
        set, one name for all: their folder."""
        path = Path(str(self.settings.get("PROMPT.DESCRIPTIONS") or ""))
        if method_key(path.stem) in self.dataset_keys and path.parent.name:
            return path.parent.name
        return f"{path.stem}-{str(self.results.get('descriptions_hash', ''))[:8]}"

    @property
    def dataset_keys(self) -> set[str]:
        """The names of the data set, in one spelling."""
        file = dataset_file_of(self.registered_dataset)
        return {method_key(name) for name in (self.dataset, self.registered_dataset, file.stem if file else "")}

    def split_key(self) -> tuple:
        """What a validation run and the test run that it belongs to have in common."""
        values = tuple(sorted((key, repr(value)) for key, value in self.compared.items()))  # lists are not hashable
        return self.trainer, self.dataset, self.part, self.backbone, self.seed, self.prompt_hash, values

    @property
    def classnames(self) -> list[str]:
        """By label; numbers if the run has no names."""
        names, count = self.results.get("classnames") or [], self.results["classes"]
        return list(names) if len(names) == count else [str(k) for k in range(count)]

    @property
    def has_zero_shot(self) -> bool:
        """Whether the run has zero-shot predictions. Runs of other toolboxes do not."""
        return self.results.get("zero_shot") is not False

    def load_predictions(self) -> Predictions:
        """The arrays of predictions.npz, checked against results.json and sorted by index. Not cached: they can take
        hundreds of megabytes. Without zero-shot logits, `zero_shot_logits` are the run's own."""
        path = self.folder / "predictions.npz"
        try:
            columns = read_arrays(path)
        except Damaged as damage:
            if isinstance(damage.__cause__, FileNotFoundError):
                raise DataError(f"{path} is missing; run the evaluation again to get per-image predictions") from damage
            raise DataError(f"{path} cannot be read ({damage}); run the evaluation again") from damage
        columns = {name: columns[name] for name in COLUMNS if name in columns}
        if not self.has_zero_shot and "logits" in columns:
            columns.setdefault("zero_shot_logits", columns["logits"])
        if missing := [name for name in COLUMNS if name not in columns and name not in OPTIONAL]:
            raise DataError(f"{path} has no {' and '.join(missing)}; run the evaluation again")
        sizes = {"n": self.results["n"], "classes": self.results["classes"]}
        for name, column in columns.items():
            kinds, *axes = COLUMNS[name]
            shape = tuple(sizes.get(axis, size) for axis, size in zip(axes, column.shape, strict=False))
            if len(axes) != column.ndim or column.shape != shape or column.dtype.kind not in kinds:
                raise DataError(f"{path}: '{name}' is {column.dtype} of shape {column.shape}, which does not fit "
                                f"{sizes['n']:,} images and {sizes['classes']:,} classes in results.json")
            if name not in ("cots_tau", "strong_log_p") and not np.isfinite(column).all():
                raise DataError(f"{path}: '{name}' holds numbers that are not finite; run the evaluation again")
        order = np.argsort(columns["index"], kind="stable")  # online methods shuffle the images
        if columns["index"].min() < 0 or (np.diff(columns["index"][order]) == 0).any():
            raise DataError(f"{path}: 'index' must hold each position once, from 0; run the evaluation again")
        if (np.diff(order) != 1).any():
            columns = {name: column if name == "text" else column[order] for name, column in columns.items()}
        label, classes = columns["label"], sizes["classes"]
        if label.min() < 0 or label.max() >= classes:
            raise DataError(f"{path} holds labels from {label.min()} to {label.max()} for {classes} classes")
        return Predictions(**columns)


def with_augmix(settings: Mapping[str, object], dataset: str) -> dict[str, object]:
    """Settings with what TTA.AUGMIX auto means on a data set, if it is known."""
    name = parse_run_name(dataset)[0]
    if settings.get("TTA.AUGMIX") != "auto" or name not in DATASET_REGISTRY:
        return dict(settings)
    return {**settings, "TTA.AUGMIX": "on" if DATASET_REGISTRY.get(name).augmix else "off"}


def text_similarity(run: Run) -> Array | None:
    """K×K cosines of the run's class features before adaptation; None if it has none, as runs of other toolboxes."""
    text = run.load_predictions().text
    return None if text is None else text @ text.T


def read_run(folder: Path) -> Run:
    """The run in `folder`; a DataError says why it is not a finished one."""
    path = folder / "results.json"
    if not path.exists():
        raise DataError(f"{path} is missing; only finished runs have it")
    results, config = read_results(path), folder / "config.yaml"
    if not config.exists():
        logger.warning("no settings for %s: it has no config.yaml", folder)
    return Run(folder, results, read_settings(config) if config.exists() else {})


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """All finished runs at or below the paths; and notes: one about each unusable results.json, one that counts the
    unfinished runs."""
    runs: dict[Path, Run] = {}
    notes: list[str] = []
    unfinished: set[Path] = set()
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path} does not exist; give a run folder or a folder that holds some")
        for folder, subfolders, files in os.walk(path):  # skips folders that vanish or that may not be read
            subfolders.sort()
            if "results.json" in files:
                try:
                    runs.setdefault(Path(folder).resolve(), read_run(Path(folder)))
                except DataError as error:
                    notes.append(str(error))
            elif "config.yaml" in files:
                unfinished.add(Path(folder))
    if unfinished:
        more = " and others" if len(unfinished) > 1 else ""
        notes.append(f"{counted(len(unfinished), 'unfinished run')} left out ({min(unfinished)}{more}): the command "
                     "that started a run continues it.")
    return list(runs.values()), notes
