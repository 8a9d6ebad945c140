"""Finds and reads finished runs. Only this file knows which files a run folder has.

The files of a folder are tied to each other: results.json, record.json and predictions.npz carry
the same record, and results.json has the hashes of the other files. A folder whose files disagree
is named and left out. Nothing is ever written into it. It may be edited by hand, truncated, written
by another project, or hostile: every field of results.json is checked before anything is computed
from it.
"""
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import DataError, one_line
from ...datasets.utils.files import is_printable, read_regular
from ..runs.record import FILE_NAME as RECORD_FILE
from ..runs.record import RunRecord, broken_tie
from ..runs.record_1_0 import read_settings, record_of_1_0
from .predictions import Predictions, read_predictions
from .words import listed

# What a field of results.json may be.
TEXT = "text"
NAME = "a name"
NUMBER = "a number from 0"
COUNT = "a whole number above 0"
FROM_ZERO = "a whole number from 0"
TEXTS = "a list of texts"
PAIRS = "pairs of texts"
BOOL = "true or false"
RECORD = "a record"
REQUIRED = {
    "trainer": NAME, "dataset": NAME, "backbone": NAME, "seed": FROM_ZERO, "n": COUNT,
    "classes": COUNT, "bins": COUNT, "accuracy": NUMBER, "ece": NUMBER,
}
OPTIONAL = {
    "split": NAME,
    "data_hash": TEXT,
    "weights_hash": TEXT,
    "device": TEXT,
    "precision": TEXT,
    "finished": TEXT,
    "classnames": TEXTS,
    "versions": PAIRS,
    "plugins": PAIRS,
    "zero_shot": BOOL,
    "complete": BOOL,
    "seconds_per_image": NUMBER,
    "adapt_seconds_per_image": NUMBER,
    "peak_device_bytes": NUMBER,
    "classes_in_64": NUMBER,
    "record": RECORD,
    "files": PAIRS,
    "exported": BOOL,
}
SHOWN_UNFINISHED = 3  # folders that a note names


def fits(value: Any, kind: str) -> bool:
    """Whether the value of a field is what it may be."""
    # `type(value) is int` excludes True and False, which are instances of int.
    if kind == TEXT:
        return isinstance(value, str) and len(value) <= 1000
    if kind == NAME:  # a text that a table can show
        return fits(value, TEXT) and bool(value.strip()) and is_printable(value)
    if kind == NUMBER:
        return type(value) in (int, float) and 0 <= value <= 1e300
    if kind == COUNT:
        return type(value) is int and 1 <= value <= 10**10
    if kind == FROM_ZERO:
        return type(value) is int and 0 <= value <= 2**63
    if kind == TEXTS:
        return value is None or (isinstance(value, list) and all(fits(v, TEXT) for v in value))
    if kind == PAIRS:
        if value is None:
            return True
        return isinstance(value, dict) and all(fits(text, TEXT) for text in value.values())
    if kind == BOOL:
        return isinstance(value, bool)
    return isinstance(value, dict)


def read_results(path: Path) -> dict[str, Any]:
    """The content of results.json, checked.

    Raises:
        DataError: If it cannot be read, is not complete, or has a field of a wrong type.
    """
    results = read_plain_json(path)
    if not isinstance(results, dict):
        results = {}
    missing = [key for key in REQUIRED if key not in results]
    if missing:
        raise DataError(f"{path.name} is not complete: it lacks {', '.join(missing)}")
    if not results.get("complete", True):
        raise DataError(f"{path.name} is not complete")
    for key, kind in {**REQUIRED, **OPTIONAL}.items():
        if key in results and not fits(results[key], kind):
            value = one_line(repr(results[key]), 80)
            raise DataError(f"{path.name}: {key} must be {kind}, not {value}")
    return results


