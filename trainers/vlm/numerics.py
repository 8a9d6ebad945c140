"""How the towers compute: their precision, the same numbers on any number of cores, and less when memory runs out.

Torch's own threads share one sum, so its last bits depend on their number, which differs between `python` (all cores),
`torchrun` (one per process) and the machine on which a run is continued. Here torch computes with one thread, and whole
pieces, whose sizes do not depend on the number of cores, run on different cores.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch

from ...datasets.utils.errors import out_of_memory

logger = logging.getLogger(__name__)

# Of the two towers; losses, logits and the optimizer are always fp32.
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

S = TypeVar("S")
T = TypeVar("T")


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is fp32 on CPU and fp16 autocast on CUDA."""
    default = "fp16" if device.type == "cuda" else "fp32"
    return default if name == "auto" else name


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    return nullcontext() if precision == "fp32" else torch.autocast(device.type, dtype=DTYPES[precision])


class Caller:
    """Torch's settings outside of all active `fixed_numerics`, and how many are active. Torch's number of threads and
    default type belong to the process, so this must too."""

    lock = threading.Lock()
    active = 0
    threads = 1
    dtype = torch.float32


worker = threading.local()  # `active` in a thread that computes a piece of `in_parallel`


@contextmanager
def fixed_numerics() -> Iterator[None]:
    """Around all that determines predictions: one torch thread, fp32 as default type, no autocast of the caller's, no
    inference mode. The caller's settings are restored afterwards."""
    with Caller.lock:
        if not Caller.active:
            Caller.threads, Caller.dtype = torch.get_num_threads(), torch.get_default_dtype()
        Caller.active += 1
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
    enabled = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    try:
        with torch.inference_mode(False), ExitStack() as stack:
            for device in enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        with Caller.lock:
            Caller.active -= 1
            if not Caller.active:
                torch.set_num_threads(Caller.threads)
                torch.set_default_dtype(Caller.dtype)


def in_parallel(function: Callable[[S], T], pieces: Sequence[S], device: torch.device) -> list[T]:
    """`function` of each piece, on a CPU with as many threads as torch would have used. On a GPU, within a piece, and
    outside `fixed_numerics`, one piece after the other."""
    cores = min(Caller.threads, len(pieces))
    if cores < 2 or device.type != "cpu" or not Caller.active or getattr(worker, "active", False):
        return list(map(function, pieces))
    pool = ThreadPoolExecutor(cores, initializer=start_worker)
    try:
        return list(pool.map(function, pieces))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C or out of memory, the rest is not computed


def start_worker() -> None:
    worker.active = True
    torch.set_num_threads(1)  # torch keeps this number per thread


@contextmanager
def worker_thread() -> Iterator[None]:
    """In a thread that processes whole images: one torch thread, and no pool inside the pool."""
    before = getattr(worker, "active", False)
    start_worker()
    try:
        yield
    finally:
        worker.active = before


def retry_on_oom(run: Callable[[], T], shrink: Callable[[], str]) -> T:
    """The result of `run`. Each time that memory runs out, `shrink` makes the next attempt smaller and returns its size
    in words, or raises a UserError if nothing is left to shrink."""
    while True:
        try:
            return run()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside the except clause, where the exception and the memory that it held are gone.
        logger.warning("out of memory: %s at once from here on", shrink())
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # returns freed blocks to the driver, so that smaller ones fit
