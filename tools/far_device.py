"""A second device on a machine without a GPU: `far`.

A far tensor holds a CPU tensor, reports the device `far:0`, and computes with the CPU's kernels.
Code that runs on it is code that would run on a GPU:

- An operation that mixes a far tensor with a CPU tensor fails, as on CUDA.
- Operations that would start a kernel, reads by the host, uploads to the device, and waits for it
  are counted in `Counts`, with the bytes that are in use at the same time.
- The numbers are real, so results can be compared with those of the CPU.

It cannot show time, streams, asynchronous errors, TF32 or the rounding of a GPU's kernels. One
operation may start several kernels, or share one with others. Memory is that of tensors; a GPU also
needs room for libraries, temporary buffers of kernels and fragmentation.

    from promptcal.tools import far_device
    far_device.register()
    model.to("far")

It uses torch's interface for new devices, which needs no compiler but is recent: `available()` says
whether this version of torch has it.
"""
from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import torch
from promptcal.trainers.vlm.numerics import DEVICE_TYPES
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map

NAME = "far"

# Operations that allocate memory and start no kernel.
ALLOCATIONS = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view",
}
# Operations whose result, or its shape, the host must know: it waits for the device.
WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "bincount",
    "_unique2", "unique_dim", "unique_consecutive", "repeat_interleave",
}
COPIES = {"copy_", "_copy_from", "_to_copy"}
# CUDA accepts indices on the CPU and uploads them.
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}

# Operations that make a tensor from nothing. Torch asks the device for them.
FACTORIES = (
    "empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step",
    "linspace", "eye", "eye.m", "full", "zeros", "ones", "triu_indices", "tril_indices", "randperm",
    "randn", "rand", "scalar_tensor",
)
# Autocast, as on CUDA: some operations run in half precision, some in fp32, and some in the widest
# type among their arguments.
IN_HALF = (
    "linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv2d", "scaled_dot_product_attention",
)
IN_FULL = (
    "exp", "log", "pow.Tensor_Scalar", "softmax.int", "log_softmax.int", "layer_norm", "logsumexp",
    "sum", "sum.dim_IntList", "norm.ScalarOpt_dim",
)
IN_WIDEST = ("cat", "stack")
AUTOCAST_KEY: Any = getattr(torch._C.DispatchKey, "AutocastPrivateUse1", None)
TOTAL_MEMORY = 24 << 30  # bytes that the device claims to have, as many GPUs do


class Counts:
    """What has happened on the device since `clear()`.

    Attributes:
        launches: Operations that would start a kernel, by name.
        reads: Operations that read from the device, for which the host waits, by name.
        uploads: Operations that copy from the host to the device, by name.
        waits: Calls of `synchronize`.
        bytes_in_use: Memory of the tensors that exist.
        peak_bytes: The most that was in use at the same time.
        storages: Number of far tensors by the address of the memory that they share.
    """

    launches: ClassVar[Counter[str]] = Counter()
    reads: ClassVar[Counter[str]] = Counter()
    uploads: ClassVar[Counter[str]] = Counter()
    waits = 0
    bytes_in_use = 0
    peak_bytes = 0
    storages: ClassVar[Counter[int]] = Counter()

    @classmethod
    def clear(cls) -> None:
        """Starts all counts again; memory stays in use."""
        cls.launches.clear()
        cls.reads.clear()
        cls.uploads.clear()
        cls.waits = 0
        cls.peak_bytes = cls.bytes_in_use

    @classmethod
    def hold(cls, tensor: FarTensor) -> None:
        """Counts the memory of a tensor until the last tensor that shares it is gone."""
        storage = tensor.numbers.untyped_storage()
        address = storage._cdata
        size = storage.nbytes()
        if not cls.storages[address]:
            cls.bytes_in_use += size
            cls.peak_bytes = max(cls.peak_bytes, cls.bytes_in_use)
        cls.storages[address] += 1
        weakref.finalize(tensor, cls.release, address, size)

    @classmethod
    def release(cls, address: int, size: int) -> None:
        """Subtracts the memory of a tensor that is gone, unless another tensor shares it."""
        cls.storages[address] -= 1
        if not cls.storages[address]:
            del cls.storages[address]
            cls.bytes_in_use -= size


class FarTensor(Tensor):
    """A tensor on the far device; `numbers` is the CPU tensor that it holds."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> FarTensor:
        tensor = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype,
            storage_offset=inner.storage_offset(), device=torch.device(NAME, 0))
        tensor.numbers = inner.detach()
        Counts.hold(tensor)
        return tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"FarTensor({self.numbers})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Files hold the numbers of a tensor, as of one on a GPU."""
        return self.cpu().__reduce_ex__(protocol)

    def tolist(self) -> list:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: Sequence = (), kwargs: Mapping | None = None,
    ) -> Any:
        return run_operation(operation, args, dict(kwargs or {}))


