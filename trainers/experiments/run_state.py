"""Whether the folder of a planned run holds its results, by the record of the run."""
from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock

from yacs.config import CfgNode

from ...datasets import DataOptions, Dataset, build_dataset
from ...datasets.identity import ImageIdentity
from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError
from ..base import BaseTrainer
from ..registry import build_trainer
from ..runs.record import RunRecord
from ..runs.run_dir import TIED_FILES, FolderState, Results, check_state, inspect_folder
from ..vlm.loading import weights_hash

WATCHED_FILES = ("results.json", "record.json", *TIED_FILES)


@dataclass(frozen=True)
class RunState:
    """What the folder of a planned run holds, compared with the plan.

    Attributes:
        results: Results of this run if it is finished; None otherwise.
        conflict: Why a run in the folder is not the planned one, or cannot be compared with it, as
            one line; "" if there is none, or if it is the planned one.
    """

    results: Results | None = None
    conflict: str = ""

    @property
    def finished(self) -> bool:
        return self.results is not None


def run_state(key: str, cfg: CfgNode) -> RunState:
    """Compares what the folder of a run holds with the record of the run.

    Args:
        key: Key of the planned run.
        cfg: All its settings, with its folder and with the prompt that it starts from.
    """
    path = Path(cfg.OUTPUT_DIR)
    folder = read_folder(path, file_stamps(path))
    if folder.refusal:
        return RunState(conflict=folder.refusal)
    if folder.record is None:
        return RunState()
    try:
        planned = RECORDS.get(key, cfg)
    except UserError as error:
        if folder.results is None:
            return RunState()  # the same error stops the run
        return RunState(conflict=f"{path} holds a finished run that cannot be compared with the "
                                 f"planned one: {error}")
    purpose = "resume" if folder.results is None else "finished"
    if folder.record.is_same(planned, purpose):
        return RunState(results=folder.results)
    return RunState(conflict=RECORDS.explain(path, folder, cfg))


@lru_cache(maxsize=5000)
def read_folder(path: Path, stamps: Hashable) -> FolderState:
    """What a folder holds. It is read again only if its files have changed.

    The predictions of a finished run are hashed, and a progress bar asks every two seconds.
    """
    return inspect_folder(path)


def file_stamps(folder: Path) -> tuple[tuple[int, int, int], ...]:
    """The stamps of the files that make a finished run."""
    return tuple(file_stamp(folder / name) for name in WATCHED_FILES)


def file_stamp(path: Path) -> tuple[int, int, int]:
    """Size and times of the last change of a file; (-1, 0, 0) if there is none.

    The second time is that of content or attributes, which a copy cannot set.
    """
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a path that no system takes
        return -1, 0, 0
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class PlannedRecords:
    """The records of planned runs, kept until `forget`.

    Making a record takes a look at every image file. Runs on the same images share it, and runs of
    the same backbone share the hash of its weights.
    """

    def __init__(self) -> None:
        self.records: dict[tuple, RunRecord] = {}
        self.identities: dict[tuple, ImageIdentity] = {}
        self.weights: dict[str, str] = {}  # by the name of the backbone
        self.lock = RLock()  # several threads wait for processes

    def get(self, key: str, cfg: CfgNode) -> RunRecord:
        """The record that a run would have if it started now."""
        prompt = Path(cfg.MODEL.INIT_WEIGHTS)
        depends_on = (key, cfg.OUTPUT_DIR, cfg.DATASET.ROOT, file_stamp(prompt))
        with self.lock, few_log_lines():
            if depends_on not in self.records:
                self.records[depends_on] = self.make_trainer(cfg).record
            return self.records[depends_on]

    def explain(self, path: Path, folder: FolderState, cfg: CfgNode) -> str:
        """In what a run in a folder differs from the run with these settings, as one line.

        "" if they do not differ.
        """
        with self.lock, few_log_lines():
            trainer = self.make_trainer(cfg)
            try:
                check_state(path, folder, trainer.asked_run())
            except UserError as error:
                return str(error)
        return ""

    def make_trainer(self, cfg: CfgNode) -> BaseTrainer:
        """A trainer that takes over what is known about its data and its backbone."""
        trainer: BaseTrainer = build_trainer(cfg, read_dataset(*data_settings(cfg)))
        backbone = cfg.MODEL.BACKBONE.NAME
        if backbone not in self.weights:
            self.weights[backbone] = weights_hash(backbone)
        images = (*data_settings(cfg), cfg.TEST.SPLIT, cfg.TEST.LIMIT, cfg.TEST.IMBALANCE)
        trainer.set_known_hashes(self.weights[backbone], self.identities.get(images))
        self.identities[images] = trainer.identity
        return trainer

    def forget(self) -> None:
        """Drops all records. A command calls it where data and weights may have changed."""
        with self.lock:
            self.records.clear()
            self.identities.clear()
            self.weights.clear()
            read_dataset.cache_clear()


@contextmanager
def few_log_lines() -> Iterator[None]:
    """Hides what is logged about settings and data while runs are only planned or compared."""
    level = LOGGER.level
    LOGGER.setLevel(logging.ERROR)
    try:
        yield
    finally:
        LOGGER.setLevel(level)


def data_settings(cfg: CfgNode) -> tuple[str, str, DataOptions]:
    """The arguments of `build_dataset`."""
    return cfg.DATASET.NAME, cfg.DATASET.ROOT, DataOptions.from_settings(cfg)


@lru_cache(maxsize=2)  # large, and used by one run after the other
def read_dataset(name: str, root: str, options: DataOptions) -> Dataset:
    """Reads a data set, see `build_dataset`. It is cached, because several runs share it."""
    return build_dataset(name, root, options)


RECORDS = PlannedRecords()
