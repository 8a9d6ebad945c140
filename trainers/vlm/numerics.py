"""Sets how the towers compute: device, precision, and equal numbers on any number of cores.

Everything but a CPU is treated as a GPU, so that a test on any second device runs the same code.
What only CUDA has is in a function of its own here.

Torch's own threads share one sum, so its last bits depend on their number, which differs between
`python` (all cores), `torchrun` (one per process) and the machine on which a run is continued. Here
torch computes with one thread, and whole pieces, whose sizes do not depend on the number of cores,
run on different cores.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import ConfigError

ENGINE = 1  # raised whenever a change of the code changes predictions

# Images that are adapted at once with TTA.EPISODES auto. A GPU waits for the host to launch its
# operations, whose number does not depend on that of the images.
EPISODES_ON_CPU = 8
EPISODES_ON_GPU = 32

# Types of the two towers by name; losses, logits and the optimizer are always fp32.
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# Other devices of torch lack operations that the methods need, or were never tried.
DEVICE_TYPES = {"cpu", "cuda"}

# bf16 keeps 8 bits of a number, too few for calibration.
BF16_WARNING = ("MODEL.PREC bf16 has moved probabilities by up to 0.45 and mean confidence by up "
                "to 4 points: use fp16 or fp32 for calibration")

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Numerics:
    """Facts that a run's numbers depend on besides data, model and method."""

    device: torch.device
    precision: str  # precision of the two towers: fp32, fp16 or bf16
    device_name: str = ""  # the product name of a GPU
    episodes: int = EPISODES_ON_CPU  # images that are adapted at once
    tf32: bool = False  # whether fp32 products on a GPU may round to TF32; `fixed_numerics` sets it
    engine: int = ENGINE  # raised whenever a change of the code changes predictions

    @classmethod
    def from_settings(cls, cfg: CfgNode) -> Numerics:
        """Resolves the settings on this machine."""
        device = pick_device(cfg.DEVICE)
        return cls(
            device=device,
            precision=resolve_precision(cfg.MODEL.PREC, device),
            device_name=gpu_name(device),
            episodes=resolve_episodes(cfg.TTA.EPISODES, device),
        )


def resolve_precision(name: str, device: torch.device) -> str:
    """Resolves MODEL.PREC: `auto` is fp32 on a CPU and fp16 autocast on a GPU.

    Args:
        name: The value of MODEL.PREC.
        device: The device of the model.
    """
    if name != "auto":
        return name
    if is_gpu(device):
        return "fp16"
    return "fp32"


def resolve_episodes(setting: int, device: torch.device) -> int:
    """Resolves TTA.EPISODES: 0 (auto) depends on the kind of device.

    Args:
        setting: The value of TTA.EPISODES.
        device: The device of the model.
    """
    if setting:
        return setting
    if is_gpu(device):
        return EPISODES_ON_GPU
    return EPISODES_ON_CPU


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Returns the context in which a tower runs: torch's autocast, or none for fp32.

    Args:
        precision: Precision of the tower, a key of DTYPES.
        device: The device of the tower.
    """
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


@dataclass(frozen=True)
class TorchSettings:
    """Settings of torch that belong to the process and change numbers or what may be computed."""

    threads: int = 1
    dtype: torch.dtype = torch.float32
    matmul_precision: str = "highest"  # for fp32 products: no TF32 on a GPU, no bf16 on a CPU
    convolutions_in_tf32: bool = False
    # Anomaly detection looks at every gradient, which is not possible for many at once.
    anomaly_detection: bool = False
    anomaly_check_nan: bool = True

    @classmethod
    def current(cls) -> TorchSettings:
        """The settings as they are now."""
        return cls(
            threads=torch.get_num_threads(),
            dtype=torch.get_default_dtype(),
            matmul_precision=torch.get_float32_matmul_precision(),
            convolutions_in_tf32=torch.backends.cudnn.allow_tf32,
            anomaly_detection=torch.is_anomaly_enabled(),
            anomaly_check_nan=torch.is_anomaly_check_nan_enabled(),
        )

    def apply(self) -> None:
        """Makes them torch's settings."""
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
    """Pins torch's settings around all that determines predictions, so that runs agree to the bit.

    The settings are FIXED, and there is no autocast and no inference mode of the caller's. The
    caller's settings are restored afterwards.
    """
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
    """Calls a function for each piece, on a CPU with as many threads as torch would have used.

    On a GPU, within a piece, and outside `fixed_numerics`, pieces run one after the other.

    Args:
        function: A function of one piece. It must not depend on the order of the calls.
        pieces: The pieces.
        device: The device on which the function computes.

    Returns:
        The results in the order of the pieces.
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
    """Prepares a thread of the pool: it computes one piece, on one core."""
    worker.active = True
    torch.set_num_threads(1)  # torch keeps this number per thread


def pick_device(name: str = "auto") -> torch.device:
    """Returns the device of a name; `auto` is the GPU if there is one."""
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
    """Refuses a GPU that is named by number if several processes would all use it.

    Args:
        device: The device of each process.
        processes: Number of processes of the run.
    """
    if processes > 1 and is_gpu(device) and device.index is not None:
        raise ConfigError(f"DEVICE is {device} in each of {processes} processes: use DEVICE "
                          f"{device.type}, with which each process takes a GPU of its own")


def is_gpu(device: torch.device) -> bool:
    """Whether a device is not the CPU, so that it works behind the host."""
    return device.type != "cpu"


def synchronise(device: torch.device) -> None:
    """Waits until a GPU has done what was launched, so that a clock can be read."""
    if is_gpu(device):
        torch.get_device_module(device).synchronize(device)


def reset_peak_memory(device: torch.device) -> None:
    """Starts measuring the memory that tensors use; nothing on a CPU."""
    if is_gpu(device):
        torch.get_device_module(device).reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """The highest number of bytes of a GPU that tensors of this process have used at once since
    `reset_peak_memory`.
    """
    return int(torch.get_device_module(device).max_memory_allocated(device))


def total_memory(device: torch.device) -> int:
    """The number of bytes of a GPU, used or not."""
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
    """Moves a CPU tensor to memory from which CUDA copies without blocking.

    For other devices the tensor is returned as it is.

    Args:
        tensor: A tensor on the CPU.
        device: The device to which it will be copied.
    """
    if device.type == "cuda":
        return tensor.pin_memory()
    return tensor
