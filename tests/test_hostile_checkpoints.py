"""Weight files that may hold anything: nothing runs, and time and memory are bounded."""
from __future__ import annotations

import contextlib
import os
import pickle
import resource
import struct
import tempfile
import time
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers.vlm.checkpoints import read_checkpoint, tensors_by_name

GET = pickle.BINGET + b"\x00"
PUT = pickle.BINPUT + b"\x00"


class Hostile:
    """Would create a file if it were ever rebuilt."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def zipped(path: Path, data_pkl: bytes, method: int = zipfile.ZIP_STORED, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x/data.pkl", data_pkl)
        for key, content in storages.items():
            archive.writestr(f"x/data/{key.removeprefix('s')}", content)
    return path


def program(*opcodes: bytes) -> bytes:
    return pickle.PROTO + b"\x04" + b"".join(opcodes) + pickle.STOP


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return pickle.LONG1 + bytes([len(pickle.encode_long(value))]) + pickle.encode_long(value)


def tensor(size: int, stride: int, count: int, offset: int = 0, key: str = "0") -> bytes:
    """The opcodes of a one-dimensional float tensor on a storage of `count` numbers."""
    storage = pickle.MARK + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu")
    storage += number(count) + pickle.TUPLE + pickle.BINPERSID
    shape = number(offset) + number(size) + pickle.TUPLE1 + number(stride) + pickle.TUPLE1
    rest = pickle.NEWFALSE + pickle.EMPTY_DICT + pickle.TUPLE + pickle.REDUCE
    return b"ctorch._utils\n_rebuild_tensor_v2\n" + pickle.MARK + storage + shape + rest


def tensors(**values: bytes) -> bytes:
    """A pickle of a dict."""
    items = b"".join(text(name) + value for name, value in values.items())
    return program(pickle.EMPTY_DICT, pickle.MARK, items, pickle.SETITEMS)


@contextlib.contextmanager
def cheaply(seconds: float = 8, megabytes: int = 300):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    yield
    assert time.process_time() - start < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes << 10


def refused(path: Path, message: str | None = None) -> None:
    with cheaply(), pytest.raises(WeightsError, match=message) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"cannot read {path}: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_files_with_live_objects_are_read_and_nothing_of_them_runs(tmp_path):
    trace = tmp_path / "trace"
    context = torch.randn(4, 8).half()
    shared = torch.arange(12.0).view(3, 4)
    parameter = torch.nn.Parameter(shared)
    content = {
        "state_dict": {"ctx": context, "rows": shared[1:], "columns": shared.T, "p": parameter},
        "optimizer": torch.optim.SGD([torch.nn.Parameter(context.float())], lr=0.1),
        "hostile": Hostile(trace),
        "epoch": 3,
        "groups": defaultdict(list, a=[1]),
        "best": 0.5,
        "size": shared.shape,
        "mixed": [1, 2.5, None, True, "é"],
        "set": {1, 2},
        3: (4, 5),
    }
    for protocol in range(2, 6):
        torch.save(content, tmp_path / "x.pt", pickle_protocol=protocol)
        checkpoint = read_checkpoint(tmp_path / "x.pt")
        state = checkpoint["state_dict"]
        assert state["ctx"].dtype == torch.half and torch.equal(state["ctx"], context)
        assert torch.equal(state["rows"], shared[1:]) and torch.equal(state["columns"], shared.T)
        assert torch.equal(state["p"], shared)
        for key in ("epoch", "best", "size", "groups", "mixed", 3):
            assert checkpoint[key] == content[key]
        assert not isinstance(checkpoint["optimizer"], torch.optim.Optimizer)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Hostile(trace)))
    refused(tmp_path / "bare.pt", "damaged or not a PyTorch file")
    assert not trace.exists()


def test_the_format_before_torch_1_6_is_refused_with_the_remedy(tmp_path):
    torch.save({"ctx": torch.ones(2)}, tmp_path / "x.pt", _use_new_zipfile_serialization=False)
    refused(tmp_path / "x.pt", r"format of torch before 1.6: .*torch.save\(torch.load\(FILE\), NEW\)")


def test_truncated_files_get_one_line(tmp_path):
    torch.save({"ctx": torch.randn(50, 50)}, tmp_path / "x.pt")
    content = (tmp_path / "x.pt").read_bytes()
    for length in (0, 1, 30, len(content) // 2, len(content) - 200):
        (tmp_path / "cut.pt").write_bytes(content[:length])
        refused(tmp_path / "cut.pt")


def test_dicts_that_share_each_other(tmp_path):
    """Fifty dicts, each holding the next twice: 2⁵⁰ names for one tensor. And 100,000 nested
    ones."""
    content: dict = {"ctx": torch.ones(2)}
    for _ in range(50):
        content = {"a": content, "b": content}
    content["self"] = content
    torch.save(content, tmp_path / "x.pt")
    with cheaply():
        (name,) = tensors_by_name(read_checkpoint(tmp_path / "x.pt"))
        assert name.endswith(".ctx")
    wrap = PUT + pickle.POP + pickle.EMPTY_DICT + text("a") + GET + pickle.SETITEM
    deep = program(pickle.NONE + wrap * 100_000)
    with cheaply(), pytest.raises(WeightsError, match="nests its tensors too deeply"):
        tensors_by_name(read_checkpoint(zipped(tmp_path / "y.pt", deep)))


# a tuple whose hash takes 2⁴⁰ steps
NESTED = pickle.EMPTY_TUPLE + PUT + (GET + GET + pickle.TUPLE2 + PUT) * 40
# 8 MB that one byte refers to
LONG = pickle.MARK + pickle.NONE * 1_000_000 + pickle.TUPLE + PUT + pickle.POP


@pytest.mark.parametrize("opcodes", [
    NESTED + pickle.EMPTY_DICT + GET + pickle.NONE + pickle.SETITEM,
    NESTED + pickle.EMPTY_SET + pickle.MARK + GET + pickle.ADDITEMS,
    NESTED + pickle.MARK + GET + pickle.NONE + pickle.DICT,
    NESTED + pickle.MARK + GET + pickle.NONE + pickle.FROZENSET,
    NESTED + b"ccollections\nOrderedDict\n" + pickle.EMPTY_LIST + GET + pickle.NONE + pickle.TUPLE2
    + pickle.APPEND + pickle.TUPLE1 + pickle.REDUCE,
    LONG + pickle.EMPTY_DICT + (GET + pickle.NONE + pickle.SETITEM) * 100_000,
    LONG + (b"cos\nsystem\n" + GET + pickle.REDUCE + pickle.POP) * 100_000,
    LONG + (b"cos\nsystem\n" + GET + pickle.NEWOBJ + pickle.POP) * 100_000,
    pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", 350_000_000),  # a memo of 2.8 GB
    pickle.BYTEARRAY8 + struct.pack("<Q", 4 << 30),
    pickle.BINBYTES8 + struct.pack("<Q", 1 << 60),
    pickle.LONG4 + struct.pack("<i", (1 << 31) - 1),
    pickle.FRAME + struct.pack("<Q", 4 << 30),
    pickle.BINUNICODE + struct.pack("<I", (1 << 32) - 1),
    b"I" + b"9" * 100_000 + b"\n",
])
def test_opcodes_that_ask_for_time_or_memory(opcodes, tmp_path):
    with cheaply(), contextlib.suppress(WeightsError):  # what costs nothing is no fault
        read_checkpoint(zipped(tmp_path / "x.pt", program(opcodes)))


@pytest.mark.parametrize(("size", "stride", "count", "message"), [
    (1 << 30, 0, 1, "far more numbers than the file holds"),
    (10 ** 12, 0, 1, "far more numbers than the file holds"),
    (10 ** 12, 1, 1, "beyond its data"),
    (1, 1, 10 ** 12, "incomplete"),
    (10 ** 30, 0, 1, "no proper shape"),
    (-1, 1, 1, "no proper shape"),
    (1, -1, 1, "no proper shape"),
])
def test_tensors_that_claim_more_than_there_is(size, stride, count, message, tmp_path):
    pickled = tensors(ctx=tensor(size, stride, count))
    refused(zipped(tmp_path / "x.pt", pickled, s0=bytes(4)), message)


def test_many_views_of_one_storage(tmp_path):
    """Each is honest alone; together they would be 8 GB."""
    names = [f"t{i}" for i in range(2000)]
    pickled = tensors(**dict.fromkeys(names, tensor(1 << 20, 1, 1 << 20)))
    path = zipped(tmp_path / "x.pt", pickled, s0=bytes(4 << 20))
    refused(path, "far more numbers than the file holds")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_packed_bombs(method, tmp_path):
    """Data and pickles that unpack to much more than the file. Weights that are packed are read."""
    count = 20 << 20
    pickled = tensors(ctx=tensor(count, 1, count))
    path = zipped(tmp_path / "x.pt", pickled, method, s0=bytes(4 * count))
    refused(path, "would unpack from .* bytes, which no weights do")
    path = zipped(tmp_path / "y.pt", bytes(9 << 20), method)
    refused(path, "would unpack from .* bytes, which no weights do")
    count = 100_000
    numbers = torch.randint(0, 9, (count,)).float().numpy().tobytes()
    path = zipped(tmp_path / "z.pt", tensors(ctx=tensor(count, 1, count)), method, s0=numbers)
    assert path.stat().st_size < count and read_checkpoint(path)["ctx"].shape == (count,)


def test_data_that_is_missing_is_never_zeros(tmp_path):
    path = tmp_path / "x.pt"
    three = tensor(3, 1, 3)
    two_tensors = tensors(ctx=three, other=tensor(3, 1, 3, key="1"))
    numbers = struct.pack("<3f", 1, 2, 3)
    zipped(path, two_tensors, s0=numbers, s1=numbers)
    assert read_checkpoint(path)["other"].tolist() == [1, 2, 3]
    refused(zipped(path, two_tensors, s0=numbers), "a tensor's data is missing")
    refused(zipped(path, two_tensors, s0=numbers, s1=numbers[4:]), "a tensor's data is incomplete")
    unequal = tensors(ctx=three, other=tensor(1, 1, 1))
    refused(zipped(path, unequal, s0=numbers), "the sizes of its tensors disagree")


def test_a_file_does_nothing_to_what_reads_it(tmp_path):
    """State that is given to a function or class of ours is dropped."""
    state = pickle.NONE + pickle.EMPTY_DICT + text("__defaults__") + pickle.NONE + pickle.SETITEM
    for name in (
        b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n",
        b"cos\nsystem\n",
    ):
        pickled = program(name, state + pickle.TUPLE2, pickle.BUILD)
        read_checkpoint(zipped(tmp_path / "x.pt", pickled))
    test_data_that_is_missing_is_never_zeros(tmp_path)


PLAIN = st.none() | st.booleans() | st.integers(-2**60, 2**60) | st.text(max_size=9)
PLAIN |= st.floats(allow_nan=False)


def lists_and_dicts(values):
    return st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=9), values)


@settings(max_examples=50, deadline=None)
@given(st.recursive(PLAIN, lists_and_dicts))
def test_any_plain_content_is_read(content):
    with tempfile.TemporaryDirectory() as folder:
        torch.save({"x": content}, Path(folder) / "x.pt")
        assert read_checkpoint(Path(folder) / "x.pt") == {"x": content}