def read_plain_json(path: Path) -> Any:
    """The content of a JSON file that a page can show.

    Raises:
        DataError: If the file cannot be read or is not JSON.
    """
    try:
        content = json.loads(read_regular(path).decode())
        # Raises for lone surrogates, and for nesting without end.
        json.dumps(content, ensure_ascii=False, default=str).encode()
    except OSError as error:
        raise DataError(f"{path.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        words = one_line(error, 120)
        raise DataError(
            f"{path.name} is not valid JSON ({words}); run the evaluation again"
        ) from error
    return content


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run. Each object is a run of its own and can be the key of a dictionary.

    Attributes:
        folder: Folder of the run.
        name: The folder below the one that was searched. Messages and pages show this, never the
            whole path.
        record: What its predictions depend on, and what it is called.
        results: The content of results.json.
    """

    folder: Path
    name: str
    record: RunRecord
    results: dict[str, Any]

    @property
    def trainer(self) -> str:
        return str(self.record.method["trainer"])

    @property
    def seed(self) -> int:
        return self.record.seed

    @property
    def split(self) -> str:
        return str(self.record.data["split"])

    @property
    def classnames(self) -> list[str]:
        """Class names by label; numbers as text if the run has no names."""
        names = self.results.get("classnames") or []
        count = self.results["classes"]
        if len(names) == count:
            return list(names)
        return [str(label) for label in range(count)]

    @property
    def has_zero_shot(self) -> bool:
        """Whether the run has zero-shot predictions. Runs of other toolboxes do not."""
        return self.results.get("zero_shot") is not False

    def load_predictions(self) -> Predictions:
        """Reads and checks predictions.npz; a DataError names the fault."""
        return read_predictions(self.folder, self.record, self.results, self.has_zero_shot)


def read_run(folder: Path, name: str = "") -> FinishedRun:
    """The run in a folder.

    Args:
        name: Name of the run in the report; "" for the name of the folder.

    Raises:
        DataError: If it is not a finished run, or its files do not belong together.
    """
    if not (folder / "results.json").exists():
        raise DataError("results.json is missing; only finished runs have it")
    results = read_results(folder / "results.json")
    if "record" in results:
        record = read_record(folder, results)
    else:
        record = read_1_0_record(folder, results)
    if results["n"] > record.data["n"]:
        raise DataError(
            f"results.json has {counted(results['n'], 'image')}, its record {record.data['n']:,}"
        )
    return FinishedRun(folder, name or folder.name, record, results)


def read_record(folder: Path, results: dict[str, Any]) -> RunRecord:
    """The record of a run whose files agree about it. predictions.npz is checked when it is read.

    Raises:
        DataError: If one of the files is missing, edited, or of another run.
    """
    tied_files = ["config.yaml"]
    if results.get("exported"):  # config.yaml holds paths, so an exported run has none
        tied_files = []
    broken = broken_tie(folder, results, tied_files)
    if broken:
        raise DataError(broken)
    if "predictions.npz" not in results["files"]:
        raise DataError("results.json does not name the content of predictions.npz")
    record = RunRecord.from_json(results["record"])
    check_record_values(record)
    for key, value in (("trainer", record.method.get("trainer")), ("seed", record.seed),
                       ("split", record.data.get("split"))):
        if results.get(key, value) != value:
            raise DataError(f"results.json was edited: its {key} is not that of its record")
    return record


def check_record_values(record: RunRecord) -> None:
    """Refuses a record whose values have types that nothing can be computed from."""
    expected = {
        "data.n": int, "data.split": str, "data.images": str, "data.classes": str,
        "data.dataset": str, "method.trainer": str, "method.settings": dict, "model.weights": str,
    }
    for path, kind in expected.items():
        if not isinstance(record.get(path), kind):
            raise DataError(f"results.json: {path} of its record must be {kind.__name__}")
    for name, text in record.names.items():
        if not isinstance(text, str) or len(text) > 1000:
            raise DataError(
                f"results.json: {one_line(name, 40)} in the names of its record is no text"
            )


def read_1_0_record(folder: Path, results: dict[str, Any]) -> RunRecord:
    """The record of a run of version 1.0, derived from its settings."""
    settings: dict[str, Any] = {}
    if (folder / "config.yaml").exists():
        settings = read_settings(folder / "config.yaml")
    return record_of_1_0(results, settings)


def find_runs(paths: Iterable[str | Path]) -> tuple[list[FinishedRun], list[str]]:
    """All finished runs at or below some folders, and notes on folders that are left out.

    Raises:
        DataError: If one of the paths does not exist.
    """
    roots = list(map(Path, paths))
    finished: dict[Path, str] = {}  # names by folder
    unfinished: dict[Path, str] = {}
    links: dict[Path, str] = {}
    for root in roots:
        if not root.exists():
            raise DataError(f"{root} does not exist; give a run folder or a folder that holds some")
        for parent, subfolders, files in os.walk(root):  # skips folders that may not be read
            subfolders.sort()
            folder = Path(parent)
            name = name_below(folder, root)
            if "results.json" in files:
                finished.setdefault(folder.resolve(), name)
            elif "config.yaml" in files or RECORD_FILE in files:
                unfinished[folder.resolve()] = name
            for subfolder in subfolders:
                if (folder / subfolder).is_symlink():
                    link = folder / subfolder
                    links[link.resolve()] = name_below(link, root)
    runs: list[FinishedRun] = []
    notes: list[str] = []
    for folder, name in distinct_names(finished).items():
        try:
            runs.append(read_run(folder, name))
        except DataError as error:
            notes.append(f"{name} is left out: {error}.")
    if unfinished:
        notes.append(unfinished_note(sorted(unfinished.values())))
    searched = [root.resolve() for root in roots]
    others = []
    for target, name in links.items():
        if not any(target.is_relative_to(root) for root in searched):
            others.append(name)
    if others:
        notes.append(
            f"{listed(sorted(others))}: a link to a folder outside of those that were given, which "
            "is not searched. Give it to the command to have its runs."
        )
    return runs, notes


def distinct_names(folders: Mapping[Path, str]) -> dict[Path, str]:
    """The names of folders; equal ones get as many folders above them as tell them apart.

    Args:
        folders: The name of each folder below the one that was searched.
    """
    alike: dict[str, list[Path]] = {}
    for folder, name in folders.items():
        alike.setdefault(name, []).append(folder)
    names = {}
    for folder, name in folders.items():
        count = len(Path(name).parts)
        while len({other.parts[-count:] for other in alike[name]}) < len(alike[name]):
            count += 1
        if len(alike[name]) > 1:
            name = "/".join(folder.parts[-count:])
        names[folder] = name
    return names


def name_below(folder: Path, root: Path) -> str:
    """What a run folder is called: its path below the folder that was searched."""
    relative = folder.relative_to(root).as_posix()
    if relative == ".":
        return folder.resolve().name
    return relative


def unfinished_note(names: Sequence[str]) -> str:
    """Which runs are left out because they are not finished."""
    words = ", ".join(names[:SHOWN_UNFINISHED])
    if len(names) > SHOWN_UNFINISHED:
        words += " and others"
    return (
        f"{counted(len(names), 'unfinished run')} left out ({words}): the command that started a "
        "run continues it."
    )
