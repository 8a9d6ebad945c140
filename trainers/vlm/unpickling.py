"""Rebuilds what a pickle describes as data: no function of the file's choosing is ever called, and nothing it claims is
believed before it is there.

The pure-Python unpickler of the standard library is used, because the one in C cannot be kept from allocating what a
few bytes ask for (a memo of 2²⁸ places, a byte array of gigabytes) nor from hashing tuples that share each other. The
pickles of weight files are small, so its speed does not matter.
"""
from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

from ...datasets.utils.errors import WeightsError, one_line

LARGEST_PICKLE = 32 << 20  # bytes; the largest of OpenAI's files describes its tensors in a fifth of a megabyte
FREE = 64 << 20  # bytes of tensors that a file of any size may hold, as expanded or shared views of few numbers
SHARING = 4  # how many times over a file's tensors may show its numbers beyond that

STORAGE_DTYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}
REBUILDERS = {("torch._utils", "_rebuild_tensor"), ("torch._utils", "_rebuild_tensor_v2")}

ReadStorage = Callable[[torch.dtype, str, int], Tensor]  # (dtype, key, how many numbers) -> a flat tensor


class StandIn:
    """What a class or function named by the file becomes: takes whatever the pickle does to it, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.state: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        return StandIn()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass

    add = append


class Budget:
    """How many bytes of tensors a file of this size may still become."""

    def __init__(self, file_size: int) -> None:
        self.left = FREE + SHARING * file_size

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise WeightsError("its tensors claim far more numbers than the file holds")


class BoundedPickle:
    """A file for an unpickler: never asked for more than is there, nor for more than a description needs."""

    def __init__(self, file: BinaryIO, limit: int = LARGEST_PICKLE) -> None:
        self.file, self.left = file, limit

    def read(self, count: int) -> bytes:
        return self.counted(self.file.read(self.allowed(count)), count)

    def readline(self) -> bytes:
        return self.counted(self.file.readline(self.left + 1))

    def allowed(self, count: int) -> int:
        if count > self.left:
            raise WeightsError(f"it is cut short, or its description of tensors takes more than {LARGEST_PICKLE:,} "
                               f"bytes")
        return count

    def counted(self, data: bytes, expected: int = 0) -> bytes:
        if len(data) < expected:
            raise EOFError("it is cut short")
        self.left -= self.allowed(len(data))
        return data


def view(storage: Tensor, offset: Any, size: Any, stride: Any, budget: Budget) -> Tensor:
    """A tensor on a storage, after checking that it stays inside: a damaged file must not read beyond it."""
    numbers = [offset, *size, *stride]
    if len(size) != len(stride) or not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers):
        raise WeightsError("a tensor of the file has no proper shape")
    count, last = 1, offset
    for length, step in zip(size, stride, strict=True):
        count *= length
        last += (length - 1) * step
    if count and last >= storage.numel():
        raise WeightsError("a tensor of the file reaches beyond its data")
    budget.take(count * storage.element_size())
    return storage.as_strided(size, stride, offset)


class TensorUnpickler(pickle._Unpickler):
    """Rebuilds tensors and plain containers; every other name becomes a stand-in."""

    dispatch: ClassVar[dict[int, Callable]] = dict(pickle._Unpickler.dispatch)

    def __init__(
        self, file: BoundedPickle, read_storage: ReadStorage, budget: Budget, keep_views: bool = False,
    ) -> None:
        super().__init__(file, encoding="latin1")
        self.read_storage, self.budget = read_storage, budget
        self.keep_views = keep_views  # of storages that are filled afterwards

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in REBUILDERS:
            return self.rebuild
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda tensor, *_: tensor
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if (module, name) == ("torch", "Size"):
            return lambda sizes=(): tuple(sizes) if isinstance(sizes, list | tuple) else ()
        if (module, name) == ("collections", "OrderedDict"):
            return ordered
        if (module, name) == ("collections", "defaultdict"):
            return lambda *_: {}
        return type(one_line(name, 100) or "nameless", (StandIn,), {})

    def rebuild(self, storage: Tensor, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
        tensor = view(storage, offset, size, stride, self.budget)
        return tensor if self.keep_views else tensor.clone()

    def persistent_load(self, pid: Any) -> Tensor:
        """`("storage", dtype, key, device, count)`; files of 2017 may name a view of another one, which is not read."""
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], torch.dtype):
            raise WeightsError("the file refers to something that is not a tensor's data")
        if type(pid[2]) not in (str, int) or type(pid[4]) is not int or pid[4] < 0 or any(
                part is not None for part in pid[5:]):
            raise WeightsError("the file describes its tensors' data in an unknown way")
        return self.read_storage(pid[1], str(pid[2]), pid[4])

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        put(self.stack[-1], [(key, value)])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        put(self.stack[-1], zip(items[::2], items[1::2], strict=True))

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append(put({}, zip(items[::2], items[1::2], strict=True)))

    def load_additems(self) -> None:
        items = self.pop_mark()
        if isinstance(self.stack[-1], set):
            self.stack[-1].update(map(hashable, items))

    def load_frozenset(self) -> None:
        self.append(frozenset(map(hashable, self.pop_mark())))

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))

    def load_build(self) -> None:
        """State is kept with stand-ins, where TorchScript's modules have their tensors, and dropped elsewhere."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], StandIn):
            self.stack[-1].state = state

    dispatch |= {
        pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems, pickle.DICT[0]: load_dict,
        pickle.ADDITEMS[0]: load_additems, pickle.FROZENSET[0]: load_frozenset,
        pickle.BYTEARRAY8[0]: load_bytearray8, pickle.BUILD[0]: load_build,
    }


def ordered(items: Any = (), *_: Any) -> OrderedDict:
    return put(OrderedDict(), items if isinstance(items, list | tuple) else ())


def put(target: Any, items: Iterable[tuple[Any, Any]]) -> Any:
    if not isinstance(target, dict | StandIn):
        raise WeightsError("the file stores items in something that holds none")
    for key, value in items:
        target[hashable(key)] = value
    return target


def hashable(key: Any) -> Any:
    """A key of a dict. The hash of tuples within tuples within tuples takes a time without bound."""
    if isinstance(key, tuple | frozenset) and any(isinstance(part, tuple | frozenset) for part in key):
        raise WeightsError("the file has tuples within tuples for names")
    return key
