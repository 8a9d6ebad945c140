"""Weight files that are made to hang or to fill the memory: bounded time, bounded memory, one line."""
from __future__ import annotations

import contextlib
import io
import pickle
import resource
import struct
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from promptcal.datasets.utils.errors import WeightsError
from promptcal.trainers.vlm.checkpoints import LEGACY_MAGIC, read_checkpoint, tensors_by_name
from promptcal.trainers.vlm.loading import load_clip


def zipped(path: Path, data_pkl: bytes, method: int = zipfile.ZIP_STORED, **storages: bytes) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("x/data.pkl", data_pkl)
        for key, content in storages.items():
            archive.writestr(f"x/data/{key.removeprefix('s')}", content)
    return path


def legacy(path: Path, data_pkl: bytes, keys: list[str], after: bytes = b"") -> Path:
    head = pickle.dumps(LEGACY_MAGIC, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    path.write_bytes(head + data_pkl + pickle.dumps(keys, 2) + after)
    return path


def text(value: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return pickle.LONG1 + bytes([len(pickle.encode_long(value))]) + pickle.encode_long(value)


def tensor(size: int, stride: int, count: int, offset: int = 0, key: str = "0") -> bytes:
    """The opcodes of a one-dimensional float tensor on a storage of `count` numbers."""
    storage = (pickle.MARK + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(count)
               + pickle.TUPLE + pickle.BINPERSID)
    return (b"ctorch._utils\n_rebuild_tensor_v2\n" + pickle.MARK + storage + number(offset) + number(size)
            + pickle.TUPLE1 + number(stride) + pickle.TUPLE1 + pickle.NEWFALSE + pickle.EMPTY_DICT + pickle.TUPLE
            + pickle.REDUCE)


def named(*items: tuple[str, bytes]) -> bytes:
    pairs = b"".join(text(key) + value for key, value in items)
    return pickle.PROTO + b"\x02" + pickle.EMPTY_DICT + pickle.MARK + pairs + pickle.SETITEMS + pickle.STOP


@contextlib.contextmanager
def cheaply(seconds: float = 5, megabytes: int = 300):
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - start < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes << 10


def refused(path: Path, message: str | None = None) -> None:
    with cheaply(), pytest.raises(WeightsError, match=message) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"cannot read {path}: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_the_files_of_these_tests_are_proper(tmp_path: Path):
    numbers = struct.pack("<3f", 1, 2, 3)
    content = read_checkpoint(zipped(tmp_path / "x.pt", named(("ctx", tensor(3, 1, 3))), s0=numbers))
    assert content["ctx"].tolist() == [1, 2, 3]
    after = struct.pack("<q", 3) + numbers
    content = read_checkpoint(legacy(tmp_path / "y.pt", named(("ctx", tensor(3, 1, 3))), ["0"], after))
    assert content["ctx"].tolist() == [1, 2, 3]


def test_dicts_that_share_each_other(tmp_path: Path):
    """Fifty dicts, each holding the next one twice: 2⁵⁰ names for one tensor. Each is looked into once."""
    content: dict = {"ctx": torch.ones(2)}
    for _ in range(50):
        content = {"a": content, "b": content}
    content["self"] = content
    torch.save(content, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < 4000
    with cheaply():
        tensors = tensors_by_name(read_checkpoint(tmp_path / "x.pt"))
        assert len(tensors) == 1 and next(iter(tensors)).endswith(".ctx")
        with pytest.raises(WeightsError, match="does not hold the weights"):
            load_clip(str(tmp_path / "x.pt"), "cpu")


@pytest.mark.parametrize("use", [
    pickle.EMPTY_DICT + pickle.BINGET + b"\x00" + pickle.NONE + pickle.SETITEM,
    pickle.MARK + pickle.BINGET + b"\x00" + pickle.NONE + pickle.DICT,
    pickle.MARK + pickle.BINGET + b"\x00" + pickle.FROZENSET,
    pickle.EMPTY_SET + pickle.MARK + pickle.BINGET + b"\x00" + pickle.ADDITEMS,
    b"ccollections\nOrderedDict\n" + pickle.EMPTY_LIST + pickle.BINGET + b"\x00" + pickle.NONE + pickle.TUPLE2
    + pickle.APPEND + pickle.TUPLE1 + pickle.REDUCE,
], ids=["setitem", "dict", "frozenset", "set", "ordered"])
def test_tuples_that_share_each_other_as_names(use: bytes, tmp_path: Path):
    """The hash of such a tuple takes 2⁴⁰ steps."""
    tower = pickle.EMPTY_TUPLE + pickle.BINPUT + b"\x00" + (
        pickle.BINGET + b"\x00" + pickle.BINGET + b"\x00" + pickle.TUPLE2 + pickle.BINPUT + b"\x00") * 40
    refused(zipped(tmp_path / "x.pt", pickle.PROTO + b"\x04" + tower + use + pickle.STOP), "tuples within tuples")


@pytest.mark.parametrize("opcodes", [
    pickle.NONE + pickle.LONG_BINPUT + struct.pack("<I", 350_000_000),  # a memo of 2.8 GB
    pickle.BYTEARRAY8 + struct.pack("<Q", 4 << 30),
    pickle.BINBYTES8 + struct.pack("<Q", 1 << 60),
    pickle.BINUNICODE8 + struct.pack("<Q", 4 << 30),
    pickle.LONG4 + struct.pack("<i", (1 << 31) - 1),
    pickle.FRAME + struct.pack("<Q", 4 << 30),
    pickle.BINUNICODE + struct.pack("<I", (1 << 32) - 1),
    b"I" + b"9" * 100_000 + b"\n",
])
def test_opcodes_that_ask_for_memory(opcodes: bytes, tmp_path: Path):
    program = pickle.PROTO + b"\x04" + opcodes + pickle.STOP
    for path in (zipped(tmp_path / "x.pt", program), legacy(tmp_path / "y.pt", program, [])):
        with cheaply(), contextlib.suppress(WeightsError):  # a memo place is no fault as long as it costs nothing
            read_checkpoint(path)


@pytest.mark.parametrize(("size", "stride", "count", "message"), [
    (1 << 30, 0, 1, "far more numbers than the file holds"),
    (10 ** 12, 0, 1, "far more numbers than the file holds"),
    (10 ** 12, 1, 1, "beyond its data"),
    (1, 1, 10 ** 12, "incomplete|far more|takes more"),
    (10 ** 30, 0, 1, "no proper shape"),
    (-1, 1, 1, "no proper shape"),
    (1, -1, 1, "no proper shape"),
])
def test_tensors_that_claim_more_than_there_is(size: int, stride: int, count: int, message: str, tmp_path: Path):
    program = named(("ctx", tensor(size, stride, count)))
    refused(zipped(tmp_path / "x.pt", program, s0=bytes(4)), message)
    refused(legacy(tmp_path / "y.pt", program, ["0"], struct.pack("<q", 1) + bytes(4)), message)


def test_many_views_of_one_storage(tmp_path: Path):
    """Each is honest alone; together they would be 8 GB."""
    program = named(*((f"t{i}", tensor(1 << 20, 1, 1 << 20)) for i in range(2000)))
    refused(zipped(tmp_path / "x.pt", program, s0=bytes(4 << 20)), "far more numbers than the file holds")
    program = named(*((f"t{i}", tensor(1, 1, 1 << 20, key=str(i))) for i in range(2000)))
    refused(legacy(tmp_path / "y.pt", program, ["0"], bytes(4 << 20)), "far more numbers than the file holds")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packed_bombs(method: int, tmp_path: Path):
    count = 6 << 20
    path = zipped(tmp_path / "x.pt", named(("ctx", tensor(count, 1, count))), method, s0=bytes(4 * count))
    assert path.stat().st_size < 1 << 20
    refused(path, "would unpack from .* bytes, which no weights do")
    program = pickle.PROTO + b"\x02" + (pickle.NONE + pickle.POP) * (2 << 20) + pickle.NONE + pickle.STOP
    refused(zipped(tmp_path / "y.pt", program, method), "would unpack from .* bytes, which no weights do")


def test_packed_weights_are_read(tmp_path: Path):
    """Tools that pack a checkpoint again make no bomb of it."""
    count = 4 << 20
    half = torch.randint(0, 9, (count,)).float().numpy().tobytes()
    path = zipped(tmp_path / "x.pt", named(("ctx", tensor(count, 1, count))), zipfile.ZIP_DEFLATED, s0=half)
    assert path.stat().st_size < count
    assert read_checkpoint(path)["ctx"].shape == (count,)


def test_data_that_is_missing_is_never_zeros(tmp_path: Path):
    program = named(("ctx", tensor(3, 1, 3)), ("other", tensor(3, 1, 3, key="1")))
    numbers = struct.pack("<q3f", 3, 1, 2, 3)
    for keys in ([], ["0"], ["0", "0"], ["0", "2"]):
        refused(legacy(tmp_path / "x.pt", program, keys, numbers * 2), "incomplete")
    refused(legacy(tmp_path / "x.pt", program, ["0", "1"], numbers))
    refused(zipped(tmp_path / "x.pt", program, s0=numbers[8:]), "a tensor's data is missing")


def test_one_storage_under_two_sizes(tmp_path: Path):
    program = named(("ctx", tensor(3, 1, 3)), ("other", tensor(1, 1, 1)))
    refused(zipped(tmp_path / "x.pt", program, s0=bytes(12)), "the sizes of its tensors disagree")


def test_a_file_does_nothing_to_what_reads_it(tmp_path: Path):
    """State that is given to a function or class of ours is dropped."""
    names = b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nSize\n", b"cos\nsystem\n"
    for name in names:
        program = (pickle.PROTO + b"\x02" + name + pickle.NONE + pickle.EMPTY_DICT + text("__defaults__")
                   + pickle.NONE + pickle.SETITEM + pickle.TUPLE2 + pickle.BUILD + pickle.STOP)
        read_checkpoint(zipped(tmp_path / "x.pt", program))
    test_the_files_of_these_tests_are_proper(tmp_path)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([getattr(pickle, name) for name in pickle.__all__ if name.isupper()
                                 and isinstance(getattr(pickle, name), bytes)]) | st.binary(max_size=6)
                | st.sampled_from([b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nSize\n", b"cbuiltins\neval\n",
                                   tensor(3, 1, 3), text("storage")]), max_size=30))
def test_any_program(opcodes: list[bytes]):
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(WeightsError):
        program = pickle.PROTO + b"\x04" + b"".join(opcodes) + pickle.STOP
        read_checkpoint(zipped(Path(folder) / "x.pt", program, s0=bytes(12)))


def test_any_program_of_the_other_unpickler_still_reads(tmp_path: Path):
    """What torch itself writes, in both formats, with every protocol."""
    shared = torch.arange(6.0)
    content = {"a": [1, 2.5, None, True, "é"], "t": shared, "v": shared[2:], ("k", 1): {"s": {1, 2}}, 3: (4, 5)}
    for protocol in range(2, 6):
        for zip_format in (True, False):
            buffer = io.BytesIO()
            torch.save(content, buffer, pickle_protocol=protocol, _use_new_zipfile_serialization=zip_format)
            (tmp_path / "x.pt").write_bytes(buffer.getvalue())
            found = read_checkpoint(tmp_path / "x.pt")
            assert torch.equal(found["t"], shared) and torch.equal(found["v"], shared[2:])
            assert found["a"] == content["a"] and found[3] == (4, 5) and ("k", 1) in found
