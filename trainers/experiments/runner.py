"""Runs what is not finished. Any number of processes may do so in one output folder: each takes the next free run.

A run is free when it is not finished, nobody works on it, the prompt it starts from is learnt, and its view features
are either there or not being made by somebody else, so that no image is encoded twice.
"""
from __future__ import annotations

import hashlib
import logging
import os
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...datasets.utils.errors import UserError
from ...datasets.utils.files import make_folder, read_json, write_json
from ..coop import trained_prompt
from ..registry import build_trainer, method_info
from ..report.load import FAILURE
from ..report.tensorboard_figures import write_tensorboard_figures
from ..runs.lock import RunLock
from .plan import PlannedRun, differs, with_prompt

logger = logging.getLogger(__name__)

PAUSE = 2.0  # seconds between looks at what others do


@dataclass
class Tally:
    """What became of the runs."""

    done: list[PlannedRun] = field(default_factory=list)  # here and now
    failed: dict[PlannedRun, str] = field(default_factory=dict)  # run -> reason


class Busy(Exception):
    """Somebody else is at it."""


def stand_alone() -> tuple[int, int]:
    """Makes this process, if torchrun started it, one of several that share a list of runs, not parts of a run.

    Runs are many and small, and a run that fails must not leave other ranks waiting. Returns rank and world size.
    """
    rank, local, world = (int(os.environ.get(name, default)) for name, default in (
        ("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1)))
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    if torch.cuda.is_available():
        torch.cuda.set_device(local % torch.cuda.device_count())
    return rank, world


class Runner:
    """Takes free runs until all are finished or have failed, here or in another process."""

    def __init__(self, runs: Sequence[PlannedRun], rank: int = 0, world: int = 1) -> None:
        runs = in_order(runs)
        start = rank * len(runs) // world  # processes begin at different places, so that they meet rarely
        self.open = runs[start:] + runs[:start]
        self.all = tuple(self.open)
        self.tally = Tally()
        # Failures of earlier attempts are no reason not to try again; those that appear from now on are.
        self.old_failures = {run: read_json(run.folder / FAILURE) for run in runs}

    def work(self) -> Tally:
        while self.open:
            left = [run for run in self.open if not (self.settled(run) or self.attempt(run))]
            if left == self.open:
                time.sleep(PAUSE)  # others are at all that is left
            self.open = left
        return self.tally

    def settled(self, run: PlannedRun) -> bool:
        """Whether nothing is left to do for a run."""
        if run.finished:
            if reason := differs(run):
                self.tally.failed[run] = reason
                logger.error("%s: %s", run.described, reason)
            return True
        failure = read_json(run.folder / FAILURE)
        if failure and failure != self.old_failures[run]:
            self.tally.failed[run] = failure["reason"]
            return True
        if run.prompt in self.tally.failed:
            self.tally.failed[run] = "the prompt that it starts from could not be learnt"
            return True
        return False

    def attempt(self, run: PlannedRun) -> bool:
        """Carries a run out; False if it is not free."""
        if (run.prompt and not run.prompt.finished) or in_use(run.folder):
            return False
        try:
            with self.features_of(run):
                if run.finished:  # by another process, a moment ago
                    return True
                self.carry_out(run)
        except Busy:
            return False
        return True

    def features_of(self, run: PlannedRun):
        """A claim on the view features of a run, unless they are there already or it does not need them all."""
        alike = [other for other in self.all if other.features == run.features and other.many_views]
        if not alike or method_info(run.method).trained or any(other.finished for other in alike):
            return nullcontext()
        return Claim(run).held()

    def carry_out(self, run: PlannedRun) -> None:
        logger.info("%s (%d of %d)", run.described, self.all.index(run) + 1, len(self.all))
        try:
            cfg = with_prompt(run, trained_prompt(run.prompt.cfg)) if run.prompt else run.cfg
            if method_info(run.method).trained:
                trained_prompt(cfg)
            else:
                build_trainer(cfg).run()
                write_tensorboard_figures(run.folder)
        except Exception as error:  # whatever it is, the other runs go on
            if in_use(run.folder):
                raise Busy from error
            reason = " ".join(str(error).split())
            if not isinstance(error, UserError):
                reason = f"{type(error).__name__}: {reason} (in full in {run.folder / FAILURE})"
            self.tally.failed[run] = reason
            logger.error("FAILED %s: %s", run.described, reason)
            note = {"reason": reason, "process": os.getpid(), "time": time.time(), "trace": traceback.format_exc()}
            with suppress(UserError):  # where not even this can be written, other processes find out for themselves
                make_folder(run.folder)
                write_json(run.folder / FAILURE, note)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        else:
            (run.folder / FAILURE).unlink(missing_ok=True)
            self.tally.done.append(run)


def in_order(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Runs that share features one after the other: prompts first, then those that make all views' features, last those
    that need the plain view alone, which is among them."""
    first: dict[tuple, int] = {}
    for place, run in enumerate(runs):
        first.setdefault(run.features, place)
    return sorted(runs, key=lambda run: (first[run.features], not method_info(run.method).trained, not run.many_views))


class Claim(RunLock):
    """A lock on view features while they are made."""

    def __init__(self, run: PlannedRun) -> None:
        digest = hashlib.sha256(repr(run.features).encode()).hexdigest()[:12]
        super().__init__(Path(run.cfg.CACHE.DIR) / "claims" / digest)
        make_folder(self.path.parent)

    def taken(self) -> Busy:
        return Busy()


def in_use(folder: Path) -> bool:
    """Whether somebody works in a run folder now."""
    lock = RunLock(folder)
    if not lock.path.exists():
        return False
    try:
        lock.remove_if_stale()
    except UserError:
        return True
    return False
