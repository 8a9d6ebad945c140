"""Reads tensors from PyTorch files as data: nothing in a file is ever executed.

`torch.save` files and TorchScript archives are pickles, and a pickle may call any function. Files in the wild also
hold live objects (Dassl saves optimizers and schedulers beside the prompt), which `weights_only=True` refuses. The
unpickler here rebuilds tensors and plain containers itself and puts an inert stand-in wherever the file names any
other class or function. Zip files (`torch.save` since 1.6, TorchScript) and the older single-stream format both work.
"""
from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ...datasets.utils.errors import WeightsError, one_line
from .unpickling import LARGEST_PICKLE, BoundedPickle, Budget, StandIn, TensorUnpickler

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # what the older format begins with
LARGEST_RATIO = 20  # of a member of a zip file to what it takes there; torch packs nothing, other tools a little
ALWAYS_ALLOWED = 1 << 20


def as_storage(data: bytes, dtype: torch.dtype, numel: int) -> Tensor:
    if len(data) < numel * dtype.itemsize:
        raise WeightsError("the file is truncated: a tensor's data is incomplete")
    return torch.frombuffer(bytearray(data), dtype=dtype, count=numel) if numel else torch.empty(0, dtype=dtype)


def honest(info: zipfile.ZipInfo) -> bool:
    return info.file_size <= max(ALWAYS_ALLOWED, LARGEST_RATIO * info.compress_size)


def read_member(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    """A file within a zip file. What it would unpack to is looked at first, and is all that the library hands out."""
    info = archive.getinfo(name)
    if info.file_size > limit or not honest(info):
        raise WeightsError(f"{one_line(name, 100)} in it would unpack from {info.compress_size:,} to "
                           f"{info.file_size:,} bytes, which no weights do")
    return archive.read(info)


def read_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        top = next((n[: -len("data.pkl")] for n in archive.namelist() if n.endswith("data.pkl")), None)
        if top is None:
            raise WeightsError("it is a zip file but holds no PyTorch data")
        if f"{top}byteorder" in names and read_member(archive, f"{top}byteorder", 100) != b"little":
            raise WeightsError("it was written on a big-endian machine; save it again on an ordinary one")
        size = sum(info.file_size for info in archive.infolist() if honest(info))
        budget, storages = Budget(min(size, LARGEST_RATIO * path.stat().st_size)), {}

        def read_storage(dtype: torch.dtype, key: str, numel: int) -> Tensor:
            if key not in storages:
                if f"{top}data/{key}" not in names:
                    raise WeightsError("the file is incomplete: a tensor's data is missing")
                data = read_member(archive, f"{top}data/{key}", budget.left)
                budget.take(len(data))
                storages[key] = as_storage(data, dtype, numel)
            elif storages[key].dtype != dtype or storages[key].numel() != numel:
                raise WeightsError("it is damaged: the sizes of its tensors disagree")
            return storages[key]

        description = io.BytesIO(read_member(archive, f"{top}data.pkl", LARGEST_PICKLE))
        return TensorUnpickler(BoundedPickle(description), read_storage, budget).load()


def read_legacy(path: Path) -> Any:
    """The format before torch 1.6: header, object and list of storages as pickles, then the storages' bytes."""
    storages: dict[str, Tensor] = {}
    budget, promised = Budget(path.stat().st_size), Budget(0)
    promised.left = path.stat().st_size

    def read_storage(dtype: torch.dtype, key: str, numel: int) -> Tensor:
        # The bytes come after the object, so tensors are built on storages that are filled afterwards.
        if key not in storages:
            promised.take(numel * dtype.itemsize)
            storages[key] = torch.zeros(numel, dtype=dtype)
        return storages[key]

    with path.open("rb") as file:
        bounded = BoundedPickle(file)
        unpickle = lambda: TensorUnpickler(bounded, read_storage, budget, keep_views=True).load()  # noqa: E731
        if unpickle() != LEGACY_MAGIC:
            raise WeightsError("it is not a PyTorch file")
        unpickle()  # protocol version
        unpickle()  # byte order and type sizes of the writer
        content, keys = unpickle(), unpickle()
        if not isinstance(keys, list) or len(keys) != len(storages) or {str(key) for key in keys} != set(storages):
            raise WeightsError("the file is incomplete: it does not hold the data of each of its tensors")
        for key in keys:
            (numel,) = struct.unpack("<q", file.read(8))
            storage = storages[str(key)]
            if storage.numel() != numel:
                raise WeightsError("it is damaged: the sizes of its tensors disagree")
            storage.copy_(as_storage(file.read(numel * storage.dtype.itemsize), storage.dtype, numel))
    return content


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
    except Exception as error:  # a file may say anything, and each library has its own words for what it cannot be
        why = one_line(error, 300)
        words = f" ({why})" if any(map(str.isalpha, why)) else ""  # and no bare number
        raise WeightsError(f"cannot read {path}: it is damaged or not a PyTorch file{words}") from error


def tensors_by_name(content: Any) -> dict[str, Tensor]:
    """All tensors in nested dicts and stand-ins (the modules of a TorchScript archive) by their dotted name. Each dict
    is looked into once: a few that hold each other twice would otherwise have a billion names."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    waiting = [("", content)]
    while waiting:
        name, value = waiting.pop()
        value = value.state if isinstance(value, StandIn) else value
        if isinstance(value, Tensor):
            found[name] = value
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            below = f"{name}." if name else ""
            waiting += [(f"{below}{one_line(key, 200)}", part) for key, part in reversed(value.items())]
    return found
