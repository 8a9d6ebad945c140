"""Checks of a run's files before anything is computed from them.

A run folder may be edited by hand, truncated, written by another project, or hostile. Each file is checked when it is
read; a DataError names the file and the field.
"""
from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...datasets.utils.errors import ConfigError, DataError, one_line
from ...datasets.utils.files import open_regular, read_regular
from ..config.build import fitted
from ..config.defaults import get_cfg_default
from ..config.roles import leaves
from ..config.safe_yaml import flatten, parse_yaml
from ..functional.arrays import Array

MAX_BYTES = 50_000_000  # of results.json or config.yaml; the names of 20,000 classes take one million
MAX_SETTINGS = 10_000
JOINERS = "\u200c\u200d"  # not printable on their own, but parts of words and emoji
NUMBER, COUNT = "a number from 0", "a whole number above 0"

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda v: isinstance(v, str) and len(v) <= 1000,
    "a name": lambda v: KINDS["text"](v) and v.strip() and all(c.isprintable() or c in JOINERS for c in v),
    NUMBER: lambda v: type(v) in (int, float) and 0 <= v <= 1e300,
    COUNT: lambda v: type(v) is int and 1 <= v <= 10**10,
    "a whole number from 0": lambda v: type(v) is int and 0 <= v <= 2**63,
    "a list of texts": lambda v: v is None or (isinstance(v, list) and all(map(KINDS["text"], v))),
    "pairs of texts": lambda v: v is None or (isinstance(v, dict) and all(map(KINDS["text"], [*v, *v.values()]))),
    "true or false": lambda v: isinstance(v, bool),
}
REQUIRED = {
    "trainer": "a name", "dataset": "a name", "backbone": "a name", "seed": "a whole number from 0", "n": COUNT,
    "classes": COUNT, "bins": COUNT, "accuracy": NUMBER, "ece": NUMBER,
}
OPTIONAL = {
    "split": "a name", "data_hash": "text", "weights_hash": "text", "device": "text", "precision": "text",
    "finished": "text", "classnames": "a list of texts", "versions": "pairs of texts", "zero_shot": "true or false",
    "complete": "true or false", "seconds_per_image": NUMBER, "adapt_seconds_per_image": NUMBER,
}


def read_results(path: Path) -> dict:
    """The content of results.json."""
    results = _parse(path, json.loads, "JSON")
    if not isinstance(results, dict):
        raise DataError(f"{path} holds no results but {one_line(type(results).__name__)}; run the evaluation again")
    if missing := [key for key in REQUIRED if key not in results]:
        raise DataError(f"{path} is not complete: it lacks {', '.join(missing)}")
    for key, kind in {**REQUIRED, **OPTIONAL}.items():
        if key in results and not KINDS[kind](results[key]):
            raise DataError(f"{path}: {key} must be {kind}, not {one_line(repr(results[key]), 80)}; "
                            "the run is left out")
    if not results.get("complete", True):
        raise DataError(f"{path} is not complete")
    return results


def read_settings(path: Path) -> dict[str, object]:
    """config.yaml as flat `KEY: value` pairs of plain values, each of the type that the key has by default."""
    tree = _parse(path, parse_yaml, "plain yaml")
    if not isinstance(tree, dict | None):
        raise DataError(f"{path} must hold KEY: value pairs, not {one_line(repr(tree), 80)}; the run is left out")
    known, settings = _defaults(), dict(flatten(tree or {}))
    if len(settings) > MAX_SETTINGS:
        raise DataError(f"{path} holds more than {MAX_SETTINGS:,} settings; the run is left out")
    for key, value in settings.items():
        try:
            settings[key] = fitted(key, value, known[key], str(path)) if key in known else value
        except ConfigError as error:
            raise DataError(f"{error}; the run is left out") from error
        if not all(map(_is_plain, value if isinstance(value, list) else [settings[key]])):
            raise DataError(f"{path}: {one_line(key, 80)} is not a plain value; the run is left out")
    return settings


def read_columns(path: Path, shapes: Mapping[str, tuple], optional: tuple[str, ...] = ()) -> dict[str, Array]:
    """Arrays of predictions.npz by name; those of `optional` may be missing. `shapes[name]` is the kind of number
    ("f", "i" or "b") and the shape, where None allows any length. Memory is allocated only after the header's claim
    is checked."""
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
                first = np.lib.format.read_magic(file) == (1, 0)
                found, _, dtype = getattr(np.lib.format, f"read_array_header_{1 if first else 2}_0")(file)
            fits = len(found) == len(shape) and all(b in (None, a) for a, b in zip(found, shape, strict=True))
            if not fits or dtype.kind not in {"f": "fiu", "i": "iu", "b": "biu"}[kind]:
                raise DataError(f"'{column}' is {dtype} of shape {found}, results.json says {tuple(shape)}")
            if math.prod(found) * dtype.itemsize > member.file_size:
                raise DataError(f"'{column}' claims {math.prod(found):,} numbers and holds fewer")
            with archive.open(member) as file:
                columns[column] = np.lib.format.read_array(file, allow_pickle=False)
                if file.read(1):  # reading to the end also checks the checksum
                    raise DataError(f"'{column}' holds more than its header says")
    return columns


def _parse(path: Path, parse: Callable[[str], object], kind: str) -> object:
    """The content of a text file. Parsers raise exceptions of many types on hostile input; here they are one."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path} has more than {MAX_BYTES:,} bytes; the run is left out")
        content = read_regular(path).decode()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not valid {kind}: it is not UTF-8 text") from error
    try:
        found = parse(content)
        json.dumps(found, ensure_ascii=False, default=str).encode()  # refuses lone surrogates and deep nesting
    except Exception as error:
        reason = one_line(error, 120) or type(error).__name__
        raise DataError(f"{path} is not valid {kind} ({reason}); run the evaluation again") from error
    return found


def _is_plain(value: object) -> bool:
    """Whether a value can be shown and compared; larger integers overflow floats and formatters."""
    return value is None or isinstance(value, str | float) or (isinstance(value, int) and abs(value) <= 2**64)


@cache
def _defaults() -> dict[str, object]:
    return leaves(get_cfg_default())