def run_operation(operation: Any, args: Sequence, kwargs: dict[str, Any]) -> Any:
    """Computes an operation that has a far tensor among its arguments, or makes one.

    Args:
        operation: An overload of torch, such as `aten.add.Tensor`.
        args: The positional arguments; tensors may be nested in lists.
        kwargs: The keyword arguments. `device` is replaced.

    Returns:
        What the operation returns, with far tensors unless it copies to the host.
    """
    name = operation.overloadpacket.__name__
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    far = [tensor for tensor in tensors if isinstance(tensor, FarTensor)]
    near = [tensor for tensor in tensors if not isinstance(tensor, FarTensor)]
    counter = counter_of(operation, name, near, args, kwargs)

    if torch.Tag.inplace_view in operation.tags:
        # It changes the shape of its argument, and so of the wrapper as well.
        with torch._C._DisableTorchDispatch():
            operation(*args, **kwargs)

    to_host = name == "_to_copy" and is_cpu(kwargs.get("device"))
    into_host = name == "copy_" and not isinstance(args[0], FarTensor)
    if "device" in kwargs:
        kwargs["device"] = "cpu"
        kwargs.pop("pin_memory", None)
    inner_args, inner_kwargs = tree_map(to_inner, (args, kwargs))
    result = operation(*inner_args, **inner_kwargs)

    if to_host and result is inner_args[0]:
        result = result.clone()
    if not to_host and not into_host:
        # An operation in place returns its argument, which has its wrapper already.
        wrappers = {id(tensor.numbers): tensor for tensor in far}
        result = tree_map(partial(to_far, wrappers=wrappers), result)
    for tensor in far:
        if tensor.shape != tensor.numbers.shape:
            raise RuntimeError(f"{operation} changes the shape of its argument")
    if counter is not None:
        counter[name] += 1
    return result


def to_inner(leaf: Any) -> Any:
    """The CPU tensor of a far one; everything else as it is."""
    if isinstance(leaf, FarTensor):
        return leaf.numbers
    return leaf


def to_far(leaf: Any, wrappers: Mapping[int, FarTensor]) -> Any:
    """The far tensor of a CPU one; everything else as it is."""
    if not isinstance(leaf, Tensor):
        return leaf
    if id(leaf) in wrappers:
        return wrappers[id(leaf)]
    return FarTensor(leaf)


def is_cpu(device: Any) -> bool:
    """Whether a `device` argument names the CPU; None does not."""
    return device is not None and torch.device(device).type == "cpu"


def counter_of(
    operation: Any, name: str, near: Sequence[Tensor], args: Sequence, kwargs: Mapping[str, Any],
) -> Counter[str] | None:
    """Where an operation is counted; None for views and plain allocations.

    Indices on the CPU, which CUDA uploads, are counted at once.

    Args:
        operation: An overload of torch.
        name: Name of the operator without that of the overload.
        near: The CPU tensors among its arguments.
        args: The positional arguments.
        kwargs: The keyword arguments.

    Raises:
        RuntimeError: The call mixes devices in a way that CUDA refuses.
    """
    if name in COPIES:
        return counter_of_copy(name, args, kwargs)
    if name not in INDEXING:
        check_devices(operation, name, near)
    elif near:
        Counts.uploads[name] += len(near)

    if name in WAITING and kwargs.get("output_size") is None:
        return Counts.reads
    if name in INDEXING:
        for index in args[1]:
            if isinstance(index, Tensor) and index.dtype == torch.bool:
                return Counts.reads  # a mask becomes indices, whose number the host must know
    for argument in operation._schema.arguments:
        if argument.alias_info is not None and not argument.alias_info.is_write:
            return None  # a view
    if name in ALLOCATIONS:
        return None
    return Counts.launches


def check_devices(operation: Any, name: str, near: Sequence[Tensor]) -> None:
    """Refuses CPU tensors among far ones. Pointwise operations may have single numbers, as on CUDA.
    """
    takes_numbers = torch.Tag.pointwise in operation.tags or name.startswith("_foreach")
    for tensor in near:
        if tensor.dim() > 0 or not takes_numbers:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found {NAME}:0 and cpu! "
                f"({operation} with a CPU tensor of shape {tuple(tensor.shape)})")


def counter_of_copy(name: str, args: Sequence, kwargs: Mapping[str, Any]) -> Counter[str]:
    """Where a copy is counted, which depends on its source and its target.

    Args:
        name: One of COPIES.
        args: The positional arguments. `_to_copy` begins with the source, the others with the
            target and the source.
        kwargs: The keyword arguments.
    """
    if name == "_to_copy":
        source = args[0]
        target = kwargs.get("device")  # None: it stays where it is
    else:
        source = args[1]
        target = args[0].device
    if is_cpu(target):
        return Counts.reads
    if isinstance(source, FarTensor):
        return Counts.launches
    return Counts.uploads


