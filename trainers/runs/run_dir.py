"""The directory of a run: record, config and log, predictions in parts while it runs, results when it is done."""
from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import MemoryHandler, WatchedFileHandler
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.utils import files
from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import ConfigError, UserError
from ...datasets.utils.files import Damaged, file_hash, read_arrays, read_json, write_arrays, write_json
from .dist import Distributed
from .lock import RunLock
from .parts import Columns, concatenate
from .record import AUTO, FILE_NAME, RunRecord, describe_difference

logger = logging.getLogger(__name__)

Results = dict[str, Any]

COLUMNS = {"index", "label", "logits", "zero_shot_logits", "flagged"}  # of predictions.npz, besides a method's own
BATCH_COLUMNS = {"seconds", "adapt_seconds", "bad_index", "bad_reason"}  # in parts: not one row per predicted image
STATE = "state.npz"  # of an online method
LISTING = "listing.json"  # the images of an unfinished run, to say what has changed
TIED_FILES = ("predictions.npz", "config.yaml")  # whose hashes are in results.json
RUN_FILES = (FILE_NAME, "config.yaml", "log.txt", "predictions.npz", "results.json")
RUN_FOLDERS = ("parts", "tensorboard", "prompt_learner")
REMEDY = "Use TAG, --overwrite or another --output-dir."


@dataclass(frozen=True)
class FolderState:
    """What a folder holds, before a run works in it.

    Attributes:
        record: Of the run that was started or finished there; None if there is none.
        results: Of a finished run; None otherwise.
        refusal: Why no run may work in the folder, as one line; "" if one may. `--overwrite` accepts
            a folder for which `is_run` holds.
        is_run: Whether a run made the folder, so that it may be started again.
    """

    record: RunRecord | None = None
    results: Results | None = None
    refusal: str = ""
    is_run: bool = False


