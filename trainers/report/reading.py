"""Reading finished runs. Everything the report knows of a run folder's layout is in this file."""
from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import DataError
from ...datasets.utils.files import Damaged, noticing_damage
from ..config.roles import compared_settings
from ..functional.arrays import Array
from ..registry import branch_of
from .schema import read_columns, read_results, read_settings

logger = logging.getLogger(__name__)

STRONG = ("cots_tau", "strong_log_p")
FAILURE = "failure.json"  # in place of results, of a run that `reproduce` could not make


@dataclass(frozen=True)
class Predictions:
    """Per-image outputs of a run: `logits` after tuning, `zero_shot_logits` before it, both (N, K)."""

    index: Array  # (N,), place of the image in the test list
    label: Array  # (N,)
    logits: Array
    zero_shot_logits: Array
    flagged: Array  # (N,), images that fell back to zero-shot
    text: Array | None = None  # (K, d), the class features before tuning; version 0.1 kept none
    cots_tau: Array | None = None  # (N,), CoTS's temperatures, where a method looks at several views
    strong_log_p: Array | None = None  # (N, K), the strong views' mean prediction at these


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, the content of results.json, and its config as flat `KEY: value` pairs."""

    folder: Path
    results: dict
    settings: dict

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
    def data_hash(self) -> str:
        return str(self.results.get("data_hash", ""))

    @property
    def split(self) -> str:
        return self.results.get("split", "test")

    def same_but_split(self) -> tuple:
        """What a validation run shares with the test run that it belongs to."""
        settings = compared_settings(self.settings, self.trainer)
        values = tuple(sorted((key, repr(value)) for key, value in settings.items()))  # lists cannot be hashed
        return self.trainer, self.dataset, self.backbone, self.seed, values

    @property
    def steps(self) -> int:
        return self.settings.get("TTA.STEPS", 1)

    @property
    def prompt(self) -> str:
        return str(self.settings.get("PROMPT.CTX_INIT", ""))

    @property
    def weight(self) -> float | None:
        """λ of the run's own method, where it has one."""
        value = self.settings.get(f"TRAINER.{branch_of(self.trainer)}.LAMBDA")
        return float(value) if isinstance(value, int | float) else None

    @property
    def classnames(self) -> list[str]:
        """By label; numbers, where the run did not keep the names."""
        names, count = self.results.get("classnames") or [], self.results["classes"]
        return list(names) if len(names) == count else [str(k) for k in range(count)]

    @property
    def has_zero_shot(self) -> bool:
        """Whether the run kept what the model said before it was adapted. Those of other toolboxes do not."""
        return self.results.get("zero_shot") is not False

    def load_predictions(self) -> Predictions:
        """The arrays of predictions.npz, checked against results.json. Not kept: they can be hundreds of megabytes.

        Without zero-shot logits, the run's own stand in their place.
        """
        path = self.folder / "predictions.npz"
        n, classes = self.results["n"], self.results["classes"]
        shapes = {
            "index": ("i", n), "label": ("i", n), "logits": ("f", n, classes), "zero_shot_logits": ("f", n, classes),
            "flagged": ("b", n), "text": ("f", classes, None), "cots_tau": ("f", n), "strong_log_p": ("f", n, classes),
        }
        optional = ("text", *STRONG) if self.has_zero_shot else ("text", *STRONG, "zero_shot_logits")
        try:
            with noticing_damage():
                columns = read_columns(path, shapes, optional)
        except Damaged as damage:
            if isinstance(damage.__cause__, FileNotFoundError):
                raise DataError(f"{path} is missing; run the evaluation again to get per-image predictions") from damage
            raise DataError(f"{path} cannot be read ({damage}); run the evaluation again") from damage
        order = np.argsort(columns["index"], kind="stable")  # online methods see images in an order of their own
        if (np.diff(order) != 1).any():
            columns = {name: column if name == "text" else column[order] for name, column in columns.items()}
        label = columns["label"]
        if label.min() < 0 or label.max() >= classes:
            raise DataError(f"{path} holds labels from {label.min()} to {label.max()} for {classes} classes")
        for name in ("logits", "zero_shot_logits", "text"):
            if name in columns and not np.isfinite(columns[name]).all():
                raise DataError(f"{path}: '{name}' holds numbers that are not finite; run the evaluation again")
        return Predictions(**{"zero_shot_logits": columns["logits"], **columns})


def text_similarity(run: Run) -> Array | None:
    """K×K cosines of the run's class features before tuning; None if it kept none."""
    text = run.load_predictions().text
    if text is None:
        logger.info("no class pairs for %s: version 0.1 kept no class features, run it again to see them", run.folder)
        return None
    return text @ text.T


def read_run(folder: Path) -> Run:
    """The run in `folder`; a DataError says what keeps it from being a finished one."""
    path = folder / "results.json"
    if not path.exists():
        raise DataError(f"{path} is missing; only finished runs have it")
    results, config = read_results(path), folder / "config.yaml"
    if not config.exists():
        logger.warning("no settings for %s: it has no config.yaml", folder)
    return Run(folder, results, read_settings(config) if config.exists() else {})


def find_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """All finished runs at or below the paths, a line on each results.json that is none, and one on how many runs have
    none yet."""
    runs, notes, unfinished = {}, [], set()
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path} does not exist; give a run folder or a folder that holds some")
        for file in sorted(path.rglob("results.json")):
            try:
                runs.setdefault(file.parent.resolve(), read_run(file.parent))
            except DataError as error:
                notes.append(str(error))
        begun = {file.parent for name in ("config.yaml", FAILURE) for file in path.rglob(name)}
        unfinished |= {folder for folder in begun if not (folder / "results.json").exists()}
    if unfinished:
        more = " and others" if len(unfinished) > 1 else ""
        notes.append(f"{counted(len(unfinished), 'unfinished run')} left out ({min(unfinished)}{more}): the command "
                     "that began a run continues it.")
    return list(runs.values()), notes
