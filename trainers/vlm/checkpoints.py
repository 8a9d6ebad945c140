"""Reads tensors from PyTorch files as data: nothing in a file is ever executed.

`torch.save` files and TorchScript archives are pickles, and a pickle may call any function. Files in the wild also
hold live objects (Dassl saves optimizers and schedulers beside the prompt), which `weights_only=True` refuses. The
unpickler here rebuilds tensors and plain containers itself and puts an inert stand-in wherever the file names any
other class or function. Zip files (`torch.save` since 1.6, TorchScript) and the older single-stream format both work.
"""
from __future__ import annotations

import io
import lzma
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...datasets.utils.errors import WeightsError

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # what the older format begins with

STORAGE_DTYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}


class StandIn:
    """What a class or function named by the file becomes: takes whatever the pickle does to it, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.state: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        return StandIn()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass

    add = append


def rebuild_tensor(storage: Tensor, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
    """A view of a storage, after checking that it stays inside: a damaged file must not read beyond it."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    inside = offset >= 0 and min(size, default=1) >= 0 and min(stride, default=0) >= 0 and last < storage.numel()
    if 0 not in size and not inside:
        raise WeightsError("a tensor of the file reaches beyond its data")
    return storage.as_strided(size, stride, offset).clone()


class TensorUnpickler(pickle.Unpickler):
    """Rebuilds tensors and plain containers; every other name becomes a stand-in."""

    def __init__(self, file: io.BufferedIOBase, read_storage: Any) -> None:
        super().__init__(file, encoding="latin1")
        self.read_storage = read_storage

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return rebuild_tensor
        if module == "torch._utils" and name == "_rebuild_parameter":
            return lambda tensor, *_: tensor
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if module == "torch" and name == "Size":
            return tuple
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("collections", "defaultdict"):
            return lambda *_: {}
        return type(name, (StandIn,), {})

    def persistent_load(self, pid: Any) -> Tensor:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], torch.dtype):
            raise WeightsError("the file refers to something that is not a tensor's data")
        return self.read_storage(pid[1], str(pid[2]), int(pid[4]))


def as_storage(data: bytes, dtype: torch.dtype, numel: int) -> Tensor:
    if len(data) < numel * dtype.itemsize:
        raise WeightsError("the file is truncated: a tensor's data is incomplete")
    return torch.frombuffer(bytearray(data), dtype=dtype, count=numel) if numel else torch.empty(0, dtype=dtype)


def read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        top = next((n[: -len("data.pkl")] for n in archive.namelist() if n.endswith("data.pkl")), None)
        if top is None:
            raise WeightsError(f"{path} is a zip file but holds no PyTorch data")
        order = f"{top}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise WeightsError(f"{path} was written on a big-endian machine; save it again on an ordinary one")
        storages: dict[str, Tensor] = {}

        def read_storage(dtype: torch.dtype, key: str, numel: int) -> Tensor:
            if key not in storages:
                storages[key] = as_storage(archive.read(f"{top}data/{key}"), dtype, numel)
            return storages[key]

        return TensorUnpickler(io.BytesIO(archive.read(f"{top}data.pkl")), read_storage).load()


def read_legacy(path: Path) -> Any:
    """The format before torch 1.6: header, object and list of storages as pickles, then the storages' bytes."""
    storages: dict[str, Tensor] = {}

    def read_storage(dtype: torch.dtype, key: str, numel: int) -> Tensor:
        # The bytes come after the object, so tensors are built on storages that are filled afterwards.
        if numel * dtype.itemsize > path.stat().st_size:
            raise WeightsError("the file is truncated: a tensor's data is incomplete")
        return storages.setdefault(key, torch.zeros(numel, dtype=dtype))

    with path.open("rb") as file:
        unpickle = lambda: LegacyUnpickler(file, read_storage).load()  # noqa: E731
        if unpickle() != LEGACY_MAGIC:
            raise WeightsError(f"{path} is not a PyTorch file")
        unpickle()  # protocol version
        unpickle()  # byte order and type sizes of the writer
        content = unpickle()
        for key in unpickle():
            (numel,) = struct.unpack("<q", file.read(8))
            storage = storages.get(key)
            if storage is None or storage.numel() != numel:
                raise WeightsError(f"{path} is damaged: the sizes of its tensors disagree")
            storage.copy_(as_storage(file.read(numel * storage.dtype.itemsize), storage.dtype, numel))
    return content


class LegacyUnpickler(TensorUnpickler):
    """Keeps tensors as views of their storages, which are read last."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
            return lambda storage, offset, size, stride, *_: storage.as_strided(size, stride, offset)
        return super().find_class(module, name)


def read_checkpoint(path: str | Path) -> Any:
    """The plain content (dicts, lists, tensors, numbers, text) of a .pt, .pth, .pth.tar or .safetensors file."""
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"no weight file at {path}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return read_zip(path) if zipfile.is_zipfile(path) else read_legacy(path)
    except WeightsError as error:
        raise WeightsError(f"cannot read {path}: {error}") from error
    except (
        pickle.UnpicklingError, zipfile.BadZipFile, SafetensorError, EOFError, KeyError, IndexError, ValueError,
        TypeError, AttributeError, OverflowError, RuntimeError, MemoryError, OSError, struct.error, zlib.error,
        lzma.LZMAError,
    ) as error:
        raise WeightsError(f"cannot read {path}: it is damaged or not a PyTorch file ({error})") from error


def tensors_by_name(content: Any, prefix: str = "") -> dict[str, Tensor]:
    """All tensors in nested dicts and stand-ins (the modules of a TorchScript archive) by their dotted name."""
    if isinstance(content, StandIn):
        content = content.state
    if not isinstance(content, dict):
        return {}
    found: dict[str, Tensor] = {}
    for key, value in content.items():
        if isinstance(value, Tensor):
            found[f"{prefix}{key}"] = value
        else:
            found.update(tensors_by_name(value, f"{prefix}{key}."))
    return found
