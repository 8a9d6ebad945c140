"""A run's folder: its config, log, predictions in parts while running, and results when done."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import (
    Damaged,
    make_folder,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
    write_text,
    writing,
)
from ..config.fingerprint import check_same
from ..engine.dist import Distributed
from ..engine.parts import joined, part_name
from .lock import RunLock
from .log import log_to_file

logger = logging.getLogger(__name__)

COLUMNS = {"index", "label", "logits", "zero_shot_logits", "flagged"}  # of predictions.npz, besides a method's own
OF_PART = {"seconds", "bad_index", "bad_reason"}  # what a part holds besides, which is no column of an image
TIMES = OF_PART | {"adapt_seconds"}  # and what parts of older versions lack
STATE = "state.npz"  # of an online method


@dataclass(frozen=True)
class State:
    """An online method's state after so many parts."""

    parts: int
    arrays: dict[str, np.ndarray]


class RunDir:
    """Everything a run leaves behind. Complete files only: a run is done when results.json says so."""

    def __init__(self, path: Path, log: str = "log.txt") -> None:
        self.path = path
        self.log = log
        self.parts = path / "parts"
        self.config = ""  # what config.yaml holds, once the run is ours

    @contextmanager
    def owned(
        self, dist: Distributed, fingerprint: Mapping, config: str, early: Sequence[logging.LogRecord] = (),
    ) -> Iterator[None]:
        """Starts the run here, or continues it if it was begun under the same circumstances, and keeps others out.

        The first rank holds the lock for all. `early` lines were logged before there was a folder.
        """
        self.config = config
        with ExitStack() as stack:
            if dist.is_main:
                if not self.path.exists():
                    stack.callback(self.remove_if_empty)
                make_folder(self.path)
                stack.enter_context(RunLock(self.path).held())
                stack.push(self.discard_if_refused)
                self.begin(fingerprint)
                self.write_config(config)
                if self.log:
                    stack.enter_context(log_to_file(self.path / self.log, early))
            dist.barrier()
            yield

    def discard_if_refused(self, kind: type[BaseException] | None, *_: object) -> None:
        """Removes the files of a run that was refused before it computed anything, so that it does not count as
        unfinished."""
        if kind is None or not issubclass(kind, UserError):
            return
        files = {file.relative_to(self.path).as_posix() for file in self.path.rglob("*")}
        if files <= {"lock", "config.yaml", self.log, "parts", "parts/fingerprint.json"}:
            self.remove_parts()
            for name in {"config.yaml", self.log} & files:
                with suppress(OSError):
                    (self.path / name).unlink()

    def remove_if_empty(self) -> None:
        with suppress(OSError):
            self.path.rmdir()

    def note(self, text: str) -> None:
        """Adds lines to the log as they are. A full disk is told by what matters more."""
        if self.log:
            with suppress(OSError), (self.path / self.log).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")

    def begin(self, fingerprint: Mapping) -> None:
        """Goes on from what is in `parts`, if it was made under the same circumstances. A run that got no further than
        its start has no claim to the folder, and where nothing tells whose the parts are, they are nobody's."""
        path = self.parts / "fingerprint.json"
        begun = read_json(path)
        made = [*self.parts.glob("*.npz"), *self.parts.glob("*.pt")]
        if made and isinstance(begun, dict):
            check_same(fingerprint, begun, self.path)
            return
        if made:
            logger.warning("%s is missing or damaged, so the run begins anew", path)
        self.remove_parts()
        write_json(path, fingerprint)

    def write_config(self, config: str) -> None:
        write_text(self.path / "config.yaml", config)

    def results(self) -> dict | None:
        """The results of a finished run."""
        results = read_json(self.path / "results.json")
        if not isinstance(results, dict) or not results.get("complete"):
            return None
        if not isinstance(results.get("fingerprint"), dict) or "bins" not in results:
            logger.warning("%s is no result of a run and is written anew", self.path / "results.json")
            return None
        return results

    def finish(self, results: Mapping) -> None:
        """Marks the run as done; the parts have become predictions.npz and are removed."""
        if self.config and not (self.path / "config.yaml").is_file():
            self.write_config(self.config)  # somebody has removed the folder while the run went on
        write_json(self.path / "results.json", {**results, "complete": True})
        self.remove_parts()

    def remove_parts(self) -> None:
        """What is no file there is not ours, and stays."""
        with writing(self.parts):
            for file in self.parts.glob("*"):
                if file.is_file() or file.is_symlink():
                    file.unlink()
        with suppress(OSError):
            self.parts.rmdir()

    def tidy(self) -> None:
        """Removes what a process that was killed at the very end of a run left beside its results."""
        if self.parts.exists() or RunLock(self.path).path.exists():
            with suppress(UserError), RunLock(self.path).held():  # unless its owner is only just finishing it
                self.remove_parts()

    def predictions(self) -> dict[str, np.ndarray]:
        path = self.path / "predictions.npz"
        try:
            return read_arrays(path)
        except Damaged as error:
            remedy = f"remove {self.path / 'results.json'} and run the command again"
            raise UserError(f"{path} of a finished run cannot be read ({error}): {remedy}") from error

    def gather(self, parts: Sequence[Sequence[int]], text: np.ndarray) -> dict[str, np.ndarray]:
        """Joins all parts into predictions.npz, ordered by sample index, and returns all their columns.

        `text` (K, d), the initial class features, is kept with them, so that nothing later needs the model.
        """
        parts = [self.read_part(part) for part in parts]
        if any(part is None for part in parts):
            raise UserError(f"a part of {self.parts} is missing or damaged; the others are kept: run the command again")
        columns = joined(parts)
        order = columns["index"].argsort(kind="stable")
        for name in set(columns) - TIMES:
            columns[name] = columns[name][order]
        columns["text"] = text
        kept = {name: column for name, column in columns.items() if name not in TIMES}
        write_arrays(self.path / "predictions.npz", **kept)
        return columns

    def part_file(self, indices: Sequence[int]) -> Path:
        return self.parts / f"{part_name(indices)}.npz"

    def write_part(self, indices: Sequence[int], columns: Mapping[str, np.ndarray]) -> None:
        write_arrays(self.part_file(indices), **columns)

    def read_part(self, indices: Sequence[int]) -> dict[str, np.ndarray] | None:
        """A part's columns; None if it is absent, damaged or of other images."""
        path = self.part_file(indices)
        if not path.is_file():
            return None
        try:
            columns = read_arrays(path)
        except Damaged as error:
            logger.warning("%s is damaged (%s) and is computed again", path, error)
            return None
        whole = set(columns) >= COLUMNS | OF_PART and {*columns["index"], *columns["bad_index"]} == set(indices)
        return columns if whole else None

    def write_state(self, parts: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Keeps what an online method knows after its first `parts` parts, in place of what it knew before."""
        write_arrays(self.parts / STATE, parts=np.array(parts), **{f"state/{name}": a for name, a in arrays.items()})

    def read_state(self, most: int) -> State | None:
        """The state that was kept, unless it is damaged or knows more than the first `most` parts."""
        path = self.parts / STATE
        if not path.is_file():
            return None
        try:
            content = read_arrays(path)
            parts = int(content.pop("parts"))
        except (Damaged, KeyError) as error:
            logger.warning("%s is damaged (%s), so the run begins anew", path, error)
            return None
        return State(parts, {name.removeprefix("state/"): a for name, a in content.items()}) if parts <= most else None
