"""Computes what is not finished: group by group, or in several processes (`--jobs`)."""
from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue

import torch
from tqdm import tqdm

from ...datasets.utils.cli import LOGGER, ending_signals, load_plugins
from ...datasets.utils.errors import UserError
from ...datasets.utils.progress import PlainProgress, progress_bar
from ..coop import trained_prompt
from ..registry import build_trainer
from ..report.tensorboard_figures import write_tensorboard_figures
from .planned_run import PlannedRun, WorkGroup

logger = logging.getLogger(__name__)

REFRESH = 2.0  # seconds between updates of the progress bar
GRACE = 10.0  # seconds that a process without a parent has to close its files
DIED = "its process died (killed, or out of memory); the same command continues"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# Held while the environment of this process is that of a worker that is being started.
ENVIRONMENT = threading.Lock()


def run_group(group: WorkGroup) -> dict[PlannedRun, str]:
    """Computes the unfinished runs of a group, in any process.

    Returns:
        The runs that failed, with the reason. They do not stop the others.
    """
    load_plugins()  # of the command, by its environment
    failed: dict[PlannedRun, str] = {}
    for run in group:
        if run.prompt and run.prompt in failed:
            failed[run] = "the prompt that it starts from could not be learnt"
            continue
        reason = run.refusal
        if run.is_left:
            reason = compute(run)
        if reason:
            failed[run] = reason
            logger.error("FAILED %s: %s", run.described, reason)
    return failed


def compute(run: PlannedRun) -> str:
    """Computes a run. Returns "", or why it failed, in one line."""
    logger.info("%s", run.described)
    try:
        if run.trains_prompt:
            trained_prompt(run.cfg, starts_again(run))
            return ""
        if run.prompt:
            trained_prompt(run.prompt.cfg)  # trains it if its checkpoint was removed
        build_trainer(run.settings).run(overwrite=starts_again(run))
        write_tensorboard_figures(run.folder)
    except Exception as error:  # a run that fails must not stop the others
        reason = " ".join(str(error).split())
        if isinstance(error, UserError):
            return reason
        logger.error("%s", run.described, exc_info=error)
        last_frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last_frame.filename).name}, line {last_frame.lineno}"
        return f"{type(error).__name__}: {reason} ({where})"
    return ""


def starts_again(run: PlannedRun) -> bool:
    """Whether a run removes what its folder holds: only another run, and only with --overwrite."""
    return run.overwrite and bool(run.state.conflict)


def run_groups(groups: Sequence[WorkGroup], jobs: int = 1) -> dict[PlannedRun, str]:
    """Computes all groups.

    Args:
        groups: Each group is computed by one process.
        jobs: How many groups are computed at a time. Several have a process each.

    Returns:
        The runs that failed, with the reason.
    """
    total = sum(len(group) for group in groups)
    with progress_bar(total, "runs", "run", shown=total > 0) as bar:
        if jobs > 1:
            return run_parallel(groups, jobs, bar)
        failed = {}
        for group in groups:
            failed.update(run_group(group))
            bar.update(len(group))
        return failed


def run_parallel(
    groups: Sequence[WorkGroup], jobs: int, bar: tqdm | PlainProgress
) -> dict[PlannedRun, str]:
    """Computes the largest groups first. Each has a process, so that a crash affects no other.

    Returns:
        Why a run failed, by run; {} if none did.
    """
    # Read once, here: while a worker is started the variable holds the GPU of that worker.
    gpus = visible_gpus()
    slots: SimpleQueue[str] = SimpleQueue()
    for slot in range(jobs):
        gpu = ""
        if gpus:
            gpu = gpus[slot % len(gpus)]
        slots.put(gpu)

    largest_first = sorted(groups, key=number_of_images, reverse=True)
    with ThreadPoolExecutor(jobs) as threads:  # each waits for one process at a time
        futures = {}
        for group in largest_first:
            futures[threads.submit(run_in_process, group, slots, jobs)] = group
        try:
            while wait(futures, REFRESH).not_done:
                bar.update(number_done(futures) - bar.n)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            end_workers(list(futures))
            raise
    bar.update(number_done(futures) - bar.n)
    failed = {}
    for future in futures:
        failed.update(future.result())
    return failed


def number_of_images(group: WorkGroup) -> int:
    """Images that a group predicts, all runs together."""
    return sum(run.size[0] for run in group)


def number_done(futures: dict[Future, WorkGroup]) -> int:
    """Runs that are finished or have failed."""
    number = 0
    for future, group in futures.items():
        if future.done():
            number += len(group)
        elif future.running():
            number += sum(run.finished for run in group)
    return number


def end_workers(futures: Sequence[Future]) -> None:
    """Ends all processes and waits for them. The runs in them close their files first."""
    ended: set[BaseProcess] = set()
    while any(future.running() for future in futures):
        for process in set(multiprocessing.active_children()) - ended:
            process.terminate()
            ended.add(process)
        wait(futures, 0.1)


def run_in_process(group: WorkGroup, slots: SimpleQueue[str], jobs: int) -> dict[PlannedRun, str]:
    """Computes a group in a new process.

    Args:
        group: The runs.
        slots: One entry for each process that may run now: the GPU that it uses, or "".
        jobs: Processes that run at the same time.

    Returns:
        The runs that failed, with the reason.
    """
    if not any(run.is_left for run in group):
        return run_group(group)
    gpu = slots.get()
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(group, sender, jobs))
    start_on_gpu(process, gpu)
    sender.close()
    try:
        failed = receiver.recv()
    except EOFError:
        failed = {run: DIED for run in group if not run.finished}
    process.join()
    slots.put(gpu)
    for run, reason in failed.items():
        logger.error("FAILED %s: %s", run.described, reason)
    return failed


def start_on_gpu(process: BaseProcess, gpu: str) -> None:
    """Starts a process that sees one GPU only; "" for all that this process sees.

    CUDA reads the variable once, and some packages initialise CUDA while they are imported. A new
    process imports them before it calls its function, so it must inherit the variable.
    """
    with ENVIRONMENT, environment(VISIBLE_GPUS, gpu):
        process.start()


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Sets a variable of this process's environment for a while; "" leaves it as it is."""
    before = os.environ.get(name)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def work(group: WorkGroup, sender: Connection, jobs: int) -> None:
    """Computes a group in a worker process, and sends the result to the parent.

    The worker takes its share of the cores, writes nothing to the terminal, and ends when its
    parent ends.
    """
    # Ctrl-C reaches the parent too, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in ending_signals():
        signal.signal(number, lambda *_: sys.exit(143))
    os.environ["LOCAL_WORLD_SIZE"] = str(jobs)  # the automatic number of threads is per process
    # Bars of several processes would overwrite each other; each run has its log.txt.
    nowhere = Path(os.devnull).open("w")  # noqa: SIM115
    sys.stdout = nowhere
    sys.stderr = nowhere
    LOGGER.setLevel(logging.INFO)
    threading.Thread(target=end_with_parent, daemon=True).start()
    sender.send(run_group(group))


def end_with_parent() -> None:
    """Waits for the end of the parent, then ends this process.

    A worker would otherwise outlive a parent that was killed, and keep its run locked.
    """
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
    names = os.environ.get(VISIBLE_GPUS, "")
    if names:
        return [name.strip() for name in names.split(",")][:count]
    return [str(number) for number in range(count)]
