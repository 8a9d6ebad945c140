"""What a run's files must hold before the report believes them.

Runs are edited by hand, cut off, copied from other projects or made to do harm. Each is checked when it is read, so
that everything behind this file works on values of the right kind, and a DataError names the file and the field.
"""
from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from ...datasets.utils.errors import ConfigError, DataError, one_line
from ...datasets.utils.files import open_regular, read_regular
from ..config.build import fitted
from ..config.defaults import get_cfg_default
from ..config.roles import leaves
from ..config.safe_yaml import parse_yaml
from ..functional.arrays import Array

LARGEST = 50_000_000  # bytes of results.json or config.yaml; with the names of 20,000 classes it has one
DEEPEST = 20  # levels of nesting
MOST_SETTINGS = 10_000
LONGEST_NAME = 1000  # letters
JOINERS = "\u200c\u200d"  # not printable by themselves, but parts of words and of emoji


def text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def name(value: object) -> bool:
    """Of a method, a data set or a backbone: it stands in titles, on the terminal and in the log."""
    return text(value) and bool(value.strip()) and all(sign.isprintable() or sign in JOINERS for sign in value)


def number(low: float = -math.inf, high: float = math.inf) -> Callable[[object], bool]:
    return lambda v: isinstance(v, int | float) and not isinstance(v, bool) and low <= v <= high


def whole(low: int, high: int) -> Callable[[object], bool]:
    return lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high


def truth(value: object) -> bool:
    return isinstance(value, bool)


def names(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(map(text, value)))


def table(value: object) -> bool:
    return value is None or (isinstance(value, dict) and all(map(text, value)))


PERCENT = number(0, 100)
REQUIRED: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "trainer": (name, "a name"), "dataset": (name, "a name"), "backbone": (name, "a name"),
    "seed": (whole(0, 2**63), "a whole number from 0"), "n": (whole(1, 10**10), "a whole number above 0"),
    "classes": (whole(1, 10**7), "a whole number above 0"), "accuracy": (PERCENT, "a percentage"),
    "ece": (PERCENT, "a percentage"), "bins": (whole(1, 10**6), "a whole number above 0"),
}
OPTIONAL: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "split": (name, "a name"), "data_hash": (text, "text"), "weights_hash": (text, "text"),
    "classnames": (names, "a list of texts"), "versions": (table, "pairs of texts"), "device": (text, "text"),
    "precision": (text, "text"), "finished": (text, "text"), "seconds_per_image": (number(0), "a number from 0"),
    "zero_shot": (truth, "true or false"), "complete": (truth, "true or false"),
}


def read_results(path: Path) -> dict:
    """The content of results.json."""
    results = _parse(path, lambda content: json.loads(content, parse_constant=_refuse_constant), "JSON")
    if not isinstance(results, dict):
        raise DataError(f"{path} holds no results but {one_line(type(results).__name__)}; run the evaluation again")
    if missing := [key for key in REQUIRED if key not in results]:
        raise DataError(f"{path} is not complete: it lacks {', '.join(missing)}")
    for key, (fits, wanted) in {**REQUIRED, **OPTIONAL}.items():
        if key in results and not fits(results[key]):
            value = one_line(repr(results[key]), 80)
            raise DataError(f"{path}: {key} must be {wanted}, not {value}; the run is left out")
    if not results.get("complete", True):
        raise DataError(f"{path} is not complete")
    return results


def read_settings(path: Path) -> dict[str, object]:
    """config.yaml as flat `KEY: value` pairs of plain values, each of the type that the key has by default."""
    tree = _parse(path, parse_yaml, "plain yaml")
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise DataError(f"{path} must hold KEY: value pairs, not {one_line(repr(tree), 80)}; the run is left out")
    known, settings = _defaults(), {}
    for key, value in _flat(tree, path):
        try:
            settings[key] = fitted(key, value, known[key], str(path)) if key in known else value
        except ConfigError as error:
            raise DataError(f"{error}; the run is left out") from error
        if not isinstance(settings[key], str | int | float | bool | list | None):
            raise DataError(f"{path}: {one_line(key, 80)} is a {type(value).__name__}, not a plain value")
    return settings


