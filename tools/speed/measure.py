"""Time and memory, measured so that what else runs on the machine distorts comparisons as little as possible."""
from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

from ...trainers.runs.provenance import environment

Task = Callable[[], object]


def interleaved(
    tasks: Mapping[str, Task], rounds: int, at_least: float = 0.3, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each task. The tasks take turns, so that a change of the machine's pace meets all of them;
    in its turn a quick task repeats until `at_least` seconds have passed."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            passed = 0.0
            while passed < at_least:
                started = clock()
                task()
                seconds[name].append(clock() - started)
                passed += seconds[name][-1]
    return {name: median(runs) for name, runs in seconds.items()}


def peak_memory(job: Callable[..., object], *args: object) -> int | None:
    """The most bytes a fresh process holds while it does `job`; None if the system ends it for want of memory, or does
    not tell. The job must be a function of some module, so that the process finds it."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            return process.submit(peak_of, job, args).result()
        except BrokenProcessPool:
            return None


def peak_of(job: Callable[..., object], args: tuple) -> int | None:
    job(*args)
    # Not resource's ru_maxrss: of a process that was forked and then replaced, it begins at its parent's size.
    return memory_fact("/proc/self/status", "VmHWM")


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
