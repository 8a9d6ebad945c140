"""CPU time and peak memory of Python code, and the machine they are measured on.

CPU time hardly depends on what other programs do. With one thread it is what a clock shows on an idle machine.
"""
from __future__ import annotations

import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from promptcal.trainers.runs.environment import environment

T = TypeVar("T")
K = TypeVar("K")
Task = Callable[[], object]
MIN_SECONDS = 0.3  # a quick task repeats for at least this long per round


def interleaved(tasks: Mapping[K, Task], rounds: int, clock: Callable = time.process_time) -> dict[K, float]:
    """Median seconds of each task. The tasks take turns, so that a change of the clock rate affects all of them."""
    seconds: dict[K, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            spent = 0.0
            while spent < MIN_SECONDS:
                started = clock()
                task()
                seconds[name].append(clock() - started)
                spent += seconds[name][-1]
    return {name: median(runs) for name, runs in seconds.items()}


def in_fresh_process(job: Callable[..., T], *args: object) -> T | None:
    """The result of `job`, a function of a module, in a new process; None if the system kills it to free memory."""
    with ProcessPoolExecutor(1, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        try:
            return pool.submit(job, *args).result()
        except BrokenProcessPool:
            return None


def extra_memory(task: Task) -> int | None:
    """Peak memory of `task` in bytes beyond what this process held before; None where the system does not report it."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # return freed memory to the system, or it would hide new allocations
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # reset the peak
    except OSError:
        return None
    before = memory_field("/proc/self/status", "VmRSS")
    task()
    peak = memory_field("/proc/self/status", "VmHWM")
    return None if before is None or peak is None else max(0, peak - before)


def memory_field(file: str, name: str) -> int | None:
    """A line `Name:  123 kB` of a file in /proc, in bytes."""
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def machine() -> dict:
    """Processor, cores that this process may use, running processes in the last minute, and package versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"processor": processor(), "cores": cores, "load": load(),
            "versions": environment(torch.device("cpu"))["versions"]}


def load() -> float | None:
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None


def processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
