"""Computes what is not finished: group by group in this process, or in several processes (`--jobs`)."""
from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm
from yacs.config import CfgNode

from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError
from ...datasets.utils.files import make_folder, write_json
from ..config.fingerprint import run_path
from ..coop import trained_prompt
from ..registry import build_trainer, method_info
from ..report.load import FAILURE
from ..report.tensorboard_figures import write_tensorboard_figures
from ..runs.lock import RunLock
from ..runs.run_dir import Results
from .plan import PlannedRun, WorkGroup, differs, with_prompt

logger = logging.getLogger(__name__)

REFRESH = 2.0  # seconds between updates of the progress bar
GRACE = 10.0  # seconds that a process without a parent has to close its files
DIED = "its process died (killed, or out of memory); the same command continues"


@dataclass(frozen=True)
class RunOutcome:
    """What became of a run. It is finished unless there is a reason why it failed."""

    run: PlannedRun
    computed: bool = False  # by this call; False for a run that was finished before
    reason: str = ""


def run_group(group: WorkGroup) -> list[RunOutcome]:
    """Computes the unfinished runs of a group. May be called in any process; a failed run does not stop the others."""
    return list(run_in_order(group))


def run_in_order(group: WorkGroup) -> Iterator[RunOutcome]:
    failed: set[PlannedRun | None] = set()
    for run in group.runs:
        if run.prompt in failed:
            outcome = RunOutcome(run, reason="the prompt that it starts from could not be learnt")
        elif run.finished:
            outcome = RunOutcome(run, reason=differs(run))
        else:
            outcome = compute(run)
        if outcome.reason:
            failed.add(run)
            logger.error("FAILED %s: %s", run.described, outcome.reason)
        yield outcome


def compute(run: PlannedRun) -> RunOutcome:
    logger.info("%s", run.described)
    try:
        cfg = with_prompt(run, trained_prompt(run.prompt.cfg)) if run.prompt else run.cfg
        if method_info(run.method).trained:
            trained_prompt(cfg)
        else:
            run_with_figures(cfg)
    except Exception as error:  # the other runs are still wanted
        return RunOutcome(run, reason=record_failure(run, error))
    with suppress(OSError):
        (run.folder / FAILURE).unlink(missing_ok=True)
    return RunOutcome(run, computed=True)


def run_with_figures(cfg: CfgNode) -> Results:
    """A run, with its figures in TensorBoard."""
    trainer = build_trainer(cfg)
    results = trainer.run()
    write_tensorboard_figures(run_path(cfg))
    return results


def record_failure(run: PlannedRun, error: Exception) -> str:
    """The reason in one line. The traceback goes into the run folder, unless another process is working there."""
    reason = " ".join(str(error).split())
    if not isinstance(error, UserError):
        reason = f"{type(error).__name__}: {reason} (traceback in {run.folder / FAILURE})"
    if not RunLock(run.folder).path.exists():
        with suppress(UserError):  # the reason is reported even if it cannot be written
            make_folder(run.folder)
            trace = "".join(traceback.format_exception(error))
            write_json(run.folder / FAILURE, {"reason": reason, "time": time.time(), "trace": trace})
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return reason


def run_groups(groups: Sequence[WorkGroup], jobs: int = 1) -> list[RunOutcome]:
    """Computes all groups, `jobs` of them at a time, each in a process of its own if there are several."""
    total = sum(len(group.runs) for group in groups)
    with tqdm(total=total, desc="runs", unit="run", dynamic_ncols=True, disable=not total) as bar:
        if jobs > 1:
            return run_parallel(groups, jobs, bar)
        outcomes = []
        for group in groups:
            for outcome in run_in_order(group):
                outcomes.append(outcome)
                bar.update()
        return outcomes


def run_parallel(groups: Sequence[WorkGroup], jobs: int, bar: tqdm) -> list[RunOutcome]:
    """Each group in a process of its own, the largest first. A process that dies costs no other group."""
    outcomes: list[RunOutcome] = []
    waiting: deque[WorkGroup] = deque()
    for group in sorted(groups, key=lambda group: -group.num_images):
        if all(run.finished for run in group.runs):
            outcomes += run_group(group)
        else:
            waiting.append(group)
    gpus, slots = visible_gpus(), deque(range(jobs))
    running: dict[Future, Job] = {}
    try:
        while waiting or running:
            while waiting and slots:
                slot = slots.popleft()
                job = Job(waiting.popleft(), slot, gpus[slot % len(gpus)] if gpus else "", jobs)
                running[job.future] = job
            ended, _ = wait(running, REFRESH, FIRST_COMPLETED)
            for job in [running.pop(future) for future in ended]:
                slots.append(job.slot)
                outcomes += job.outcomes()
            bar.n = len(outcomes) + sum(run.finished for job in running.values() for run in job.group.runs)
            bar.refresh()
    finally:
        for job in running.values():
            job.terminate()
        for job in running.values():
            job.pool.shutdown(cancel_futures=True)
    return outcomes


class Job:
    """A group in a process of its own."""

    def __init__(self, group: WorkGroup, slot: int, gpu: str, jobs: int) -> None:
        self.group, self.slot = group, slot
        self.finished_before = {run for run in group.runs if run.finished}
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pool = ProcessPoolExecutor(1, context, start_worker, (gpu, jobs))
        self.pid = self.pool.submit(os.getpid)
        self.future = self.pool.submit(run_group, group)

    def outcomes(self) -> list[RunOutcome]:
        """Once it has ended. Of a process that died, what it had finished counts."""
        self.pool.shutdown()
        if self.future.exception() is None:
            outcomes = self.future.result()
        else:
            outcomes = [RunOutcome(run, run not in self.finished_before) if run.finished else
                        RunOutcome(run, reason=DIED) for run in self.group.runs]
        for outcome in outcomes:
            if outcome.reason:
                logger.error("FAILED %s: %s", outcome.run.described, outcome.reason)
        return outcomes

    def terminate(self) -> None:
        """Ends the process; the run in it closes its files first."""
        with suppress(Exception):  # it may have died already
            os.kill(self.pid.result(), signal.SIGTERM)


def start_worker(gpu: str, jobs: int) -> None:
    """Prepares a new process: one GPU, its share of the cores, no output, and an end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.environ["LOCAL_WORLD_SIZE"] = str(jobs)  # the automatic number of threads is per process
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  bars of several processes; see log.txt
    LOGGER.setLevel(logging.INFO)
    LOGGER.addHandler(logging.NullHandler())
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """A pool's processes would outlive a parent that was killed, and keep its runs locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(143)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if not torch.cuda.is_available():
        return []
    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return named.split(",")[:count] if named else [str(number) for number in range(count)]
