"""Many images, decoded by worker processes, in batches of a given composition."""
from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from .images import BadImageError

ORPHANED = 2.0  # seconds after which a worker notices that its main process has gone


class Pictures(Protocol):
    """What a loader needs of a data set."""

    def read_image(self, datum: Any) -> Image.Image:
        """The RGB picture behind a datum."""


class Maker(Protocol):
    """What a worker makes of a picture, given its place in the split: views, or what they are made from."""

    def __call__(self, image: Image.Image, index: int) -> Any: ...


@dataclass
class ViewBatch:
    """What was made of the images that could be read, and the complaints about those that could not."""

    index: list[int]  # places in the split
    made: list  # by the maker, one an image
    bad: dict[int, str]  # place in the split -> what is wrong

    @property
    def views(self) -> Tensor:
        """Of a maker of views: (B, V, 3, H, W)."""
        return torch.stack(self.made)

    def pin_memory(self) -> ViewBatch:
        """Called by the loader when the images go to a GPU: pinned memory is copied without blocking."""
        return ViewBatch(self.index, [one.pin_memory() for one in self.made], self.bad)


class ViewSet(TorchDataset):
    """What is made of an image, by its place in the split; each image is decoded once."""

    def __init__(self, dataset: Pictures, items: Sequence, maker: Maker) -> None:
        self.dataset, self.items, self.maker = dataset, items, maker

    def __getitem__(self, index: int) -> tuple[int, Any, str | None]:
        try:
            return index, self.maker(self.dataset.read_image(self.items[index]), index), None
        except BadImageError as error:
            return index, None, str(error)  # exceptions lose their type on the way out of a worker


def collate(samples: list[tuple[int, Any, str | None]]) -> ViewBatch:
    good = [(index, made) for index, made, reason in samples if reason is None]
    bad = {index: reason for index, _, reason in samples if reason is not None}
    return ViewBatch([index for index, _ in good], [made for _, made in good], bad)


def worker_count(setting: int) -> int:
    """DATALOADER.NUM_WORKERS; −1, which is auto, stands for the cores that this process may use, shared among the ranks
    on this machine."""
    if setting >= 0:
        return setting
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def view_loader(
    dataset: Pictures, items: Sequence, maker: Maker, batches: Sequence[Sequence[int]], workers: int,
    pin_memory: bool,
) -> Iterator[ViewBatch]:
    """A ViewBatch for each of `batches` (lists of places in `items`), in their order."""
    loader = DataLoader(
        ViewSet(dataset, items, maker), batch_sampler=batches, num_workers=min(worker_count(workers), len(batches)),
        collate_fn=collate, pin_memory=pin_memory, worker_init_fn=begin_work,
    )
    return noticing_lost_workers(loader) if loader.num_workers else iter(loader)


def begin_work(_: int) -> None:
    """In a worker, before anything else."""
    end_quietly()
    end_with_parent()


def end_with_parent() -> None:
    """Ends a worker whose main process was killed. torch looks for that only between batches: a worker that hands one
    over waits for room in the pipe, of which it has both ends, for ever, and keeps the terminal and its memory."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHANED)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_quietly() -> None:
    """In a worker: if the main process is interrupted while it receives a batch, the thread that hands the batch over
    meets a broken connection, and would print a traceback beside the line that the user is to read."""
    show = sys.excepthook
    sys.excepthook = lambda kind, *rest: None if issubclass(kind, (EOFError, ConnectionError)) else show(kind, *rest)


def noticing_lost_workers(loader: Iterable[ViewBatch]) -> Iterator[ViewBatch]:
    """torch tells when a worker was killed, unless it was in the middle of handing over a batch, which looks like a
    broken connection. What a worker itself raises says where it was caught."""
    try:
        with Deaths.told():
            batches = iter(loader)
        while True:
            with Deaths.told():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch
    except (OSError, EOFError) as error:
        if "in DataLoader worker process" in str(error):
            raise
        raise RuntimeError("DataLoader worker (pid unknown) was lost") from error


class Deaths:
    """Of workers, heard of only while somebody waits for them. torch's handler of SIGCHLD raises wherever the program
    happens to be: in the middle of closing a file, or of a later run."""

    report: Any = None  # torch's handler, which it installs at the first loader of a process

    @classmethod
    @contextmanager
    def told(cls) -> Iterator[None]:
        before = signal.getsignal(signal.SIGCHLD)
        if before is None or threading.current_thread() is not threading.main_thread():
            yield  # somebody's who is not Python; and other threads may set no handler, nor does torch there
            return
        try:
            if cls.report:
                signal.signal(signal.SIGCHLD, cls.report)
                cls.report(signal.SIGCHLD, None)  # of those that have died since
            yield
        finally:
            after = signal.getsignal(signal.SIGCHLD)
            if after is not before and callable(after):
                cls.report = after
            signal.signal(signal.SIGCHLD, before)


num_threads = worker_count


def load_batches(dataset, items, make, batches, threads, ahead=0):
    """Placeholder until the pool of threads is merged."""
    for batch in batches:
        yield collate([ViewSet(dataset, items, make)[index] for index in batch])


@dataclass
class LoadedBatch:
    index: list
    made: list
    bad: dict
