"""CPU time of Python code, and the machine it is measured on.

CPU time hardly depends on what other programs do. With one thread it is what a clock shows on an idle machine.
"""
from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from promptcal.trainers.runs.environment import environment

K = TypeVar("K")
MIN_SECONDS = 0.3  # a quick task repeats for at least this long per round


def interleaved(tasks: Mapping[K, Callable], rounds: int, clock: Callable = time.process_time) -> dict[K, float]:
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


def machine() -> dict:
    """Processor, cores that this process may use, running processes in the last minute, and package versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"processor": processor(), "cores": cores, "load": load,
            "versions": environment(torch.device("cpu"))["versions"]}


def processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
