"""Files that are there whole or not at all."""
from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .errors import DataError, UserError

LARGEST_TEXT = 1 << 28  # bytes of a file that is read whole; the largest that is any use has a hundredth of it
LARGEST_RATIO, FREE = 20, 64 << 20  # of arrays to the file that holds them, which we never pack; and bytes beyond that


def data_root(path: str | Path) -> Path:
    """The folder that holds the data sets, by the name that a user gave it."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise DataError(f"data root {root} is not a folder: give the one that holds the data sets with --root")
    return root


def make_folder(path: Path) -> None:
    if not str(path).isprintable():  # TensorBoard takes no other bytes than UTF-8
        raise UserError(f"cannot make folder {str(path)!r}: its name is not plain UTF-8 text; choose another one")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make folder {path}: {error.strerror}; choose another one") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes to `path`: a disk that is full or gone is told in one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: {reason}; free some space or choose another folder") from error


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes beside `path`, makes sure it is on disk, then renames: a reader sees the old file or the new one. Of
    several writers, on any number of machines, each has a part of its own."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
    finally:
        with suppress(OSError):  # nothing is left of it after success, nor where there is no folder at all
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """In UTF-8; bytes of file names that the system's alphabet lacks stay what they are."""
    write_atomically(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    write_atomically(path, lambda file: np.savez(file, **arrays))


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to read it. A pipe would be waited for, and a device never ends, whatever name they have."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return file


def read_regular(path: Path) -> bytes:
    """All bytes of a file, unless it is far larger than any that is read whole."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > LARGEST_TEXT:
            raise OSError(errno.EFBIG, "File too large", str(path))
        return file.read()


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a file, after a look at every checksum: numpy alone stops reading, and checking, where the shape
    that the file itself states ends."""
    with noticing_damage(), open_regular(path) as packed, np.load(packed, allow_pickle=False) as file:
        unpacked = sum(member.file_size for member in file.zip.infolist())
        if unpacked > LARGEST_RATIO * path.stat().st_size + FREE:
            raise Damaged(f"it would unpack to {unpacked:,} bytes")
        if broken := file.zip.testzip():
            raise Damaged(f"wrong checksum of {broken}")
        return dict(file)


class Damaged(Exception):
    """A file whose content cannot be what was written."""


@contextmanager
def noticing_damage() -> Iterator[None]:
    """A flipped byte can end in any exception, deep inside zipfile, numpy or Python's own tokenizer."""
    try:
        yield
    except Exception as error:
        raise Damaged(str(error) or type(error).__name__) from error


def read_json(path: Path) -> Any | None:
    """The content, or None where there is no such file or it is not JSON."""
    try:
        return json.loads(read_regular(path).decode("utf-8", errors="surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return None
