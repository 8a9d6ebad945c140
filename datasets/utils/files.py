"""Reads and writes files safely: writes are atomic, reads are bounded and take regular files only.

Yaml is read as plain data: no code, no aliases, no duplicate keys, and no surprising types.
"""
from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import stat
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np
import yaml

from .errors import ConfigError, DataError, UserError, one_line

logger = logging.getLogger(__name__)

# Largest size in bytes of a file that is read into memory; the largest real one has a hundredth.
LARGEST_TEXT = 1 << 28
# Unpacked arrays may take LARGEST_RATIO times the size of their file, plus ALWAYS_ALLOWED bytes.
LARGEST_RATIO = 20
ALWAYS_ALLOWED = 64 << 20
# How files are opened for reading. Windows has no O_NONBLOCK and O_CLOEXEC, and changes line ends
# without O_BINARY.
READ_ONLY = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    READ_ONLY |= getattr(os, _flag, 0)


def data_root(path: str | Path) -> Path:
    """Returns the folder of the data sets that a user gave; refuses one that does not exist."""
    root = Path(path).expanduser()
    if not root.is_dir():
        raise DataError(f"data root {root} is not a folder: give the one that holds the data sets "
                        f"with --root")
    return root


def user_cache_folder() -> Path | None:
    """The folder for files of this package that can be made again; None for a user without a home.
    """
    folder = os.environ.get("XDG_CACHE_HOME")
    if not folder:
        folder = os.path.expanduser("~/.cache")  # noqa: PTH111 - pathlib's raises without a home
    if not Path(folder).is_absolute():
        return None
    return Path(folder, "promptcal")


def make_folder(path: Path) -> None:
    """Makes a folder and those above it."""
    if not str(path).isprintable():  # TensorBoard accepts UTF-8 only
        raise UserError(f"cannot make folder {str(path)!r}: its name is not plain UTF-8 text; "
                        f"choose another one")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "a file has this name" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"cannot make folder {path}: {reason}; choose another one") from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns write errors, such as a full disk, into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write {path}: {reason}; free some space or choose another "
                        f"folder") from error


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes a temporary file, syncs it and renames it: readers see the old file or the new one.

    The temporary name is unique, so several processes and machines may write the same file.

    Args:
        path: The file.
        write: A function that writes the content to an open file.
    """
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
        with suppress(OSError):  # it does not exist after success
            part.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes bytes atomically.

    Args:
        path: The file.
        content: The bytes of the file.
    """
    write_atomically(path, lambda file: file.write(content))


def write_text(path: Path, text: str) -> None:
    """Writes text as UTF-8; bytes of file names that are not UTF-8 are written unchanged.

    Args:
        path: The file.
        text: The content of the file.
    """
    write_bytes(path, text.encode(errors="surrogateescape"))


def no_formula(cell: str) -> str:
    """Returns a cell of a CSV file so that no spreadsheet takes its beginning for a formula."""
    if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{cell}"
    return cell