def overload(name: str) -> Any:
    """The operation of a name such as `sum` or `sum.dim_IntList`."""
    packet, _, kind = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), kind or "default")


def implementation(operation: Any) -> Callable:
    """What torch calls for an operation that makes a tensor on the device."""
    def call(*args: Any, **kwargs: Any) -> Any:
        return run_operation(operation, args, kwargs)
    return call


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """Copies numbers to the device. Torch calls it for `torch.tensor(..., device="far")`.

    Args:
        source: A CPU tensor.
        target: The far tensor that gets the numbers.
        non_blocking: Part of the interface; it has no effect.
    """
    run_operation(torch.ops.aten.copy_.default, (target, source), {})
    return target


def with_autocast(operation: Any, dtype_of: Callable[[list[Tensor]], torch.dtype]) -> Callable:
    """The operation with its floating-point arguments converted first.

    Args:
        operation: An overload of torch.
        dtype_of: Called with the tensors that are converted; returns the type that they get.
    """
    autocast = torch._C.DispatchKeySet(AUTOCAST_KEY)

    def is_converted(leaf: Any) -> bool:
        return (
            isinstance(leaf, FarTensor) and leaf.is_floating_point() and leaf.dtype != torch.double
        )

    def call(*args: Any, **kwargs: Any) -> Any:
        floats = [leaf for leaf in tree_flatten((args, kwargs))[0] if is_converted(leaf)]
        dtype = dtype_of(floats)

        def convert(leaf: Any) -> Any:
            if is_converted(leaf):
                return leaf.to(dtype)
            return leaf

        with torch._C._ExcludeDispatchKeyGuard(autocast):
            args, kwargs = tree_map(convert, (args, kwargs))
            return operation(*args, **kwargs)
    return call


def half_type(floats: list[Tensor]) -> torch.dtype:
    """The type that autocast was entered with, fp16 or bf16."""
    return torch.get_autocast_dtype(NAME)


def full_type(floats: list[Tensor]) -> torch.dtype:
    """fp32."""
    return torch.float32


def widest_type(floats: list[Tensor]) -> torch.dtype:
    """The widest type among the arguments."""
    dtypes = [tensor.dtype for tensor in floats]
    return max(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)


def available() -> bool:
    """Whether this version of torch can have such a device."""
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def is_registered() -> bool:
    """Whether `register` has been called."""
    return hasattr(torch, NAME)


libraries: list[Any] = []  # torch forgets what was registered when these are gone


def register() -> None:
    """Makes the device known to torch and to promptcal, once per process."""
    if is_registered():
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, device_module())
    aten = torch.library.Library("aten", "IMPL")
    for name in FACTORIES:
        aten.impl(name, implementation(overload(name)), "PrivateUse1")
    aten.impl("_copy_from", copy_from, "PrivateUse1")
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for names, dtype_of in ((IN_HALF, half_type), (IN_FULL, full_type), (IN_WIDEST, widest_type)):
        for name in names:
            aten.impl(name, with_autocast(overload(name), dtype_of), "AutocastPrivateUse1")
    libraries.extend((aten, others))
    # On CUDA, optimizers update lists of tensors at once.
    import_module("torch.optim.optimizer")._foreach_supported_types.append(FarTensor)
    DEVICE_TYPES.add(NAME)


class FarEvent:
    """A mark in the queue of work. It tells the device's time as the number of launches."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.launches = 0

    def record(self, stream: Any = None) -> None:
        self.launches = Counts.launches.total()

    def synchronize(self) -> None:
        Counts.waits += 1

    def elapsed_time(self, later: FarEvent) -> float:
        """Time until a later event in milliseconds, of which each launch takes one."""
        return float(later.launches - self.launches)


def device_module() -> Any:
    """What becomes `torch.far`, with the functions of `torch.cuda` that promptcal calls."""

    class Module(backend_registration._DummyBackendModule):  # type: ignore[name-defined]
        Event = FarEvent

        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.float16, torch.bfloat16]

        def synchronize(self, device: Any = None) -> None:
            Counts.waits += 1

        def max_memory_allocated(self, device: Any = None) -> int:
            return Counts.peak_bytes

        def reset_peak_memory_stats(self, device: Any = None) -> None:
            Counts.peak_bytes = Counts.bytes_in_use

        def get_device_name(self, device: Any = None) -> str:
            return "CPU tensors behind a device of their own"

        def empty_cache(self) -> None:
            pass

        def current_stream(self, device: Any = None) -> None:
            pass

        def mem_get_info(self, device: Any = None) -> tuple[int, int]:
            return TOTAL_MEMORY - Counts.bytes_in_use, TOTAL_MEMORY

    return Module()