class RunDir:
    """Reads and writes the files of a run. A run is done when it has a complete results.json."""

    def __init__(self, path: Path, record: RunRecord, results: Results | None = None) -> None:
        """Use `RunDir.open`, which checks what the folder holds.

        Args:
            path: The folder.
            record: Of the run.
            results: Of a finished run.
        """
        self.path = path
        self.parts = path / "parts"
        self.record = record
        self.results = results

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, asked: RunRecord, dist: Distributed, *, listing: Columns, config: str,
        overwrite: bool = False, log_name: str = "log.txt", early_lines: Sequence[logging.LogRecord] = (),
    ) -> Iterator[RunDir]:
        """The directory of a run.

        The main process decides for all what the folder is: a finished run, one to continue, a new
        one, or one that is refused. Unless the run is finished it locks the folder, and logs to it.

        Args:
            path: The folder.
            asked: The record of the run that is asked for.
            dist: The processes of the run.
            listing: Columns `index`, `image` and `label` of its images.
            config: Content of config.yaml.
            overwrite: Start again in the folder of another run.
            log_name: Name of the log; "" for none.
            early_lines: Log lines from before there was a folder.
        """
        with ExitStack() as stack:
            run_dir = None
            refusal = ""
            if dist.is_main:
                try:
                    run_dir = cls._enter(stack, path, asked, listing, overwrite, shared_log=not log_name)
                except UserError as error:
                    if dist.world == 1:
                        raise
                    refusal = str(error)
            refusal = dist.broadcast(refusal)
            if refusal:
                raise ConfigError(refusal)
            record, results = dist.broadcast((run_dir.record, run_dir.results) if run_dir else (asked, None))
            run_dir = run_dir or cls(path, record, results)
            if dist.is_main and results is None:
                files.write_text(path / "config.yaml", config)
                if log_name:
                    stack.enter_context(log_to_file(path / log_name, early_lines))
            dist.barrier()
            yield run_dir

    @classmethod
    def _enter(
        cls, stack: ExitStack, path: Path, asked: RunRecord, listing: Columns, overwrite: bool, shared_log: bool,
    ) -> RunDir:
        """In the main process: refuses, or returns a directory that is locked unless it is finished."""
        state = inspect_folder(path, shared_log)
        if overwrite and path.exists():
            if not state.is_run and any(path.iterdir()):
                raise ConfigError(f"{path} is not the folder of a run, so --overwrite removes nothing there: "
                                  f"choose another --output-dir")
        else:
            check_state(path, state, asked, listing)
            if state.results is not None and state.record is not None:
                run_dir = cls(path, state.record, state.results)
                run_dir.cleanup()
                run_dir.rename(asked.names)
                return run_dir
        existing = set()
        if path.exists():
            existing = {file.name for file in path.iterdir()}
        else:
            stack.callback(remove_if_empty, path)
        files.make_folder(path)
        stack.enter_context(RunLock(path).held())
        run_dir = cls(path, asked)
        if overwrite:
            run_dir.remove_all()
            existing = set()
        stack.enter_context(run_dir.removing_new_files(existing))
        run_dir.start(asked, listing)
        return run_dir

    def start(self, asked: RunRecord, listing: Columns) -> None:
        """Writes the record of a new run. A run that is continued keeps what it had decided."""
        recorded = read_record(self.path / FILE_NAME)
        if recorded is not None and self.has_parts:
            self.record = recorded.renamed(asked.names)
            return
        if self.has_parts:
            logger.warning("%s is missing or damaged, so the run starts again", self.path / FILE_NAME)
        self.remove_parts()
        self.record = asked
        write_json(self.path / FILE_NAME, asked.to_json())
        write_json(self.parts / LISTING, listing_rows(listing))

    def decide(self, **numerics: object) -> None:
        """Records decisions about numerics that were still open. A continued run has them recorded."""
        open_fields = {name: value for name, value in numerics.items() if self.record.numerics[name] == AUTO}
        if open_fields:
            self.record = self.record.decided(**open_fields)
            write_json(self.path / FILE_NAME, self.record.to_json())

    @contextmanager
    def removing_new_files(self, existing: set[str]) -> Iterator[None]:
        """A run that a user error stops before it has computed anything removes what it wrote, and only that."""
        had_parts = self.has_parts
        try:
            yield
        except UserError:
            if not had_parts and not self.has_parts:
                with suppress(UserError, OSError):
                    self.remove_parts()
                    for name in RUN_FILES:
                        if name not in existing:
                            (self.path / name).unlink(missing_ok=True)
            raise

    @property
    def has_parts(self) -> bool:
        """Whether something was computed: predictions, or the state of a training."""
        return has_parts(self.parts)

    def note(self, text: str) -> None:
        """Appends lines to the log as they are. Write errors are ignored; the results writer reports them."""
        with suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def finish(self, results: Results, config: str) -> Results:
        """Marks the run as done and removes the parts, which have become predictions.npz.

        Args:
            results: Facts and metrics.
            config: Content of config.yaml, which is written again if somebody removed it.
        """
        if not (self.path / "config.yaml").is_file():
            files.write_text(self.path / "config.yaml", config)
        if not (self.path / FILE_NAME).is_file():
            write_json(self.path / FILE_NAME, self.record.to_json())
        self.write_results({**results, "record": self.record.to_json()})
        self.remove_parts()
        assert self.results is not None
        return self.results

    def write_results(self, results: Results) -> None:
        """Writes results.json with the hashes of the files that belong to it."""
        hashes = {name: file_hash(self.path / name) for name in TIED_FILES}
        self.results = {**results, "files": hashes, "complete": True}
        write_json(self.path / "results.json", self.results)

    def measured_again(self, metrics: Mapping[str, object], config: str) -> Results:
        """Replaces the metrics of a finished run."""
        assert self.results is not None
        files.write_text(self.path / "config.yaml", config)
        self.write_results({**self.results, **metrics})
        return self.results

    def rename(self, names: Mapping[str, str]) -> None:
        """A finished run that is called again with other labels gets the new names and nothing else."""
        if self.results is None or dict(self.record.names) == dict(names):
            return
        self.record = self.record.renamed(names)
        write_json(self.path / FILE_NAME, self.record.to_json())
        self.results = {**self.results, "record": self.record.to_json()}
        write_json(self.path / "results.json", self.results)

    def remove_parts(self) -> None:
        """Removes files only: runs make no folders in there. A kill while a file was written left `.NAME.part`."""
        with files.writing(self.parts):
            for file in (*self.parts.glob("*"), *self.path.glob(".*.part")):
                if file.is_file() or file.is_symlink():
                    file.unlink()
        with suppress(OSError):
            self.parts.rmdir()

    def remove_all(self) -> None:
        """Removes all that a run writes, and nothing else."""
        with files.writing(self.path):
            for name in RUN_FILES:
                (self.path / name).unlink(missing_ok=True)
            for name in RUN_FOLDERS:
                folder = self.path / name
                if folder.is_dir() and not folder.is_symlink():
                    shutil.rmtree(folder)

    def cleanup(self) -> None:
        """Removes what a process that was killed at the very end of a run left next to its results."""
        if self.parts.exists() or RunLock(self.path).path.exists():
            with suppress(UserError), RunLock(self.path).held():  # not while its owner is just finishing it
                self.remove_parts()

    def merge(self, parts: Sequence[Sequence[int]], images: Columns, text: np.ndarray) -> dict[str, np.ndarray]:
        """Joins all parts into predictions.npz, ordered by image.

        Args:
            parts: For each part the positions of its images in the split.
            images: Facts about all images of the run: `index`, and columns to add, such as `image`.
            text: Class features (K, d) of the initial prompt: with them no later analysis needs the model.

        Returns:
            All columns, those of batches included.
        """
        columns_of_parts = []
        for part in parts:
            columns_of_part = self.read_part(part)
            if columns_of_part is None:
                raise UserError(f"a part of {self.parts} is missing or damaged; the others are kept: run the command "
                                f"again")
            columns_of_parts.append(columns_of_part)
        columns = concatenate(columns_of_parts)
        order = columns["index"].argsort(kind="stable")
        for name in set(columns) - BATCH_COLUMNS:
            columns[name] = columns[name][order]
        row_of_index = {index: row for row, index in enumerate(images["index"].tolist())}
        rows = [row_of_index[index] for index in columns["index"].tolist()]
        for name, column in images.items():
            if name != "index":
                columns[name] = column[rows]
        columns["text"] = text
        stored = {name: column for name, column in columns.items() if name not in BATCH_COLUMNS}
        record = np.array(json.dumps(self.record.to_json()))
        write_arrays(self.path / "predictions.npz", **stored, record=record)
        return columns

    def part_file(self, indices: Sequence[int]) -> Path:
        return self.parts / f"{indices[0]:07d}-{indices[-1]:07d}.npz"

    def write_part(self, indices: Sequence[int], columns: Columns) -> None:
        write_arrays(self.part_file(indices), **columns)

    def read_part(self, indices: Sequence[int]) -> dict[str, np.ndarray] | None:
        """A part's columns; None if it is absent, damaged, or of other images."""
        path = self.part_file(indices)
        if not path.is_file():
            return None
        try:
            columns = read_arrays(path)
        except Damaged as error:
            logger.warning("%s is damaged (%s) and is computed again", path, error)
            return None
        whole = set(columns) >= COLUMNS | BATCH_COLUMNS and {*columns["index"], *columns["bad_index"]} == set(indices)
        return columns if whole else None

    def write_state(self, parts: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the saved state of an online method by that after its first `parts` parts."""
        state = {f"state/{name}": array for name, array in arrays.items()}
        write_arrays(self.parts / STATE, parts=np.array(parts), **state)

    def read_state(self, most: int) -> tuple[int, dict[str, np.ndarray]]:
        """The saved state and its number of parts; (0, {}) if it is absent, damaged, or of more than `most` parts."""
        path = self.parts / STATE
        if not path.is_file():
            return 0, {}
        try:
            content = read_arrays(path)
            parts = int(content.pop("parts"))
        except (Damaged, KeyError) as error:
            logger.warning("%s is damaged (%s), so the run starts again", path, error)
            return 0, {}
        return (parts, {name.removeprefix("state/"): a for name, a in content.items()}) if parts <= most else (0, {})


def inspect_folder(path: Path, shared_log: bool = False) -> FolderState:
    """What a folder holds: nothing, a run, a run of another release, or somebody else's files.

    Args:
        path: The folder.
        shared_log: Whether another program, such as Dassl, writes log.txt there.
    """
    if not path.is_dir():
        return FolderState()
    results = read_json(path / "results.json")
    record = read_record(path / FILE_NAME)
    if isinstance(results, dict) and results.get("complete"):
        return inspect_finished(path, results, record)
    if record is not None and not has_parts(path / "parts"):
        return FolderState(is_run=True)  # nothing was computed: any run may begin here
    if record is not None:
        return FolderState(record=record, is_run=True)
    if isinstance(read_json(path / "parts" / "fingerprint.json"), dict):
        return FolderState(refusal=older_release(path), is_run=True)
    foreign = []
    for file in sorted(path.iterdir()):
        is_ours = file.name in ("lock", FILE_NAME) or (shared_log and file.name.startswith("log.txt"))
        if file.is_file() and not file.name.startswith(".") and not is_ours:
            foreign.append(file.name)
    if foreign:
        return FolderState(refusal=f"{path} is not empty and not the folder of a run (it holds {', '.join(foreign[:3])}"
                                   f"{' and more' if len(foreign) > 3 else ''}): choose another --output-dir")
    return FolderState()


def has_parts(folder: Path) -> bool:
    """Whether a folder holds predictions of a run, or the state of a training."""
    for file in folder.glob("*"):
        if file.suffix in (".npz", ".pt"):
            return True
    return False


def inspect_finished(path: Path, results: Results, record: RunRecord | None) -> FolderState:
    """The state of a folder with complete results: its files must belong together."""
    if "fingerprint" in results and "record" not in results:
        return FolderState(refusal=older_release(path), is_run=True)
    broken = broken_tie(path, results)
    if broken:
        return FolderState(refusal=f"{path} holds files that do not belong together: {broken}. {REMEDY}", is_run=True)
    finished = RunRecord.from_json(results["record"])
    return FolderState(record=finished, results=results, is_run=True)


def broken_tie(path: Path, results: Mapping[str, Any]) -> str:
    """Which file of a finished run belongs to another run or was edited, in words; "" if none.

    Args:
        path: Folder of the run.
        results: Content of its results.json.
    """
    try:
        record = RunRecord.from_json(results.get("record"))
    except ValueError as error:
        return f"results.json cannot be used, because {error}"
    beside = read_record(path / FILE_NAME)
    if beside is None:
        return f"{FILE_NAME} is missing or damaged"
    if not is_same_but_names(record, beside):
        return f"{FILE_NAME} is not that of results.json"
    hashes = results.get("files")
    if not isinstance(hashes, dict):
        return "results.json does not name its files"
    for name in TIED_FILES:
        if not (path / name).is_file():
            return f"{name} is missing"
        if file_hash(path / name) != hashes.get(name):
            return f"{name} is not the one that results.json was made with"
    return ""


def is_same_but_names(first: RunRecord, second: RunRecord) -> bool:
    """Whether two records are of one run; its names may have been changed since."""
    return first.renamed({}) == second.renamed({})


def check_state(path: Path, state: FolderState, asked: RunRecord, listing: Columns) -> None:
    """Refuses a folder that holds another run than the one that is asked for, naming what differs."""
    if state.refusal:
        raise ConfigError(state.refusal)
    if state.record is None:
        return
    purpose = "resume" if state.results is None else "finished"
    difference = state.record.difference(asked, purpose)
    if not difference:
        return
    # Other images have another listing, number and hash: what has changed among them says it all.
    image_fields = {"data.images", "data.listing", "data.n", "data.subset"}
    parts = []
    if image_fields & difference.keys():
        parts.append(f"was made with other data: {describe_images(path, state, listing)}")
    if "model.weights" in difference:
        parts.append(f"was made with other weights: {describe_difference({'weights': difference['model.weights']})}")
    if "method.source" in difference:
        parts.append(f"was made with other code of {asked.method['trainer']}: the method was edited since")
    named = {*image_fields, "model.weights", "method.source"}
    others = {name: pair for name, pair in difference.items() if name not in named}
    if others:
        parts.append(f"holds a run with other settings ({describe_difference(others)})")
    raise ConfigError(f"{path} {'; it '.join(parts)}. {REMEDY}")


def listing_rows(listing: Columns) -> list[list[Any]]:
    """Position, identity and label of each image, as plain JSON values."""
    rows = []
    for index, image, label in zip(listing["index"], listing["image"], listing["label"], strict=True):
        rows.append([int(index), bytes(image).hex(), int(label)])
    return rows


def describe_images(path: Path, state: FolderState, listing: Columns) -> str:
    """How the images that are asked for differ from those of a run, in words."""
    assert state.record is not None
    try:
        if state.results is None:
            rows_before = read_json(path / "parts" / LISTING) or []
        else:
            rows_before = listing_rows(read_arrays(path / "predictions.npz"))
    except (Damaged, KeyError):
        rows_before = []
    before = {index: (image, label) for index, image, label in rows_before}
    now = {index: (image, label) for index, image, label in listing_rows(listing)}
    changed_images = 0
    changed_labels = 0
    for index in before.keys() & now.keys():
        changed_images += before[index][0] != now[index][0]
        changed_labels += before[index][1] != now[index][1]
    words = []
    if state.record.data["n"] != len(now):
        words.append(f"{count(state.record.data['n'], 'image')} then, now {len(now)}")
    if changed_images:
        words.append(f"{count(changed_images, 'image')} changed")
    if changed_labels:
        words.append(f"{count(changed_labels, 'label')} {'differs' if changed_labels == 1 else 'differ'}")
    return ", ".join(words) or "other images, or another order of them"


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def older_release(path: Path) -> str:
    return (f"{path} holds a run of promptcal 1.0, which this version does not continue; reports still read it. "
            f"{REMEDY}")


def read_results(folder: Path) -> Results | None:
    """The results of a finished run; None if it is not finished or its files do not belong together."""
    return inspect_folder(folder).results


def read_predictions(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of predictions.npz of a finished run."""
    path = folder / "predictions.npz"
    try:
        return read_arrays(path)
    except Damaged as error:
        raise UserError(f"{path} of a finished run cannot be read ({error}): run the command again with "
                        f"--overwrite") from error


def read_record(path: Path) -> RunRecord | None:
    """A record file; None if it is absent or damaged."""
    try:
        return RunRecord.from_json(read_json(path))
    except ValueError:
        return None


def remove_if_empty(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()


class RunLog(WatchedFileHandler):
    """Ignores write errors: a full disk or a removed folder is reported when results are written."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def early_lines() -> Iterator[list[logging.LogRecord]]:
    """Collects log lines while a run has no folder yet."""
    handler = MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1)
    LOGGER.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        LOGGER.removeHandler(handler)


@contextmanager
def log_to_file(path: Path, early: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Writes log lines to `path` too, those that came `early` first. A resumed run appends."""
    if path.is_fifo():  # opening it would wait for a reader
        raise UserError(f"cannot write {path}: it is a pipe")
    with files.writing(path):
        handler = RunLog(path, encoding="utf-8", errors="surrogateescape")  # file names may be in any encoding
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for record in early:
        handler.handle(record)
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        with suppress(OSError):
            handler.close()