def read_columns(path: Path, shapes: Mapping[str, tuple], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """Arrays of predictions.npz by name, those of `optional` only where they are. `shapes[name]` is the kind of number
    ("f" or "i") and the shape, in which None stands for any length. What a header claims is checked before memory is
    given to it."""
    columns = {}
    with open_regular(path) as packed, zipfile.ZipFile(packed) as archive:
        members = {member.filename: member for member in archive.infolist()}
        for column, (kind, *shape) in shapes.items():
            member = members.get(f"{column}.npy")
            if member is None and column in optional:
                continue
            if member is None:
                raise DataError(f"it has no array '{column}'")
            with archive.open(member) as file:
                found, stored = _header(file)
                fits = len(found) == len(shape) and all(b in (None, a) for a, b in zip(found, shape, strict=True))
                if not fits or stored.kind not in {"f": "fiu", "i": "iu", "b": "biu"}[kind]:
                    raise DataError(f"'{column}' is {stored} of shape {found}, results.json says {tuple(shape)}")
                if math.prod(found) * stored.itemsize > member.file_size:
                    raise DataError(f"'{column}' claims {math.prod(found):,} numbers and holds fewer")
            with archive.open(member) as file:
                columns[column] = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):  # to the end, where the checksum is looked at
                    raise DataError(f"'{column}' holds more than its header says")
    return columns


def _header(file) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _parse(path: Path, parse: Callable[[str], object], kind: str) -> object:
    """A text file's content, whatever it does to its parser; without lone surrogates, not too deep, not endless."""
    try:
        if path.stat().st_size > LARGEST:
            raise DataError(f"{path} has more than {LARGEST:,} bytes; the run is left out")
        content = read_regular(path).decode()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not valid {kind}: it is no UTF-8 text") from error
    try:
        found = parse(content)
    except Exception as error:  # deep nesting, numbers of a million digits, dates that are none: of every kind
        reason = one_line(error, 120) or type(error).__name__
        raise DataError(f"{path} is not valid {kind} ({reason}); run the evaluation again") from error
    _check_plain(found, path)
    return found


def _check_plain(tree: object, path: Path) -> None:
    """Refuses what no page or table can show. Visits each container once, so that one that holds itself has an end."""
    waiting, seen = [(tree, 0)], set()
    while waiting:
        node, depth = waiting.pop()
        if isinstance(node, str) and not _encodable(node):
            raise DataError(f"{path} holds text that is no valid Unicode; the run is left out")
        if isinstance(node, int) and abs(node) > 2**64:  # no formatter, float or array takes it
            raise DataError(f"{path} holds a number of {node.bit_length()} bits; the run is left out")
        if isinstance(node, dict | list):
            if depth > DEEPEST:
                raise DataError(f"{path} is nested deeper than {DEEPEST} levels; the run is left out")
            if id(node) not in seen:
                seen.add(id(node))
                parts = [*node, *node.values()] if isinstance(node, dict) else node
                waiting += [(part, depth + 1) for part in parts]


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def _flat(tree: dict, path: Path) -> list[tuple[str, object]]:
    """Leaves by their dotted keys, in order. A tree whose parts refer to each other ends at MOST_SETTINGS."""
    found, waiting = [], [("", tree)]
    while waiting:
        prefix, node = waiting.pop()
        for key, value in reversed(node.items()):
            waiting += [(f"{prefix}{key}.", value)] if isinstance(value, dict) else []
        found += [(f"{prefix}{key}", value) for key, value in node.items() if not isinstance(value, dict)]
        if len(found) + len(waiting) > MOST_SETTINGS or len(prefix) > LONGEST_NAME:
            raise DataError(f"{path} holds more than {MOST_SETTINGS:,} settings; the run is left out")
    return found


@cache
def _defaults() -> dict[str, object]:
    return leaves(get_cfg_default())
