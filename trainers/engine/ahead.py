"""Views are made while the model works on those before: the GPU never waits for the host, nor memory for the GPU.

A thread makes them on a stream of its own, a bounded number ahead. On a CPU there is nothing to overlap: its cores are
busy with whole images anyway (see `vlm.cores`).
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from queue import Empty, Full, Queue
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

S = TypeVar("S")
DEPTH = 2  # pieces of work that may wait, each of up to 256 views
PATIENCE = 0.1  # seconds after which a waiting side looks whether the other is still there


class Side(Protocol):
    """Where work is done ahead, and how what it made is handed over."""

    def working(self) -> AbstractContextManager:
        """Around the work."""

    def finished(self) -> Any:
        """Called after a piece of work: a mark of the moment."""

    def take(self, views: Tensor, mark: Any) -> Tensor:
        """The views for whoever goes on with them, from that moment on."""


class SideStream:
    """A CUDA stream beside the one that the model runs on."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device)

    def working(self) -> AbstractContextManager:
        return torch.cuda.stream(self.stream)

    def finished(self) -> torch.cuda.Event:
        return self.stream.record_event()

    def take(self, views: Tensor, mark: torch.cuda.Event) -> Tensor:
        current = torch.cuda.current_stream(self.device)
        current.wait_event(mark)
        views.record_stream(current)  # its memory is not given away before the model is done with it
        return views


def made_ahead(jobs: Iterable[S], make: Callable[[S], Tensor], side: Side) -> Iterator[tuple[S, Tensor]]:
    """Each job with what `make` makes of it, in order, up to DEPTH ahead of whoever asks. What the thread raises is
    raised here; who stops asking stops the thread."""
    done: Queue = Queue(DEPTH)
    stop = threading.Event()

    def put(result: tuple) -> bool:
        while not stop.is_set():
            try:
                done.put(result, timeout=PATIENCE)
                return True
            except Full:
                continue
        return False

    def work() -> None:
        try:
            with side.working(), torch.no_grad():
                for job in jobs:
                    views = make(job)
                    if not put((job, views, side.finished())):
                        return
            put(())
        except BaseException as error:
            put((error,))

    thread = threading.Thread(target=work, name="views ahead", daemon=True)
    thread.start()
    try:
        while result := next_of(done, thread):
            if len(result) == 1:
                raise result[0]
            job, views, mark = result
            yield job, side.take(views, mark)
    finally:
        stop.set()
        thread.join()


def next_of(done: Queue, thread: threading.Thread) -> tuple:
    while True:
        try:
            return done.get(timeout=PATIENCE)
        except Empty:
            if not thread.is_alive() and done.empty():
                raise RuntimeError("the thread that makes views has ended without a word") from None
