"""The device that towers run on.

Everything but a CPU is treated as a GPU, so that a test on any second device runs the same code.
What only CUDA has is in a function of its own here.
"""
from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from ...datasets.utils.errors import ConfigError

# Other devices of torch lack operations that the methods need, or were never tried.
DEVICE_TYPES = {"cpu", "cuda"}


def pick_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"DEVICE '{name}' is not known to torch: use auto, cpu or cuda") from error
    if device.type not in DEVICE_TYPES:
        raise ConfigError(f"DEVICE {name} is not supported: use auto, cpu or cuda")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            f"DEVICE is {name}, but torch finds {count} CUDA devices: use DEVICE cpu, or auto"
        )
    return device


def refuse_shared_gpu(device: torch.device, processes: int) -> None:
    """Refuses a GPU by its number for a run of several processes, which would all use it."""
    if processes > 1 and is_gpu(device) and device.index is not None:
        raise ConfigError(f"DEVICE is {device} in each of {processes} processes: use DEVICE "
                          f"{device.type}, with which each process takes a GPU of its own")


def is_gpu(device: torch.device) -> bool:
    return device.type != "cpu"


def synchronise(device: torch.device) -> None:
    """Waits until a GPU has done what was launched, so that a clock can be read."""
    if is_gpu(device):
        torch.get_device_module(device).synchronize(device)


class Stopwatch:
    """Measures how long a device works on what is launched between two moments.

    A GPU works behind the host, so the host's clock would charge a task with what was launched
    before it. Marks in the GPU's queue of work tell its own time, and nothing waits for them before
    the seconds are asked for.
    """

    def __init__(self, device: torch.device) -> None:
        """Starts."""
        self.device = device
        self.started = self.mark()
        self.stopped = self.started

    def mark(self) -> Any:
        if not is_gpu(self.device):
            return time.perf_counter()
        module = torch.get_device_module(self.device)
        event = module.Event(enable_timing=True)
        event.record(module.current_stream(self.device))
        return event

    def stop(self) -> None:
        self.stopped = self.mark()

    @property
    def seconds(self) -> float:
        """From start to stop. Waits until a GPU has got there."""
        if not is_gpu(self.device):
            return self.stopped - self.started
        self.stopped.synchronize()
        return self.started.elapsed_time(self.stopped) / 1000  # from milliseconds


def reset_peak_memory(device: torch.device) -> None:
    if is_gpu(device):
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that tensors of this process have used at once since `reset_peak_memory`.

    None on a CPU.
    """
    if not is_gpu(device):
        return None
    return int(torch.get_device_module(device).max_memory_allocated(device))


def total_memory(device: torch.device) -> int:
    """The bytes of a GPU, used or not."""
    _, total = torch.get_device_module(device).mem_get_info(device)
    return int(total)


def free_unused_memory() -> None:
    """Returns blocks that torch holds but does not use to CUDA, so that others fit."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def gpu_name(device: torch.device) -> str:
    """The product name of a GPU; "" for a CPU."""
    if not is_gpu(device):
        return ""
    return str(torch.get_device_module(device).get_device_name(device))


def pin(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor in memory from which CUDA copies without blocking; for other devices as it is.
    """
    if device.type == "cuda":
        return tensor.pin_memory()
    return tensor
