"""Reads and processes images in batches by a pool of threads."""
from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from PIL import Image

from .images import BadImageError

T = TypeVar("T")


@dataclass
class LoadedBatch(Generic[T]):
    """The results of `make` for the images of a batch."""

    # Positions in the split of the images that could be read
    index: list[int] = field(default_factory=list)
    made: list[T] = field(default_factory=list)  # result of `make` for each of them
    bad: dict[int, str] = field(default_factory=dict)  # position -> what is wrong with the image


def num_threads(setting: int) -> int:
    """Resolves DATALOADER.NUM_WORKERS: -1 (auto) is this process's share of the available cores."""
    if setting >= 0:
        return setting
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def load_batches(
    read: Callable[[int], Image.Image], make: Callable[[Image.Image, int], T],
    batches: Sequence[Sequence[int]], workers: int,
) -> Iterator[LoadedBatch[T]]:
    """Reads images and processes them in a pool of threads.

    What `make` raises is raised here. When the caller stops early, images that were not started are
    not processed.

    Args:
        read: A function from an image's position in the split to the image. A BadImageError is
            collected.
        make: A function of an image and its position, whose results are yielded.
        batches: Positions of the images of each batch, in the order in which they are wanted.
        workers: Number of threads of the pool, DATALOADER.NUM_WORKERS; -1 = as many as there are
            cores, 0 = everything runs in the calling thread.

    Yields:
        One `LoadedBatch` for each of `batches`.
    """
    def load(index: int) -> T | BadImageError:
        try:
            return make(read(index), index)
        except BadImageError as error:
            return error

    # The pool gets the images of all batches at once, so that it never waits between two of them.
    positions: list[int] = []
    for batch in batches:
        positions += batch
    threads = num_threads(workers)
    results: Iterator[T | BadImageError] = map(load, positions)
    if threads > 0:
        results = in_threads(load, positions, threads)
    for batch in batches:
        loaded: LoadedBatch[T] = LoadedBatch()
        for index in batch:
            result = next(results)
            if isinstance(result, BadImageError):
                loaded.bad[index] = str(result)
            else:
                loaded.index.append(index)
                loaded.made.append(result)
        yield loaded


def in_threads(function: Callable[[int], T], items: Sequence[int], threads: int) -> Iterator[T]:
    """Calls a function in threads, with at most two items per thread in flight.

    Args:
        function: A function of one item.
        items: The items, in the order of the results.
        threads: Number of threads, at least 1.

    Yields:
        The result of each item, in their order.
    """
    pool = ThreadPoolExecutor(threads, "views", single_torch_thread)
    waiting: deque[Future[T]] = deque()
    try:
        for item in items:
            # Two per thread: one in work and one that is ready for the caller, or waits. More would
            # only fill the memory.
            if len(waiting) == 2 * threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(function, item))
        while waiting:
            yield waiting.popleft().result()
    finally:  # also after Ctrl-C and when the caller stops early
        pool.shutdown(cancel_futures=True)


def single_torch_thread() -> None:
    """Makes torch compute with one thread in a thread of the pool.

    The number of torch's own threads is a setting of each thread.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
