"""The directory of a run: config and log, predictions in parts while it runs, results when it is done."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from logging.handlers import MemoryHandler, WatchedFileHandler
from pathlib import Path
from typing import Any

import numpy as np
from yacs.config import CfgNode

from ...datasets.utils import files
from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError
from ...datasets.utils.files import Damaged, read_arrays, read_json, write_arrays, write_json
from ..config.fingerprint import check_same, run_path
from .dist import Distributed
from .lock import RunLock
from .parts import Columns, joined

logger = logging.getLogger(__name__)

Results = dict[str, Any]

COLUMNS = {"index", "label", "logits", "zero_shot_logits", "flagged"}  # of predictions.npz, besides a method's own
OF_BATCHES = {"seconds", "adapt_seconds", "bad_index", "bad_reason"}  # in parts: not one row per predicted image
STATE = "state.npz"  # of an online method


class RunDir:
    """Reads and writes the files of a run. A run is done when it has a complete results.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = path / "parts"
        self.results = self.read_results()

    @classmethod
    @contextmanager
    def open(
        cls, cfg: CfgNode, fingerprint: Mapping[str, object], dist: Distributed,
        early_lines: Sequence[logging.LogRecord] = (), log_name: str = "log.txt",
    ) -> Iterator[RunDir]:
        """The directory of a run with these settings. Unless the run is finished, the main process locks it for all,
        starts or continues the run, and logs to it, beginning with `early_lines`. A run that was finished or started
        with another fingerprint is refused."""
        run_dir = cls(run_path(cfg))
        if run_dir.results is not None:
            check_same(fingerprint, run_dir.results["fingerprint"], run_dir.path, finished=True)
            if dist.is_main:
                run_dir.cleanup()
            yield run_dir
            return
        with ExitStack() as stack:
            if dist.is_main:
                if not run_dir.path.exists():
                    stack.callback(run_dir.remove_if_empty)
                files.make_folder(run_dir.path)
                stack.enter_context(RunLock(run_dir.path).held())
                stack.enter_context(run_dir.removed_if_refused())
                run_dir.start(fingerprint)
                run_dir.write_config(cfg)
                if log_name:
                    stack.enter_context(log_to_file(run_dir.path / log_name, early_lines))
            dist.barrier()
            yield run_dir

    def start(self, fingerprint: Mapping[str, object]) -> None:
        """Continues from parts with the same fingerprint; parts without a readable fingerprint are removed."""
        path = self.parts / "fingerprint.json"
        begun = read_json(path)
        if self.has_parts and isinstance(begun, dict):
            check_same(fingerprint, begun, self.path)
            return
        if self.has_parts:
            logger.warning("%s is missing or damaged, so the run starts again", path)
        self.remove_parts()
        write_json(path, fingerprint)

    @contextmanager
    def removed_if_refused(self) -> Iterator[None]:
        """A run that a user error stops before it has computed anything leaves no directory that looks unfinished."""
        existed = self.has_parts
        try:
            yield
        except UserError:
            if not existed and not self.has_parts:
                with suppress(UserError, OSError):
                    self.remove_parts()
                    for name in ("config.yaml", "log.txt"):
                        (self.path / name).unlink(missing_ok=True)
            raise

    def remove_if_empty(self) -> None:
        with suppress(OSError):
            self.path.rmdir()

    @property
    def has_parts(self) -> bool:
        return any(file.suffix in (".npz", ".pt") for file in self.parts.glob("*"))

    def write_config(self, cfg: CfgNode) -> None:
        files.write_text(self.path / "config.yaml", cfg.dump())

    def note(self, text: str) -> None:
        """Appends lines to the log as they are. Write errors are ignored; the results writer reports them."""
        with suppress(OSError), (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def read_results(self) -> Results | None:
        """The results of a finished run."""
        results = read_json(self.path / "results.json")
        if isinstance(results, dict) and results.get("complete") and "bins" in results:
            return results if isinstance(results.get("fingerprint"), dict) else None
        return None

    def finish(self, results: Results, cfg: CfgNode) -> Results:
        """Marks the run as done and removes the parts, which have become predictions.npz."""
        if not (self.path / "config.yaml").is_file():  # the directory was removed during the run
            self.write_config(cfg)
        self.results = {**results, "complete": True}
        write_json(self.path / "results.json", self.results)
        self.remove_parts()
        return self.results

    def remove_parts(self) -> None:
        """Removes files only: runs make no folders in there. A kill while a file was written left `.NAME.part`."""
        with files.writing(self.parts):
            for file in (*self.parts.glob("*"), *self.path.glob(".*.part")):
                if file.is_file() or file.is_symlink():
                    file.unlink()
        with suppress(OSError):
            self.parts.rmdir()

    def cleanup(self) -> None:
        """Removes what a process that was killed at the very end of a run left next to its results."""
        if self.parts.exists() or RunLock(self.path).path.exists():
            with suppress(UserError), RunLock(self.path).held():  # not while its owner is just finishing it
                self.remove_parts()

    def predictions(self) -> dict[str, np.ndarray]:
        path = self.path / "predictions.npz"
        try:
            return read_arrays(path)
        except Damaged as error:
            raise UserError(f"{path} of a finished run cannot be read ({error}): remove {self.path / 'results.json'} "
                            f"and run the command again") from error

    def merge(
        self, parts: Sequence[Sequence[int]], filenames: Mapping[int, str], text: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Joins all parts into predictions.npz, ordered by image, and returns all their columns. `filenames` are by
        position in the split; with the initial class features `text` (K, d) no later analysis needs the model."""
        found = [self.read_part(part) for part in parts]
        if any(columns is None for columns in found):
            raise UserError(f"a part of {self.parts} is missing or damaged; the others are kept: run the command again")
        columns = joined([columns for columns in found if columns is not None])
        order = columns["index"].argsort(kind="stable")
        for name in set(columns) - OF_BATCHES:
            columns[name] = columns[name][order]
        columns["filename"] = np.array([filenames[index] for index in columns["index"].tolist()], dtype=np.str_)
        columns["text"] = text
        kept = {name: column for name, column in columns.items() if name not in OF_BATCHES}
        write_arrays(self.path / "predictions.npz", **kept)
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
        whole = set(columns) >= COLUMNS | OF_BATCHES and {*columns["index"], *columns["bad_index"]} == set(indices)
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
