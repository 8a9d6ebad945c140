"""Connects the processes of a distributed run: rank, broadcast and barrier."""
from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from ...datasets.utils.errors import UserError

T = TypeVar("T")


class Distributed:
    """Rank and number of processes as torchrun or srun set them; otherwise a single process."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", 0))  # number of this process, from 0
        self.world = int(os.environ.get("WORLD_SIZE", 1))  # number of processes
        self.is_main = self.rank == 0  # the one that writes shared files, logs and measures
        if self.world > 1 and not dist.is_initialized():
            choose_gpu(int(os.environ.get("LOCAL_RANK", 0)))
            # Messages are Python objects on the host, for which gloo is enough: no GPU takes part.
            # Processes finish hours apart, so the last barrier must wait longer than torch does by
            # default.
            dist.init_process_group("gloo", timeout=timedelta(days=7))
            atexit.register(dist.destroy_process_group)

    def broadcast(self, value: T) -> T:
        """Returns the main process's value in all processes.

        A fact on which all must agree, such as whether a file exists, is decided by the main
        process alone. On a network disk others may see the file later, and processes that decide
        differently would wait for each other forever.

        Args:
            value: The value. Only the main process's is used; it must be picklable.
        """
        box = [value]  # torch replaces the items of a list
        if self.world > 1:
            with explained():
                dist.broadcast_object_list(box, src=0)
        self.barrier()  # the main process stays until all have it
        return box[0]

    def barrier(self) -> None:
        """Waits for all processes."""
        if self.world > 1:
            with explained():
                dist.barrier()


def choose_gpu(local_rank: int) -> None:
    """Gives each process of a machine its own GPU under the name `cuda`, where there are several.

    Args:
        local_rank: Number of the process on its machine, from 0. With more processes than GPUs,
            several share one.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())


@contextmanager
def explained() -> Iterator[None]:
    """Turns the error about a lost connection to another process into a UserError."""
    try:
        yield
    except RuntimeError as error:
        raise UserError("another process of the run ended; finished parts are kept: run the "
                        "command again") from error