def write_json(path: Path, content: Any) -> None:
    """Writes plain data as JSON, indented.

    Args:
        path: The file.
        content: Dicts, lists, text and numbers.
    """
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Writes an .npz file.

    Args:
        path: The file.
        arrays: The arrays by name.
    """
    write_atomically(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading. Refuses others: a pipe would block, a device never ends."""
    file = os.fdopen(os.open(path, READ_ONLY), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return file


def read_regular(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """Reads all bytes of a regular file of reasonable size.

    Args:
        path: The file.
        largest: Number of bytes beyond which the file is refused.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, "File too large", str(path))
        return file.read()


def file_hash(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_json(path: Path) -> Any | None:
    """Reads a JSON file; None if there is no such file or it is not JSON."""
    try:
        return json.loads(read_regular(path).decode("utf-8", errors="surrogateescape"))
    except (OSError, ValueError, RecursionError):
        return None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of an .npz file.

    Every checksum is compared; numpy does that only for the bytes that it reads.
    """
    with (
        noticing_damage(),
        open_regular(path) as packed,
        np.load(packed, allow_pickle=False) as file,
    ):
        unpacked = sum(member.file_size for member in file.zip.infolist())
        if unpacked > LARGEST_RATIO * path.stat().st_size + ALWAYS_ALLOWED:
            raise Damaged(f"it would unpack to {unpacked:,} bytes")
        broken_member = file.zip.testzip()
        if broken_member:
            raise Damaged(f"wrong checksum of {broken_member}")
        return dict(file)


class Damaged(Exception):
    """A file whose content differs from what was written."""


@contextmanager
def noticing_damage() -> Iterator[None]:
    """Turns any exception into Damaged.

    A flipped byte can cause any exception inside zipfile, numpy or Python's tokenizer.
    """
    try:
        yield
    except Exception as error:
        raise Damaged(str(error) or type(error).__name__) from error


def leads_out(path: str) -> bool:
    """Whether a path in a list or an archive may lead out of its folder, on any system."""
    windows = PureWindowsPath(path)
    is_absolute = PurePosixPath(path).is_absolute() or bool(windows.drive or windows.root)
    return is_absolute or ".." in windows.parts


def is_printable(text: str) -> bool:
    """Whether a name is valid Unicode without control characters."""
    if text.isprintable():
        return True
    categories = {unicodedata.category(letter) for letter in text}
    return not categories & {"Cc", "Cs"}  # control characters, halves of letters


# Yaml

class YamlLoader(yaml.SafeLoader):
    """YAML 1.1 without its traps: `010` (8 there), `1:30` (90), `yes`, `0x1F`, `1_000` and dates
    stay text.
    """

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012 - only those that are added below

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        # Aliases of aliases can expand to more values than fit into memory.
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases (*name): write the values out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        # Of a key that is there twice PyYAML takes the last value, without a word.
        lines: dict[str, int] = {}  # the line of each key, from 1
        for key, _ in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in lines:
                raise yaml.YAMLError(f"'{name}' is there twice, in lines {lines[name]} and {line}")
            lines[name] = line
        return super().construct_mapping(node, deep)


# What unquoted text must look like for each type, and with which letters it may begin, by which
# PyYAML finds the patterns to try. Other text stays text.
for tag, pattern, first_letters in (
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    YamlLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$"), list(first_letters)
    )


@lru_cache(maxsize=200)  # a plan of many runs reads the same few files thousands of times
def parse_yaml(text: str | bytes) -> Any:
    """The plain data in yaml text, which callers share and must not change.

    Raises:
        yaml.YAMLError: For any fault of the text.
    """
    try:
        if len(text) > 1_000_000:
            raise yaml.YAMLError("it is longer than a million characters")
        return yaml.load(text, YamlLoader)
    # PyYAML raises many kinds: ValueError, RecursionError, TypeError ...
    except Exception as error:
        raise yaml.YAMLError(one_line(error, 300) or type(error).__name__) from error


def plain_value(value: object) -> object:
    """Text as yaml reads it; text that is not yaml stays text."""
    if isinstance(value, str):
        with suppress(yaml.YAMLError):
            return deepcopy(parse_yaml(value))  # two settings may have the same text
    return value


def read_yaml(path: Path) -> dict:
    """The plain data in a yaml file.

    Python files, which yacs would execute, and yaml tags are refused.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"config file {path} is not a .yaml file; other kinds are refused because they can run "
            "code"
        )
    try:
        content = parse_yaml(read_regular(path))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(
            f"cannot read config file {path}: {getattr(error, 'strerror', error)}"
        ) from error
    if not isinstance(content, dict | None):
        raise ConfigError(
            f"config file {path} must hold KEY: value pairs, not {type(content).__name__}"
        )
    return content or {}


def flatten(tree: Mapping, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields the values of nested dicts by their full names.

    Args:
        tree: Nested dicts such as {"TTA": {"STEPS": 1}}.
        prefix: Text before each name, with its dot.

    Yields:
        Pairs such as ("TTA.STEPS", 1).
    """
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def unflatten(values: Mapping[str, object]) -> dict[str, Any]:
    """Nested dicts from values by their full names: the reverse of `flatten`."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *groups, leaf = key.split(".")
        branch = tree
        for group in groups:
            branch = branch.setdefault(group, {})
        branch[leaf] = value
    return tree
