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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue

import torch
from tqdm import tqdm

from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError
from ...datasets.utils.plugins import load_plugins
from ..config.fingerprint import run_path
from ..coop import trained_prompt
from ..registry import build_trainer, method_info
from ..report.tensorboard_figures import write_tensorboard_figures
from .plan import PlannedRun, WorkGroup, differs

logger = logging.getLogger(__name__)

REFRESH = 2.0  # seconds between updates of the progress bar
GRACE = 10.0  # seconds that a process without a parent has to close its files
DIED = "its process died (killed, or out of memory); the same command continues"


def run_group(group: WorkGroup) -> dict[PlannedRun, str]:
    """Computes the unfinished runs of a group, in any process. Returns those that failed, with the reason; they do not
    stop the others."""
    load_plugins()  # of the command, by its environment
    failed: dict[PlannedRun, str] = {}
    for run in group:
        if run.prompt and run.prompt in failed:
            failed[run] = "the prompt that it starts from could not be learnt"
        elif reason := differs(run) if run.finished else compute(run):
            failed[run] = reason
            logger.error("FAILED %s: %s", run.described, reason)
    return failed


def compute(run: PlannedRun) -> str:
    """Returns "", or why it failed, in one line."""
    logger.info("%s", run.described)
    try:
        cfg = run.cfg.clone()
        if run.prompt:
            cfg.defrost()
            cfg.MODEL.INIT_WEIGHTS = str(trained_prompt(run.prompt.cfg))
            cfg.freeze()
        if method_info(run.method).trained:
            trained_prompt(cfg)
        else:
            build_trainer(cfg).run()
            write_tensorboard_figures(run_path(cfg))
    except Exception as error:  # the other runs are still wanted
        reason = " ".join(str(error).split())
        if isinstance(error, UserError):
            return reason
        logger.error("%s", run.described, exc_info=error)
        at = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {reason} ({Path(at.filename).name}, line {at.lineno})"
    return ""


def run_groups(groups: Sequence[WorkGroup], jobs: int = 1) -> dict[PlannedRun, str]:
    """Computes all groups, `jobs` of them at a time, each in a process of its own if there are several. Returns the
    runs that failed, with the reason."""
    total = sum(len(group) for group in groups)
    with tqdm(total=total, desc="runs", unit="run", dynamic_ncols=True, disable=not total) as bar:
        if jobs > 1:
            return run_parallel(groups, jobs, bar)
        failed = {}
        for group in groups:
            failed.update(run_group(group))
            bar.update(len(group))
        return failed


def run_parallel(groups: Sequence[WorkGroup], jobs: int, bar: tqdm) -> dict[PlannedRun, str]:
    """The largest groups first. Each has a process of its own, so that a crash affects no other group."""
    slots: SimpleQueue[int] = SimpleQueue()
    for slot in range(jobs):
        slots.put(slot)
    groups = sorted(groups, key=lambda group: -sum(run.size[0] for run in group))
    with ThreadPoolExecutor(jobs) as threads:  # each waits for one process at a time
        futures = {threads.submit(run_in_process, group, slots, jobs): group for group in groups}
        try:
            while wait(futures, REFRESH).not_done:
                bar.n = sum(future.done() or (future.running() and run.finished)
                            for future, group in futures.items() for run in group)
                bar.refresh()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            ended: set[BaseProcess] = set()
            while any(future.running() for future in futures):
                for process in set(multiprocessing.active_children()) - ended:
                    process.terminate()  # the run in it closes its files first
                    ended.add(process)
                wait(futures, 0.1)
            raise
    bar.update(bar.total - bar.n)
    return {run: reason for future in futures for run, reason in future.result().items()}


def run_in_process(group: WorkGroup, slots: SimpleQueue[int], jobs: int) -> dict[PlannedRun, str]:
    """A group in a new process, with the GPU of a free slot."""
    if all(run.finished for run in group):
        return run_group(group)
    slot, gpus = slots.get(), visible_gpus() or [""]
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(group, sender, gpus[slot % len(gpus)], jobs))
    process.start()
    sender.close()
    try:
        failed = receiver.recv()
    except EOFError:
        failed = {run: DIED for run in group if not run.finished}
    process.join()
    slots.put(slot)
    for run, reason in failed.items():
        logger.error("FAILED %s: %s", run.described, reason)
    return failed


def work(group: WorkGroup, sender: Connection, gpu: str, jobs: int) -> None:
    """In the new process: one GPU, its share of the cores, no output, and an end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    os.environ["LOCAL_WORLD_SIZE"] = str(jobs)  # the automatic number of threads is per process
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  bars of several processes; see log.txt
    LOGGER.setLevel(logging.INFO)
    threading.Thread(target=end_with_parent, daemon=True).start()
    sender.send(run_group(group))


def end_with_parent() -> None:
    """A process would outlive a parent that was killed, and keep its run locked."""
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
