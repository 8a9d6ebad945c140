"""How the towers compute: device, precision, and the same numbers on any number of cores.

Torch's own threads share one sum, so its last bits depend on their number, which differs between
`python` (all cores), `torchrun` (one per process) and the machine on which a run is continued. Here
torch computes with one thread, and whole pieces, whose sizes do not depend on the number of cores,
run on different cores.
"""
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from yacs.config import CfgNode

from .device import DEVICE_TYPES, is_gpu, pick_device

ENGINE = 1  # raised whenever a change of the code changes predictions

# Images that are adapted at once with TTA.EPISODES auto. A GPU waits for the host to launch its
# operations, whose number does not depend on that of the images.
EPISODES_ON_CPU = 8
EPISODES_ON_GPU = 32

# Of the two towers; losses, logits and the optimizer are always fp32.
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Numerics:
    """What a run's numbers depend on besides data, model and method."""

    device: torch.device
    precision: str  # of the two towers: fp32, fp16 or bf16
    tf32: bool = False  # whether fp32 products on a GPU may round to TF32; `fixed_numerics` sets it
    engine: int = ENGINE  # raised whenever a change of the code changes predictions

    @classmethod
    def from_settings(cls, cfg: CfgNode) -> Numerics:
        device = pick_device(cfg.DEVICE)
        return cls(device, resolve_precision(cfg.MODEL.PREC, device))


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is fp32 on a CPU and fp16 autocast on a GPU."""
    if name != "auto":
        return name
    return "fp16" if is_gpu(device) else "fp32"


def warn_of_precision(precision: str) -> None:
    """bf16 keeps 8 bits of a number, too few for calibration."""
    if precision == "bf16":
        logger.warning(
            "MODEL.PREC bf16 has moved probabilities by up to 0.45 and mean confidence by up to 4 "
            "points: use fp16 or fp32 for calibration")


def resolve_episodes(setting: int, device: torch.device) -> int:
    """TTA.EPISODES as a number; 0 (auto) depends on the kind of device."""
    if setting:
        return setting
    return EPISODES_ON_GPU if is_gpu(device) else EPISODES_ON_CPU


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


@dataclass(frozen=True)
class TorchSettings:
    """Settings of torch that belong to the process and change numbers or what may be computed."""

    threads: int = 1
    dtype: torch.dtype = torch.float32
    matmul_precision: str = "highest"  # of fp32 products: no TF32 on a GPU, no bf16 on a CPU
    convolutions_in_tf32: bool = False
    # Anomaly detection looks at every gradient, which is not possible for many at once.
    anomaly_detection: bool = False
    anomaly_check_nan: bool = True

    @classmethod
    def current(cls) -> TorchSettings:
        return cls(
            threads=torch.get_num_threads(),
            dtype=torch.get_default_dtype(),
            matmul_precision=torch.get_float32_matmul_precision(),
            convolutions_in_tf32=torch.backends.cudnn.allow_tf32,
            anomaly_detection=torch.is_anomaly_enabled(),
            anomaly_check_nan=torch.is_anomaly_check_nan_enabled(),
        )

    def apply(self) -> None:
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.cudnn.allow_tf32 = self.convolutions_in_tf32
        torch.autograd.set_detect_anomaly(self.anomaly_detection, self.anomaly_check_nan)


FIXED = TorchSettings()


class Caller:
    """Torch's settings outside of all active `fixed_numerics`, and how many are active.

    The settings belong to the process, so this must too.
    """

    lock = threading.Lock()
    active = 0
    settings = FIXED


worker = threading.local()  # `active` in a thread that computes a piece of `in_parallel`


@contextmanager
def fixed_numerics() -> Iterator[None]:
    """Around all that determines predictions: torch's settings are FIXED, and there is no autocast
    and no inference mode of the caller's. The caller's settings are restored afterwards."""
    with Caller.lock:
        if not Caller.active:
            Caller.settings = TorchSettings.current()
        Caller.active += 1
        FIXED.apply()
    enabled = [device for device in DEVICE_TYPES if torch.is_autocast_enabled(device)]
    try:
        with torch.inference_mode(False), ExitStack() as stack:
            for device in enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        with Caller.lock:
            Caller.active -= 1
            if not Caller.active:
                Caller.settings.apply()


def in_parallel(function: Callable[[S], T], pieces: Sequence[S], device: torch.device) -> list[T]:
    """`function` of each piece, on a CPU with as many threads as torch would have used.

    On a GPU, within a piece, and outside `fixed_numerics`, one piece after the other.
    """
    cores = min(Caller.settings.threads, len(pieces))
    in_worker = getattr(worker, "active", False)
    if cores < 2 or is_gpu(device) or not Caller.active or in_worker:
        return list(map(function, pieces))
    pool = ThreadPoolExecutor(cores, initializer=start_worker)
    try:
        return list(pool.map(function, pieces))
    finally:
        # After Ctrl-C or out of memory, the rest is not computed
        pool.shutdown(cancel_futures=True)


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
