"""Reads tensors from PyTorch and safetensors files as data: nothing in a file is ever executed.

Files of `torch.save` and TorchScript archives hold a pickle, and a pickle may call any function.
Dassl's checkpoints also hold optimizer and scheduler objects with the prompt, which
`weights_only=True` refuses. The unpickler here rebuilds tensors and plain containers itself and
puts an inert `StandIn` wherever the file names any other class or function. It is the standard
library's unpickler in Python: the one in C allocates what a few bytes of a file ask for. Time and
memory are bounded by the size of the file.
"""
from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from ...datasets.utils.errors import WeightsError, one_line

# Bytes of the pickle that describes the tensors. That of the largest of OpenAI's files takes a
# fifth of a megabyte.
LARGEST_PICKLE = 8 << 20
# A file may unpack to SMALL_FILE_BYTES + GROWTH · (its size). A compressed file grows, and each
# tensor that is a view of the data is copied.
SMALL_FILE_BYTES = 64 << 20
GROWTH = 8
LONGEST_NAME = 4096  # characters of a tensor's dotted name
MOST_PARTS = 64  # arguments of a call, dimensions of a tensor
# Offsets, sizes and strides of tensors lie below it, far within the int64 that torch takes.
NUMBER_LIMIT = 1 << 48
OLD_FORMAT = pickle.dumps(0x1950A86A20F9469CFC6C, 2)  # first bytes of files of torch before 1.6
STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class StandIn:
    """Replaces any class or function that a file names: it takes all that a pickle does, and does
    nothing.
    """

    state: Any = None  # state of an object; TorchScript's modules have their tensors here

    def __init__(self, *args: Any) -> None:
        pass

    def __call__(self, *args: Any) -> StandIn:
        return StandIn()

    def append(self, value: Any) -> None:
        """Ignores an item of a list."""
        pass

    extend = append


