"""Copies of finished runs to pass on: without paths, names of users and computers, and pictures.

A copy has record.json, results.json and predictions.npz, and is read by the report like any run. Of
each image it has the identity, the label, and the top class with its confidence before and after
adaptation. From logits a reader could learn more about a model or a picture, so they are left out
unless they are asked for.
"""
from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.utils.errors import ConfigError, DataError
from ...datasets.utils.files import Damaged, make_folder, read_arrays, write_arrays, write_json
from ..config.settings import path_safe
from ..functional.arrays import Array, log_softmax
from ..runs.record import FILE_NAME as RECORD_FILE
from ..runs.record import hashes_of_files
from .load import FinishedRun, find_runs
from .predictions import FILE_NAME as PREDICTIONS_FILE

logger = logging.getLogger(__name__)

# What results.json keeps. Anything else, such as what a plugin adds, may hold a path.
RESULTS = (
    "trainer", "seed", "tag", "n", "classes", "split", "bins", "flagged", "finished", "data_hash",
    "weights_hash", "precision", "views", "versions", "device", "threads", "classnames",
    "architecture", "pixels", "zero_shot", "classes_in_64", "init_weights_hash", "seconds",
    "seconds_per_image", "adapt_seconds_per_image", "peak_device_bytes",
)
METRICS = ("accuracy", "confidence", "over_confidence", "ece", "ace")  # each also with `zero_shot_`
COLUMNS = ("index", "label", "flagged", "image", "cluster", "position")  # of predictions.npz
WITH_LOGITS = ("logits", "zero_shot_logits", "text", "cots_tau", "strong_log_p")
ABSOLUTE_PATH = re.compile(r"(^|[\s'\"=(])(/[^/\s]+/|~/|[A-Za-z]:[\\/]|\\\\)")


def export_runs(paths: Iterable[Path], out: Path, with_logits: bool = False) -> list[Path]:
    """Writes copies of all finished runs at or below some folders.

    Args:
        paths: Folders of runs, or folders that contain them.
        out: Folder of the copies, which has a folder for each run as output/ has.
        with_logits: Whether copies have all logits.

    Returns:
        The folders of the copies.

    Raises:
        DataError: If there is no finished run.
        ConfigError: If a copy would hold a path, or `out` holds another run already.
    """
    runs, notes = find_runs(paths)
    for note in notes:
        logger.warning("%s", note)
    if not runs:
        raise DataError(f"no finished run below {', '.join(map(str, paths))}")
    folders: list[Path] = []
    for run in runs:
        if run.record.is_1_0:
            logger.warning(
                "%s is left out: it is a run of promptcal 1.0, which has no record", run.name
            )
            continue
        folder = out / folder_of(run)
        number = 1
        while folder in folders:  # runs of several folders may have the same name
            number += 1
            folder = out / f"{folder_of(run)}-{number}"
        export_run(run, folder, with_logits)
        folders.append(folder)
    return folders


def folder_of(run: FinishedRun) -> Path:
    """The folder of a copy, as in output/."""
    names = run.record.names
    parts = [
        run.record.dataset_name, run.trainer, str(names.get("backbone") or "backbone"),
        str(run.results.get("tag") or "default"),
    ]
    return Path(*(path_safe(part) or "run" for part in parts), f"seed{run.seed}")


def export_run(run: FinishedRun, folder: Path, with_logits: bool) -> None:
    """Writes a copy of a run.

    Args:
        with_logits: Whether it has the logits, or only top classes and their confidence.
    """
    if (folder / "results.json").exists():
        raise ConfigError(f"{folder} holds a run already: choose another --out")
    record = run.record.to_json()
    results = exported_results(run)
    for name, content in (("its record", record), ("results.json", results)):
        private = find_path(content)
        if private:
            raise ConfigError(
                f"{run.folder} is not exported, because {name} holds a path: {private}"
            )
    columns = exported_columns(run, with_logits)
    make_folder(folder)
    write_json(folder / RECORD_FILE, record)
    write_arrays(folder / PREDICTIONS_FILE, **columns, record=np.array(json.dumps(record)))
    results["record"] = record
    results["exported"] = True
    results["complete"] = True
    results["files"] = hashes_of_files(folder, results, [PREDICTIONS_FILE])
    write_json(folder / "results.json", results)


def exported_results(run: FinishedRun) -> dict[str, Any]:
    """What a copy's results.json says. Names that may be paths are those that tables show."""
    names = run.record.names
    results: dict[str, Any] = {
        "dataset": run.record.dataset_name,
        "backbone": str(names.get("backbone") or run.record.model.get("backbone")),
        "init_weights": str(names.get("prompt") or ""),
        # The reasons name files.
        "skipped": ["unreadable image"] * len(run.results.get("skipped") or []),
    }
    for key in RESULTS:
        if key in run.results:
            results[key] = run.results[key]
    for metric in METRICS:
        for key in (metric, f"zero_shot_{metric}"):
            if key in run.results:
                results[key] = run.results[key]
    return results


def exported_columns(run: FinishedRun, with_logits: bool) -> dict[str, Array]:
    """The arrays of a copy's predictions.npz.

    Args:
        with_logits: Whether it has the logits, or only top classes and their confidence.
    """
    run.load_predictions()  # checks the file
    try:
        stored = read_arrays(run.folder / PREDICTIONS_FILE)
    except Damaged as damage:
        raise DataError(f"{run.name}: {PREDICTIONS_FILE} cannot be read ({damage})") from damage
    columns = {name: stored[name] for name in COLUMNS if name in stored}
    for prefix in ("", "zero_shot_"):
        logits = stored.get(f"{prefix}logits")
        if logits is not None:
            columns[f"{prefix}prediction"] = logits.argmax(axis=1)
            columns[f"{prefix}confidence"] = np.exp(log_softmax(logits).max(axis=1)).astype(
                np.float64
            )
        elif f"{prefix}confidence" in stored:  # a copy of a copy
            for name in (f"{prefix}prediction", f"{prefix}confidence"):
                columns[name] = stored[name]
    if with_logits and "logits" not in stored:
        raise ConfigError(
            f"{run.folder} was exported without logits, so a copy with them is not possible: leave "
            f"--logits out"
        )
    if with_logits:
        for name in WITH_LOGITS:
            if name in stored:
                columns[name] = stored[name]
    return columns


def find_path(content: object, place: str = "") -> str:
    """Where some JSON holds a path of this computer, as `key: value`; "" if nowhere.

    Args:
        content: JSON as Python objects.
        place: Keys that lead to it, joined by points.
    """
    if isinstance(content, Mapping):
        for key, value in content.items():
            private = find_path(value, f"{place}.{key}" if place else str(key))
            if private:
                return private
    elif isinstance(content, list):
        for value in content:
            private = find_path(value, place)
            if private:
                return private
    elif isinstance(content, str) and ABSOLUTE_PATH.search(content):
        return f"{place}: {content}"
    return ""
