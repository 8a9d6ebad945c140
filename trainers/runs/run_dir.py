"""Reads and writes the folder of a run: record, settings, log, predictions in parts, results."""
from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...datasets.identity import CONTENT_BYTES
from ...datasets.utils import files
from ...datasets.utils.cli import LOGGER, counted
from ...datasets.utils.errors import ConfigError, UserError
from ...datasets.utils.files import (
    Damaged,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)
from ...datasets.utils.lock import FolderLock
from .dist import Distributed
from .record import (
    AUTO,
    FILE_NAME,
    RESULTS_FILE,
    Difference,
    RunRecord,
    broken_tie,
    describe_difference,
    hashes_of_files,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
Results = dict[str, Any]
Columns = Mapping[str, np.ndarray]  # columns of predictions by name

# Columns of every method in parts and in predictions.npz, with a row for each predicted image.
COLUMNS = {"index", "label", "logits", "zero_shot_logits", "flagged"}
# Columns of parts alone, with a row for each batch or for each image that could not be read.
BATCH_COLUMNS = {"seconds", "adapt_seconds", "peak_bytes", "bad_index", "bad_reason"}
STATE = "state.npz"  # the state of an online method
LISTING = "listing.json"  # the images of an unfinished run, to say what has changed
RECORD_ID = "run"  # array in parts and states: the id of the record that they belong to
TIED_FILES = ("predictions.npz", "config.yaml")  # files whose hashes are in results.json
RUN_FILES = (FILE_NAME, "config.yaml", "log.txt", "predictions.npz", RESULTS_FILE)
# Files beside `parts` of which a killed process may leave an unfinished version.
RECORDED_FILE = re.compile(r"(record|results)\.json|config\.yaml|predictions\.npz")
# What a run writes into `parts`.
PART_FILE = re.compile(r"\d{7,}-\d{7,}\.npz|state\.npz|training\.pt|listing\.json")
EVENTS_FILE = re.compile(r"events\.out\.tfevents\..+")
PROMPT_FILE = re.compile(r"model.*\.pth\.tar.*|checkpoint")
EVENTS = "tensorboard"  # the folder of a run's curves
PROMPTS = "prompt_learner"  # the folder of the prompt that a run makes
# What the folders of a run hold, at any depth.
FILES_OF_FOLDER = {"parts": PART_FILE, EVENTS: EVENTS_FILE, PROMPTS: PROMPT_FILE}
# What a killed process leaves of a file that it was writing, with the name of that file.
UNFINISHED_FILE = re.compile(r"\.(.+)\.\d+-[0-9a-f]{1,8}\.part")
# Files that do not make a folder somebody else's: a damaged record, locks, files of the system.
HARMLESS_FILE = re.compile(
    r"record\.json|lock|\.(lock|clock)\.\w+|\.nfs\w+|\.DS_Store|\.gitkeep|\.gitignore"
)
# Fields of a record that say which images a run has. Other images have another listing, number and
# hash: what has changed among the images says it all.
IMAGE_FIELDS = {
    "data.images", "data.listing", "data.n", "data.subset", "data.classes", "data.groups",
}
REMEDY = "Use TAG (without --output-dir), --overwrite or another --output-dir."


@dataclass(frozen=True, eq=False)
class AskedRun:
    """A run that is to be made, with which the content of its folder is compared.

    Attributes:
        record: The record, which states what the predictions depend on.
        listing: Columns `index`, `image` and `label` of the images: position in the split,
            identity and class.
        config: The content of config.yaml.
        overwrite: Whether the run starts again in the folder of another run.
        log_name: The name of the log file; "" for none, or where another program, such as Dassl,
            writes it.
    """

    record: RunRecord
    listing: Columns
    config: str
    overwrite: bool = False
    log_name: str = "log.txt"


@dataclass(frozen=True)
class FolderState:
    """The content of a folder before a run works in it.

    Attributes:
        record: Record of the run that was started or finished there; None if there is none.
        results: Results of a finished run; None otherwise.
        refusal: Why no run may work in the folder, as one line; "" if one may. `--overwrite`
            accepts a folder for which `is_run` holds.
        is_run: Whether a run made the folder, so that it may be started again.
    """

    record: RunRecord | None = None
    results: Results | None = None
    refusal: str = ""
    is_run: bool = False


class RunDir:
    """Reads and writes the files of a run. A run is done when it has a complete results.json.

    A run may be killed at any moment. So files are replaced as a whole, what is computed is written
    part by part, and a finished part is never computed again.

    Attributes:
        path: The folder.
        parts: The folder of the parts, which goes when the run is done.
        record: The record of the run. A continued run has the decisions that it began with.
        results: The results of a finished run; None while it is unfinished.
    """

    def __init__(self, path: Path, record: RunRecord) -> None:
        """
        Args:
            path: The folder, which need not exist.
            record: The record, which states what the predictions depend on.
        """
        self.path = path
        self.parts = path / "parts"
        self.record = record
        self.results: Results | None = None

    @contextmanager
    def open(
        self, asked: AskedRun, dist: Distributed, early_lines: Sequence[logging.LogRecord] = (),
    ) -> Iterator[RunDir]:
        """Enters the folder.

        The main process decides for all what the folder is: a finished run, one to continue, a new
        one, or one that is refused. Unless the run is finished it locks the folder, and logs to it.

        Args:
            asked: The run that is asked for.
            dist: The processes of the run.
            early_lines: Log lines from before there was a folder.
        """
        with ExitStack() as stack:
            refusal = ""
            if dist.is_main:
                try:
                    self.enter(stack, asked)
                except UserError as error:
                    if dist.world == 1:
                        raise
                    refusal = str(error)  # raised below, by all processes at the same place
            refusal = dist.broadcast(refusal)
            if refusal:
                raise ConfigError(refusal)
            self.record, self.results = dist.broadcast((self.record, self.results))
            if dist.is_main and self.results is None:
                files.write_text(self.path / "config.yaml", asked.config)
                if asked.log_name:
                    stack.enter_context(log_to_file(self.path / asked.log_name, early_lines))
            dist.barrier()
            yield self

    def enter(self, stack: ExitStack, asked: AskedRun) -> None:
        """Refuses the folder, or locks it unless its run is finished. The main process calls it.

        Args:
            stack: The context that the run leaves at its end. It then releases the lock and removes
                an empty folder.
            asked: The run that is asked for.
        """
        path = self.path
        state = inspect_folder(path, has_shared_log=not asked.log_name)
        if asked.overwrite:
            if not state.is_run and state.refusal:
                raise ConfigError(f"{state.refusal} (--overwrite removes only what a run wrote)")
        else:
            check_state(path, state, asked)
            if state.results is not None and state.record is not None:
                self.record = state.record
                self.results = state.results
                self.cleanup()
                self.rename(asked.record.names)
                return
        # The lock is a file of the folder, so the folder is made before it is locked.
        existing = set()
        if path.exists():
            existing = {file.name for file in path.iterdir()}
        else:
            stack.callback(remove_if_empty, path)
        files.make_folder(path)
        stack.enter_context(FolderLock(path).held())
        if asked.overwrite and state.is_run:
            self.remove_all()
            existing = set()
        stack.enter_context(self.removing_new_files(existing))
        if existing:
            self.resume_or_start(asked)
        else:
            self.start(asked)

    def resume_or_start(self, asked: AskedRun) -> None:
        """Continues the run that the folder holds, with what it had decided, or starts again."""
        recorded = read_record(self.path / FILE_NAME)
        if not self.has_parts:
            self.remove_parts()
            if recorded is not None and recorded.is_same(asked.record, "resume"):
                # The same run. It keeps its record, because `changed` compares with the defaults
                # that it began with: --resume does not know those of a user's own data set yaml.
                asked = replace(asked, record=recorded.renamed(asked.record.names))
            elif recorded is not None:
                remove_folder(self.path / EVENTS)  # TensorBoard would mix curves of two runs
            self.start(asked)
        elif recorded is None:
            logger.warning("%s is missing or damaged, so the run starts again",
                           self.path / FILE_NAME)
            self.remove_parts()
            self.start(asked)
        else:
            self.record = recorded.renamed(asked.record.names)
            if recorded.difference(asked.record, "resume"):
                self.accept_changed_images(asked)

    def start(self, asked: AskedRun) -> None:
        """Writes the record of a new run and the list of its images."""
        self.record = asked.record
        rows = listing_rows(asked.listing)
        write_json(self.path / FILE_NAME, self.record.to_json())
        write_json(self.parts / LISTING, rows)

    def accept_changed_images(self, asked: AskedRun) -> None:
        """Continues with a list in which some images have changed that were not predicted yet.

        Finished parts get the id of the new record. If the process is killed here, parts that still
        have the old id are computed again.
        """
        # The record comes last: until it is written the folder is that of the run as it began.
        new_record = replace(self.record, data=asked.record.data)
        for file in self.parts.glob("*.npz"):
            arrays = self.read_own_arrays(file, "computed again")
            if arrays is not None:
                write_arrays(file, **{**arrays, RECORD_ID: np.array(new_record.id)})
        self.record = new_record
        write_json(self.parts / LISTING, listing_rows(asked.listing))
        write_json(self.path / FILE_NAME, self.record.to_json())
        logger.info("images that were not predicted yet have changed since the run began: the new "
                    "ones are used")

    def decide(self, dist: Distributed, **numerics: object) -> None:
        """Records decisions about numerics that were still open: the main process's, for all.

        A continued run has them recorded, and computes as it began.

        Args:
            dist: The processes of the run.
            numerics: The decisions by their name in the section `numerics`, such as `jacobian`.
        """
        still_open = {}
        for name, value in numerics.items():
            if self.record.numerics[name] == AUTO:
                still_open[name] = value
        still_open = dist.broadcast(still_open)
        if still_open:
            self.record = replace(
                self.record, numerics={**self.record.numerics, **still_open})
            if dist.is_main:
                write_json(self.path / FILE_NAME, self.record.to_json())

    @contextmanager
    def removing_new_files(self, existing: set[str]) -> Iterator[None]:
        """Removes what this run wrote if a user error stops it before it has computed anything.

        Args:
            existing: The names of the files that were there before.
        """
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
                    if PROMPTS not in existing:
                        remove_folder(self.path / PROMPTS)
            raise

    @property
    def has_parts(self) -> bool:
        """Whether something was computed: predictions, or the state of a training."""
        return has_parts(self.parts)

    def note(self, text: str) -> None:
        """Appends lines to the log as they are.

        Write errors are ignored: writing the results reports them.
        """
        with suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def finish(self, results: Results, config: str) -> Results:
        """Marks the run as done and removes the parts, which have become predictions.npz.

        The order matters if the process is killed here: parts are removed only when complete
        results have been written.

        Args:
            results: Facts and metrics.
            config: The content of config.yaml, which is written again if it was removed.

        Returns:
            The results as they were written.
        """
        if not (self.path / "config.yaml").is_file():
            files.write_text(self.path / "config.yaml", config)
        if not (self.path / FILE_NAME).is_file():
            write_json(self.path / FILE_NAME, self.record.to_json())
        finished = self.write_results({**results, "record": self.record.to_json()})
        self.remove_parts()
        return finished

    def write_results(self, results: Results) -> Results:
        """Writes results.json with the hashes of the files that belong to it."""
        results = {**results, "complete": True}
        results["files"] = hashes_of_files(self.path, results, TIED_FILES)
        write_json(self.path / RESULTS_FILE, results)
        self.results = results
        return results

    def rename(self, names: Mapping[str, str]) -> None:
        """Updates the names of a finished run that is started again with other labels.

        results.json is the file that counts, so it is written first. Names in record.json and
        predictions.npz may be older.
        """
        if self.results is None or dict(self.record.names) == dict(names):
            return
        self.record = self.record.renamed(names)
        self.write_results({**self.results, "record": self.record.to_json()})
        write_json(self.path / FILE_NAME, self.record.to_json())

    def remove_parts(self) -> None:
        """Removes the parts, and what a kill left of a file that was just written."""
        with files.writing(self.parts):
            for file in self.parts.glob("*"):
                is_folder = file.is_dir() and not file.is_symlink()
                if is_named(file, PART_FILE) and not is_folder:
                    file.unlink()
            for file in self.path.glob(".*.part"):
                if is_unfinished(file, RECORDED_FILE):
                    file.unlink()
        with suppress(OSError):
            self.parts.rmdir()

    def remove_all(self) -> None:
        """Removes all that a run writes, and nothing else.

        Its record goes last: until then the folder is that of a run, whenever this is killed.
        """
        with files.writing(self.path):
            for name in FILES_OF_FOLDER:
                remove_folder(self.path / name)
            for name in reversed(RUN_FILES):
                (self.path / name).unlink(missing_ok=True)

    def cleanup(self) -> None:
        """Removes what a process that was killed at the end of a run left next to its results."""
        if self.parts.exists() or FolderLock(self.path).path.exists():
            # The lock shows that no other process is just finishing the run.
            with suppress(UserError), FolderLock(self.path).held():
                self.remove_parts()

    def merge(
        self, parts: Sequence[Sequence[int]], images: Columns, text: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Joins all parts into predictions.npz, ordered by image.

        Args:
            parts: The positions in the split of the images of each part.
            images: Facts about all images of the run: `index`, and columns to add, such as `image`.
            text: Class features (K, d) of the initial prompt: with them no later analysis needs the
                model.

        Returns:
            All columns, those of batches included.
        """
        columns_of_parts = []
        for part in parts:
            columns_of_part = self.read_part(part)
            if columns_of_part is None:
                raise UserError(f"a part of {self.parts} is missing or damaged; the others are "
                                f"kept: run the command again")
            columns_of_parts.append(columns_of_part)
        columns = concatenate(columns_of_parts)
        # The order of the split, whatever the order in which the images were predicted.
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
        """The file of a part, named after the positions of its first and its last image."""
        return self.parts / f"{indices[0]:07d}-{indices[-1]:07d}.npz"

    def write_part(self, indices: Sequence[int], columns: Columns) -> None:
        """Saves the columns of a part.

        The file carries the record's id, so that a part of another run is never used.

        Args:
            indices: Positions of the part's images in the split.
            columns: Columns of these images, and of the batches that they were computed in.
        """
        record_id = np.array(self.record.id)
        write_arrays(self.part_file(indices), **{**columns, RECORD_ID: record_id})

    def read_part(self, indices: Sequence[int]) -> dict[str, np.ndarray] | None:
        """Reads a part's columns.

        Args:
            indices: Positions of the part's images in the split.

        Returns:
            None if the part is absent, damaged, of another run, or of other images.
        """
        columns = self.read_own_arrays(self.part_file(indices), "computed again")
        if columns is None or not set(columns) >= COLUMNS | BATCH_COLUMNS:
            return None
        # A file name states only the first and the last image.
        if {*columns["index"], *columns["bad_index"]} != set(indices):
            return None
        return columns

    def write_state(self, parts: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Replaces the saved state of an online method.

        Args:
            parts: The number of parts that the state follows.
            arrays: The state, as the method's `state` returns it.
        """
        state = {f"state/{name}": array for name, array in arrays.items()}
        state[RECORD_ID] = np.array(self.record.id)
        write_arrays(self.parts / STATE, parts=np.array(parts), **state)

    def read_state(self, most: int) -> tuple[int, dict[str, np.ndarray]]:
        """Reads the saved state of an online method.

        Args:
            most: The number of finished parts.

        Returns:
            The number of parts that the state follows, and the state; (0, {}) if it is absent,
            damaged, of another run, or follows more than `most` parts.
        """
        content = self.read_own_arrays(self.parts / STATE, "not used: the run starts again")
        if content is None or "parts" not in content:
            return 0, {}
        parts = int(content.pop("parts"))
        if parts > most:
            return 0, {}
        state = {name.removeprefix("state/"): array for name, array in content.items()}
        return parts, state

    def read_own_arrays(self, path: Path, consequence: str) -> dict[str, np.ndarray] | None:
        """Reads the arrays of a file of this run.

        Args:
            path: The file.
            consequence: Words that complete "so it is …" in the log.

        Returns:
            The arrays by name; None if the file is absent, damaged, or of another run.
        """
        if not path.is_file():
            return None
        try:
            arrays = read_arrays(path)
        except Damaged as error:
            logger.warning("%s is damaged (%s), so it is %s", path, error, consequence)
            return None
        if str(arrays.pop(RECORD_ID, "")) != self.record.id:
            logger.warning("%s belongs to another run, so it is %s", path, consequence)
            return None
        return arrays


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Divides items into consecutive pieces.

    Args:
        items: The items.
        size: Number of items per piece; only the last piece may have fewer.
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


def concatenate(parts: Sequence[Columns]) -> dict[str, np.ndarray]:
    """Concatenates the columns of batches or parts.

    A part in which no image could be read lacks the columns that a method adds, so a column is
    used if every part that has images has it.

    Args:
        parts: The columns of each part by name, each of shape (images of the part, ...).

    Returns:
        The columns by name, each of shape (all images, ...).
    """
    parts_with_images = [part for part in parts if len(part["index"]) > 0]
    if not parts_with_images:
        parts_with_images = list(parts)
    common_names = set(parts_with_images[0])
    for part in parts_with_images:
        common_names &= set(part)

    columns = {}
    for name in parts_with_images[0]:
        if name in common_names:
            arrays = [part[name] for part in parts if name in part]
            columns[name] = np.concatenate(arrays)
    return columns


def inspect_folder(path: Path, has_shared_log: bool = False) -> FolderState:
    """Finds out what a folder holds: nothing, a run, a run of another release, or foreign files.

    Args:
        path: The folder.
        has_shared_log: Whether another program, such as Dassl, writes log.txt there.
    """
    if not path.is_dir():
        if path.exists() or path.is_symlink():
            return FolderState(refusal=f"{path} is not a folder: choose another --output-dir")
        return FolderState()
    results = read_json(path / RESULTS_FILE)
    record = read_record(path / FILE_NAME)
    if isinstance(results, dict) and results.get("complete"):
        return inspect_finished(path, results)
    if record is not None and not has_parts(path / "parts"):
        return FolderState(is_run=True)  # nothing was computed: any run may begin here
    if record is not None:
        return FolderState(record=record, is_run=True)
    if isinstance(read_json(path / "parts" / "fingerprint.json"), dict):
        return FolderState(refusal=older_release(path), is_run=True)
    foreign = []
    for file in sorted(path.iterdir()):
        is_log = has_shared_log and file.name.startswith("log.txt")
        if not is_log and not is_of_run(file):
            foreign.append(file.name)
    if foreign:
        names = ", ".join(foreign[:3])
        if len(foreign) > 3:
            names += " and more"
        return FolderState(refusal=f"{path} is not empty and not the folder of a run (it holds "
                                   f"{names}): choose another --output-dir")
    return FolderState()


def is_of_run(file: Path) -> bool:
    """Whether a file or folder without a record beside it can only be a run's."""
    if file.is_symlink():
        return False
    if file.is_dir():
        pattern = FILES_OF_FOLDER.get(file.name)
        # A run that has saved a prompt has a record: without one it is somebody else's prompt.
        if pattern is None or file.name == PROMPTS:
            return False
        return all(inner.is_dir() or is_named(inner, pattern) for inner in file.rglob("*"))
    return bool(HARMLESS_FILE.fullmatch(file.name)) or is_unfinished(file, RECORDED_FILE)


def remove_folder(folder: Path) -> None:
    """Removes what a run has written in one of its folders, and the folder if nothing is left.

    Args:
        folder: Its name is a key of FILES_OF_FOLDER.
    """
    if folder.is_symlink() or not folder.is_dir():
        return
    # From the inside out, so that a folder is empty when its turn comes.
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            remove_if_empty(path)
        elif is_named(path, FILES_OF_FOLDER[folder.name]):
            path.unlink()
    remove_if_empty(folder)


def is_named(file: Path, pattern: re.Pattern[str]) -> bool:
    """Whether a file has a name of a pattern, or is the unfinished version of such a file.

    Args:
        file: The file.
        pattern: The pattern that the whole name must match.
    """
    return pattern.fullmatch(file.name) is not None or is_unfinished(file, pattern)


def is_unfinished(file: Path, pattern: re.Pattern[str]) -> bool:
    """Whether a file is what a killed process left of a file with a name of a pattern.

    Args:
        file: The file; writing uses names such as `.results.json.4711-0a1b2c3d.part`.
        pattern: The pattern that the whole name of the finished file must match.
    """
    unfinished = UNFINISHED_FILE.fullmatch(file.name)
    return unfinished is not None and pattern.fullmatch(unfinished.group(1)) is not None


def has_parts(folder: Path) -> bool:
    """Whether a folder holds predictions of a run, or the state of a training."""
    for file in folder.glob("*"):
        if file.suffix in (".npz", ".pt") and is_named(file, PART_FILE):
            return True
    return False


def inspect_finished(path: Path, results: Results) -> FolderState:
    """Returns the state of a folder with complete results. Its files must belong together.

    Args:
        path: The folder.
        results: The content of its results.json.
    """
    if "fingerprint" in results and "record" not in results:  # as version 1.0 wrote it
        return FolderState(refusal=older_release(path), is_run=True)
    broken = broken_tie(path, results, TIED_FILES)
    if broken:
        return FolderState(
            refusal=f"{path} holds files that do not belong together: {broken}. {REMEDY}",
            is_run=True)
    finished = RunRecord.from_json(results["record"])
    return FolderState(record=finished, results=results, is_run=True)


def check_state(path: Path, state: FolderState, asked: AskedRun) -> None:
    """Refuses a folder that holds another run than the one that is asked for, naming what differs.

    Args:
        path: The folder.
        state: The content of the folder, as `inspect_folder` returns it.
        asked: The run that is asked for.
    """
    if state.refusal:
        raise ConfigError(state.refusal)
    if state.record is None:
        return
    purpose = "resume" if state.results is None else "finished"
    difference = state.record.difference(asked.record, purpose)
    if not difference:
        return
    # An unfinished run may go on if only images differ that it has not predicted.
    only_images_differ = set(difference) <= {"data.images", "data.listing"}
    if state.results is None and only_images_differ:
        changed = changed_positions(path, asked.listing)
        if are_not_predicted(path, state.record, changed):
            return
    reasons = []
    if IMAGE_FIELDS & difference.keys():
        changes = describe_images(path, state.record, state.results is not None, asked.listing)
        reasons.append(describe_other_data(changes, difference))
    reasons += describe_other_run(difference, asked.record.method["trainer"])
    raise ConfigError(f"{path} {'; it '.join(reasons)}. {REMEDY}")


def describe_other_data(changes: Sequence[str], difference: Difference) -> str:
    """Describes how the data of two runs differ.

    Args:
        changes: What has changed among the images and labels, in words.
        difference: All fields in which the records of the two runs differ.
    """
    words = list(changes)
    if "data.classes" in difference:
        words.append("class names differ")
    # The hash of the groups covers the images: other images have another one.
    if "data.groups" in difference and "data.images" not in difference:
        words.append("groups of the images differ")
    if not words:
        words.append("other images, or another order of them")
    return f"was made with other data: {', '.join(words)}"


def describe_other_run(difference: Difference, trainer: str) -> list[str]:
    """Describes how two runs differ besides their data: in weights, code and settings.

    Args:
        difference: All fields in which the records of the two runs differ.
        trainer: The method of the run that is asked for.

    Returns:
        One phrase for each of the three that differs.
    """
    # The code, settings and views of another method differ too: its name says it all.
    is_other_method = "method.trainer" in difference
    reasons = []
    if "model.weights" in difference:
        weights = describe_difference({"weights": difference["model.weights"]})
        reasons.append(f"was made with other weights: {weights}")
    if "method.source" in difference and not is_other_method:
        reasons.append(f"was made with other code of {trainer}: the method was edited since")
    settings = {}
    for name, values in difference.items():
        if name in IMAGE_FIELDS or name in ("model.weights", "method.source"):
            continue
        if is_other_method and not name.startswith(("method.trainer", "data.", "model.")):
            continue
        settings[name] = values
    if settings:
        reasons.append(f"holds a run with other settings ({describe_difference(settings)})")
    return reasons


def changed_positions(path: Path, listing: Columns) -> set[int]:
    """Finds the positions in the split of the images that have changed since a run began.

    Args:
        path: Folder of the run.
        listing: Columns `index`, `image` and `label` of the images that are asked for.

    Returns:
        The positions; empty if images were added or removed, or if the run's list cannot be read.
    """
    try:
        before = {row[0]: row for row in read_json(path / "parts" / LISTING) or []}
    except (TypeError, IndexError):  # not the rows that `listing_rows` makes
        return set()
    now = {row[0]: row for row in listing_rows(listing)}
    if before.keys() != now.keys():
        return set()
    return {position for position in now if now[position] != before[position]}


def are_not_predicted(path: Path, record: RunRecord, positions: set[int]) -> bool:
    """Whether an unfinished run has predicted none of some images, and these are not all it has.

    Such an image may be repaired: the run stopped there because it could not be read.

    Args:
        path: Folder of the run.
        record: Record of the run.
        positions: Positions of these images in the split.
    """
    run_dir = RunDir(path, record)
    predicted: set[int] = set()
    for file in run_dir.parts.glob("*.npz"):
        if file.name == STATE:
            continue
        arrays = run_dir.read_own_arrays(file, "computed again")
        if arrays is not None:
            predicted.update(arrays["index"].tolist())
            predicted.update(arrays["bad_index"].tolist())
    return bool(positions) and bool(predicted) and not positions & predicted


def listing_rows(listing: Columns) -> list[list[Any]]:
    """Position, identity and label of each image, as plain JSON values."""
    rows = []
    columns = (listing["index"], listing["image"], listing["label"])
    for index, image, label in zip(*columns, strict=True):
        rows.append([int(index), bytes(image).hex(), int(label)])
    return rows


def describe_images(
    path: Path, record: RunRecord, is_finished: bool, listing: Columns,
) -> list[str]:
    """Says how the images that are asked for differ from those of a run.

    Args:
        path: Folder of the run.
        record: Record of the run.
        is_finished: Whether the run has predictions.npz; otherwise it has a list of its images.
        listing: Columns `index`, `image` and `label` of the images that are asked for.

    Returns:
        A list of phrases such as "12 images changed".
    """
    before: Counter[tuple[str, int]] = Counter()
    with suppress(Damaged, KeyError, TypeError, ValueError):  # a damaged list: nothing is known
        if is_finished:
            before = labelled_images(listing_rows(read_arrays(path / "predictions.npz")))
        else:
            before = labelled_images(read_json(path / "parts" / LISTING) or [])
    now = labelled_images(listing_rows(listing))
    words = []
    if record.data["n"] != now.total():
        words.append(f"{counted(record.data['n'], 'image')} then, now {now.total()}")
    if not before:
        return words
    # By content: an image that was added in front of others changes the position of all.
    images_before = images_of(before)
    images_now = images_of(now)
    absent = (images_before - images_now).total()
    added = (images_now - images_before).total()
    # An image that is gone and one that is new are taken as one that has changed. Pairs of image
    # and label that are new, but whose image is not, have another label.
    changed_images = min(absent, added)
    changed_labels = (now - before).total() - added
    if changed_images:
        words.append(f"{counted(changed_images, 'image')} changed")
    if changed_labels:
        verb = "differs" if changed_labels == 1 else "differ"
        words.append(f"{counted(changed_labels, 'label')} {verb}")
    return words


def labelled_images(rows: Sequence[Sequence[Any]]) -> Counter[tuple[str, int]]:
    """Counts how often each picture, whichever copy of it, is there with each label."""
    images: Counter[tuple[str, int]] = Counter()
    for _, image, label in rows:
        images[image[: 2 * CONTENT_BYTES], label] += 1  # two hexadecimal digits for each byte
    return images


def images_of(labelled: Mapping[tuple[str, int], int]) -> Counter[str]:
    """Counts how often each picture is there, with any label."""
    images: Counter[str] = Counter()
    for (image, _), number in labelled.items():
        images[image] += number
    return images


def older_release(path: Path) -> str:
    """The line that says why no run may work in the folder of a run of version 1.0."""
    return (f"{path} holds a run of promptcal 1.0, which this version does not continue; reports "
            f"still read it. {REMEDY}")


def read_results(folder: Path) -> Results | None:
    """The results of a finished run; None if it is not finished or its files do not belong
    together.
    """
    return inspect_folder(folder).results


def read_predictions(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of predictions.npz of a finished run."""
    path = folder / "predictions.npz"
    try:
        return read_arrays(path)
    except Damaged as error:
        raise UserError(f"{path} of a finished run cannot be read ({error}): run the command again "
                        f"with --overwrite") from error


def read_record(path: Path) -> RunRecord | None:
    """A record file; None if it is absent or damaged."""
    try:
        return RunRecord.from_json(read_json(path))
    except ValueError:
        return None


def remove_if_empty(path: Path) -> None:
    """Removes a folder; one that holds something stays."""
    with suppress(OSError):
        path.rmdir()


class RunLog(WatchedFileHandler):
    """Ignores write errors: a full disk or a removed folder is reported when results are written.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def log_to_file(path: Path, early: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Writes log lines to a file too. A resumed run appends.

    Args:
        path: The file.
        early: Lines from before there was a folder, which are written first.
    """
    if path.is_fifo():  # opening it would wait for a reader
        raise UserError(f"cannot write {path}: it is a pipe")
    with files.writing(path):
        # Names of files may be in any encoding.
        handler = RunLog(path, encoding="utf-8", errors="surrogateescape")
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