class TensorUnpickler(pickle._Unpickler):  # type: ignore[misc, name-defined]
    """Rebuilds tensors, lists, tuples and dicts; every other name becomes a stand-in.

    Sets stay empty. The data of tensors is read from the zip file when a tensor refers to it.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    dispatch: ClassVar[dict[int, Callable[..., None]]] = dict(pickle._Unpickler.dispatch)  # type: ignore[attr-defined]

    def __init__(self, archive: zipfile.ZipFile, folder: str, file_size: int) -> None:
        """
        Args:
            archive: The file, which is a zip archive.
            folder: The folder in it that holds `data.pkl`, with a slash at the end.
            file_size: Bytes of the whole file.
        """
        pickled = read_member(archive, f"{folder}data.pkl", LARGEST_PICKLE)
        # In Latin-1 any byte is a letter, so text of any encoding can be read.
        super().__init__(io.BytesIO(pickled), encoding="latin1")
        self.archive = archive
        self.folder = folder
        # Bytes that data and tensors may still take.
        self.bytes_left = SMALL_FILE_BYTES + GROWTH * file_size
        self.storages: dict[str, Tensor] = {}  # flat tensors by their names in the archive
        # What is called or used in place of the functions and types that a file names. All other
        # names become stand-ins.
        self.replacements: dict[tuple[str, str], Any] = {
            ("torch._utils", "_rebuild_tensor"): self.view,
            ("torch._utils", "_rebuild_tensor_v2"): self.view,
            ("torch._utils", "_rebuild_parameter"): first_argument,
            ("torch", "Size"): plain_size,
            ("collections", "OrderedDict"): empty_dict,
            ("collections", "defaultdict"): empty_dict,
        }
        for name, dtype in STORAGE_DTYPES.items():
            self.replacements["torch", name] = dtype

    def take(self, count: int) -> None:
        """Counts bytes that data or a tensor takes, and refuses the file if they are too many."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise WeightsError("its tensors claim far more numbers than the file holds")

    def storage(self, dtype: torch.dtype, key: str, numel: int) -> Tensor:
        """Reads the data of a name as a flat tensor. Several tensors may be views of it.

        Args:
            dtype: Type of the numbers.
            key: Name of the data in the zip file.
            numel: Number of the numbers.
        """
        if key not in self.storages:
            data = read_member(self.archive, f"{self.folder}data/{key}", self.bytes_left)
            self.take(len(data))
            if len(data) < numel * dtype.itemsize:
                raise WeightsError("the file is truncated: a tensor's data is incomplete")
            if numel == 0:  # torch.frombuffer refuses it
                self.storages[key] = torch.tensor([], dtype=dtype)
            else:
                self.storages[key] = torch.frombuffer(bytearray(data), dtype=dtype, count=numel)
        elif self.storages[key].dtype != dtype or self.storages[key].numel() != numel:
            raise WeightsError("it is damaged: the sizes of its tensors disagree")
        return self.storages[key]

    def view(
        self, storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any
    ) -> Tensor:
        """Copies a part of a storage, after checking that the part lies inside.

        Args:
            storage: A flat tensor.
            offset: Position of the part's first number in the storage.
            size: Shape of the part.
            stride: Distance in the storage of neighbours in each dimension.
        """
        is_proper = len(size) == len(stride) and len(size) <= MOST_PARTS
        for number in (offset, *size, *stride):
            # isinstance would accept a bool.
            if type(number) is not int or not 0 <= number < NUMBER_LIMIT:
                is_proper = False
        if not is_proper:
            raise WeightsError("a tensor of the file has no proper shape")
        count = math.prod(size)
        last = offset  # position of the tensor's last number in the storage
        for length, step in zip(size, stride, strict=True):
            last += (length - 1) * step
        if count and last >= storage.numel():
            raise WeightsError("a tensor of the file reaches beyond its data")
        self.take(count * storage.element_size())
        return storage.as_strided(size, stride, offset).clone()

    def find_class(self, module: str, name: str) -> Any:
        """Returns the replacement of a name, or a stand-in: nothing is ever imported."""
        return self.replacements.get((module, name), StandIn)

    def persistent_load(self, pid: Any) -> Tensor:
        """The data that a tensor refers to.

        Args:
            pid: The reference that torch.save writes: `("storage", dtype, key, device, count)`.
        """
        match pid:
            case ("storage", torch.dtype() as dtype, str(key), _, int(count)) if count >= 0:
                return self.storage(dtype, key, count)
        raise WeightsError("the file describes its tensors' data in an unknown way")

    def load_reduce(self) -> None:
        """Calls what is on the stack: a replacement or a stand-in."""
        args = self.stack.pop()
        if not isinstance(args, tuple) or len(args) > MOST_PARTS:
            raise WeightsError("the file calls something with too many arguments")
        self.stack[-1] = self.stack[-1](*args)

    def load_newobj(self) -> None:
        """Replaces an object of any class by a stand-in."""
        self.stack[-2:] = [StandIn()]  # class and arguments are the last two

    def load_build(self) -> None:
        """Stores state with stand-ins, and drops that of other objects."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], StandIn):
            self.stack[-1].state = state

    def load_setitem(self) -> None:
        """Sets one item of a dict."""
        self.set_items([self.stack.pop(-2), self.stack.pop()])

    def load_setitems(self) -> None:
        """Sets several items of a dict."""
        self.set_items(self.pop_mark())

    def set_items(self, items: list[Any]) -> None:
        """Sets items of the dict on the stack; those of a stand-in are dropped.

        Only keys that are text or numbers are used: others, such as nested tuples, may take long to
        hash.

        Args:
            items: Keys and values in turn.
        """
        target = self.stack[-1]
        for key, value in zip(items[::2], items[1::2], strict=True):
            is_short_int = isinstance(key, int) and key.bit_length() <= 64
            if isinstance(target, dict) and (is_short_int or isinstance(key, str | float)):
                target[key] = value

    def load_additems(self) -> None:
        """Drops the items of a set."""
        self.pop_mark()

    # The unpickler looks up what to do by the byte of each instruction. Those that call, build or
    # fill objects are the ones above; the rest are the standard library's.
    dispatch |= {
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.ADDITEMS[0]: load_additems,
    }
    # torch writes none of these. A file that has one is refused as damaged.
    for opcode in (
        pickle.DICT,
        pickle.INST,
        pickle.OBJ,
        pickle.FROZENSET,
        pickle.NEWOBJ_EX,
        pickle.BYTEARRAY8,
    ):
        del dispatch[opcode[0]]


# Replacements for functions that a file names, with the arguments that the pickle has for them.


def first_argument(tensor: Any, *_: Any) -> Any:
    """Replaces `_rebuild_parameter`: a parameter is read as its tensor."""
    return tensor


def plain_size(size: Any = ()) -> Any:
    """Replaces `torch.Size`: a size is read as a tuple."""
    return size


def empty_dict(*_: Any) -> dict[Any, Any]:
    """Replaces dicts with an order or a default: returns a plain dict, which is filled later."""
    return {}


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """Reads a file within a zip file, after checking the size that it would unpack to.

    A few bytes of a zip file can unpack to more than the memory holds.

    Args:
        archive: The zip file.
        name: Name of the file in it.
        limit: Number of bytes that it may unpack to.
    """
    try:
        info = archive.getinfo(name)
    except KeyError as error:
        raise WeightsError("the file is incomplete: a tensor's data is missing") from error
    if info.file_size > limit:
        raise WeightsError(
            f"{one_line(name, 100)} in it would unpack from {info.compress_size:,} to "
            f"{info.file_size:,} bytes, which no weights do"
        )
    return archive.read(info)


def read_checkpoint(path: str | Path) -> Any:
    """Reads the plain content of a .pt, .pth, .pth.tar or .safetensors file.

    It is copied into memory, so that the file may be replaced or removed later.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"no weight file at {path}")
    try:
        if path.suffix == ".safetensors":
            return load_safetensors(path.read_bytes())
        with path.open("rb") as file:
            if file.read(len(OLD_FORMAT)) == OLD_FORMAT:
                raise WeightsError(
                    "it has the format of torch before 1.6: where you trust it, convert it with a "
                    "current torch, torch.save(torch.load(FILE), NEW)"
                )
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
            if not pickles:
                raise WeightsError("it is a zip file but holds no PyTorch data")
            folder = pickles[0].removesuffix("data.pkl")
            return TensorUnpickler(archive, folder, path.stat().st_size).load()
    except WeightsError as error:
        raise WeightsError(f"cannot read {path}: {error}") from error
    except Exception as error:  # damaged files fail in many ways
        raise WeightsError(
            f"cannot read {path}: it is damaged or not a PyTorch file ({type(error).__name__}: "
            f"{one_line(error, 300)})"
        ) from error


def tensors_by_name(content: Any) -> dict[str, Tensor]:
    """Collects all tensors of a file by their dotted name.

    They are looked for in nested dicts and in stand-ins, which are the modules of a TorchScript
    archive. Each dict is visited once: a few that hold each other twice would otherwise have a
    billion names.

    Args:
        content: The content of the file, as `read_checkpoint` returns it.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    waiting = [("", content)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, StandIn):
            value = value.state
        if len(name) > LONGEST_NAME:
            raise WeightsError("the weight file nests its tensors too deeply: it is not a model's")
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            prefix = f"{name}." if name else ""
            for key, part in reversed(value.items()):  # the last is visited first
                waiting.append((f"{prefix}{key}", part))
    return tensors
