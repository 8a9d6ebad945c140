"""Many cores without another rounding: torch computes with one thread, and whole pieces go to different cores.

Torch's own threads share one sum, so its last bits follow from their number; and that differs between `python`, which
takes all cores, `torchrun`, which gives each process one, and the machine on which a run is continued. Pieces whose
sizes do not depend on the number of cores, each computed by one thread, come out the same everywhere.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


class Cores:
    """What the shell gave this process, while torch uses one thread of it."""

    lock = threading.Lock()
    users = 0  # runs and calls that are inside, perhaps in different threads
    given = 1  # threads that torch had before the first of them came


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Around all that predictions follow from."""
    with Cores.lock:
        if not Cores.users:
            Cores.given = torch.get_num_threads()
        Cores.users += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with Cores.lock:
            Cores.users -= 1
            if not Cores.users:
                torch.set_num_threads(Cores.given)


def in_parallel(function: Callable[[S], T], pieces: Sequence[S]) -> list[T]:
    """`function` of each piece, on as many cores as torch would have used; outside `one_torch_thread` it uses them all
    by itself."""
    cores = min(Cores.given if Cores.users else 1, len(pieces))
    if cores < 2:
        return [function(piece) for piece in pieces]
    pool = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
    try:
        return list(pool.map(function, pieces))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C or out of memory, the rest is not computed
