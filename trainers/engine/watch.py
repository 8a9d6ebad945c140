"""When work on a device is done, and how long it took, without waiting for it.

A GPU works behind the host's back. Results stay there until they are done, and meanwhile the host hands over the next
batches, a bounded number of them: else the views of a whole part would pile up in the GPU's memory.
"""
from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

AHEAD = 2  # batches that may wait for the device, besides the one that it works on


class Watch(Protocol):
    """Marks moments in the work of a device."""

    def mark(self) -> Any:
        """The moment at which all work so far is done."""

    def is_done(self, mark: Any) -> bool:
        """Whether that moment has come."""

    def wait(self, mark: Any) -> None:
        """Returns when it has."""

    def seconds(self, start: Any, end: Any) -> float:
        """Between two moments that have come."""


class HostWatch:
    """For a CPU, where a call returns when its work is done."""

    def mark(self) -> float:
        return time.perf_counter()

    def is_done(self, mark: float) -> bool:
        return True

    def wait(self, mark: float) -> None:
        pass

    def seconds(self, start: float, end: float) -> float:
        return end - start


class StreamWatch:
    """For the CUDA stream that the model runs on."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def is_done(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def wait(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) / 1000


def watch_of(device: torch.device) -> Watch:
    return StreamWatch(device) if device.type == "cuda" else HostWatch()


@dataclass(frozen=True)
class Pending:
    """A batch's columns on their way to the host."""

    columns: Mapping[str, Tensor]  # copies that are whole when `end` has come
    watch: Watch
    start: Any
    end: Any

    @classmethod
    def copy(cls, columns: Mapping[str, Tensor], watch: Watch, start: Any) -> Pending:
        """Begins to copy; `start` is when the work on the batch began."""
        copies = {name: column.to("cpu", non_blocking=True) for name, column in columns.items()}
        return cls(copies, watch, start, watch.mark())

    @property
    def is_done(self) -> bool:
        return self.watch.is_done(self.end)

    def arrays(self) -> tuple[dict[str, np.ndarray], float]:
        """The columns, and the seconds of work, once both are there."""
        self.watch.wait(self.end)
        return {name: column.numpy() for name, column in self.columns.items()}, self.watch.seconds(self.start, self.end)
