"""Time and memory, measured so that what else runs on the machine distorts comparisons as little as possible.

Time is the processor's, of this process and of the workers that it has ended: what runs beside takes none of it. With
one thread, as everything is measured here, it is what a clock shows on a quiet machine.
"""
from __future__ import annotations

import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from ...trainers.runs.environment import environment

Task = Callable[[], object]
T = TypeVar("T")

AT_LEAST = 0.3  # seconds that a task is repeated for in its turn


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def processor_seconds() -> float:
    """What the processor has spent on this process, and on its children that have ended."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


def interleaved(tasks: Mapping[str, Task], rounds: int) -> dict[str, float]:
    """Median processor seconds of each task. The tasks take turns, so that a change of the machine's pace meets all of
    them; in its turn a quick task repeats until AT_LEAST seconds have passed."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            passed = 0.0
            while passed < AT_LEAST:
                started = processor_seconds()
                task()
                seconds[name].append(processor_seconds() - started)
                passed += seconds[name][-1]
    return {name: median(runs) for name, runs in seconds.items()}


def in_fresh_process(job: Callable[..., T], *args: object) -> T | None:
    """What `job` returns, done by a process that has done nothing else; None if the system ends it for want of memory.
    The job must be a function of some module, so that the process finds it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(with_one_thread, job, args).result()
        except BrokenProcessPool:
            return None


def with_one_thread(job: Callable[..., T], args: tuple) -> T:
    with one_thread():
        return job(*args)


def extra_memory(task: Task) -> int | None:
    """The most bytes that this process holds while it does `task`, beyond those it held before; None where the system
    does not tell."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed before goes back to the system, or it would hide what is new
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    except OSError:
        return None
    before = memory_fact("/proc/self/status", "VmRSS")
    task()
    peak = memory_fact("/proc/self/status", "VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def available_memory() -> int:
    """Bytes that can be used without swapping; as good as endless where the system does not tell."""
    return memory_fact("/proc/meminfo", "MemAvailable") or 1 << 60


def memory_fact(file: str, name: str) -> int | None:
    """A line `Name:  123 kB` of one of Linux's own reports, in bytes."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def machine() -> dict:
    """What the figures were measured on."""
    total = memory_fact("/proc/meminfo", "MemTotal")
    return {
        **environment(torch.device("cpu")),
        "processor": processor(), "cores": os.cpu_count(), "memory_gb": round(total / 1e9) if total else None,
        "system": platform.platform(), "load": load(),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def load() -> float | None:
    """Processes that wanted to run during the last minute, where the system tells."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
