"""The same numbers wherever and however a run is started, on all cores.

Torch's own threads share one sum, so its last bits follow from their number; and that differs between `python`, which
takes all cores, `torchrun`, which gives each process one, and the machine on which a run is continued. Here torch
computes with one thread, and whole pieces, whose sizes do not depend on the number of cores, go to different cores.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


class Caller:
    """How torch was set before the first run or call that is inside now, perhaps in another thread, and how many are.
    The last one puts it back."""

    lock = threading.Lock()
    inside = 0
    threads = 1
    dtype = torch.float32


working = threading.local()  # `.piece` is set in threads that compute a piece


@contextmanager
def fixed_numerics() -> Iterator[None]:
    """Around all that predictions follow from: one torch thread, fp32 as the type of new numbers, no autocast but our
    own, gradients that can be taken. What a caller has set otherwise is as before afterwards."""
    with Caller.lock:
        if not Caller.inside:
            Caller.threads, Caller.dtype = torch.get_num_threads(), torch.get_default_dtype()
        Caller.inside += 1
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            for device in ("cpu", "cuda"):
                if torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        with Caller.lock:
            Caller.inside -= 1
            if not Caller.inside:
                torch.set_num_threads(Caller.threads)
                torch.set_default_dtype(Caller.dtype)


def in_parallel(function: Callable[[S], T], pieces: Sequence[S], device: torch.device) -> list[T]:
    """`function` of each piece, on a CPU with as many cores as torch would have used. A GPU, a single piece of a larger
    one, and whoever has not fixed the numerics have torch alone."""
    cores = min(Caller.threads, len(pieces))
    if cores < 2 or device.type != "cpu" or not Caller.inside or getattr(working, "piece", False):
        return [function(piece) for piece in pieces]
    pool = ThreadPoolExecutor(cores, initializer=begin_work)
    try:
        return list(pool.map(function, pieces))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C or out of memory, the rest is not computed


def begin_work() -> None:
    """Of each thread: the number of torch's threads is one thread's own affair."""
    working.piece = True
    torch.set_num_threads(1)


@contextmanager
def worker_thread() -> Iterator[None]:
    """In a thread that processes whole images: one torch thread, and no pool inside the pool."""
    torch.set_num_threads(1)
    before = getattr(working, "piece", False)
    working.piece = True
    try:
        yield
    finally:
        working.piece = before
