"""Checks of results.json before anything is computed from it.

A run folder may be edited by hand, truncated, written by another project, or hostile. A DataError
names the field.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...datasets.utils.errors import DataError, one_line
from ...datasets.utils.files import is_printable, read_regular

NUMBER = "a number from 0"
COUNT = "a whole number above 0"
FROM_ZERO = "a whole number from 0"


# What a field may be. `type(value) is int` excludes True and False, which are instances of int.


def is_text(value: Any) -> bool:
    """Whether a value is a text of at most 1,000 letters."""
    return isinstance(value, str) and len(value) <= 1000


def is_name(value: Any) -> bool:
    """Whether a value is a text that a table can show."""
    return is_text(value) and bool(value.strip()) and is_printable(value)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number from 0."""
    return type(value) in (int, float) and 0 <= value <= 1e300


def is_count(value: Any) -> bool:
    """Whether a value is a whole number above 0."""
    return type(value) is int and 1 <= value <= 10**10


def is_from_zero(value: Any) -> bool:
    """Whether a value is a whole number from 0."""
    return type(value) is int and 0 <= value <= 2**63


def is_list_of_texts(value: Any) -> bool:
    """Whether a value is a list of texts, or null."""
    return value is None or (isinstance(value, list) and all(map(is_text, value)))


def is_pairs_of_texts(value: Any) -> bool:
    """Whether a value is a mapping of texts, or null."""
    return value is None or (isinstance(value, dict) and all(map(is_text, value.values())))


def is_bool(value: Any) -> bool:
    """Whether a value is true or false."""
    return isinstance(value, bool)


def is_mapping(value: Any) -> bool:
    """Whether a value is a mapping."""
    return isinstance(value, dict)


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": is_text,
    "a name": is_name,
    NUMBER: is_number,
    COUNT: is_count,
    FROM_ZERO: is_from_zero,
    "a list of texts": is_list_of_texts,
    "pairs of texts": is_pairs_of_texts,
    "true or false": is_bool,
    "a record": is_mapping,
}
REQUIRED = {
    "trainer": "a name", "dataset": "a name", "backbone": "a name", "seed": FROM_ZERO, "n": COUNT,
    "classes": COUNT, "bins": COUNT, "accuracy": NUMBER, "ece": NUMBER,
}
OPTIONAL = {
    "split": "a name",
    "data_hash": "text",
    "weights_hash": "text",
    "device": "text",
    "precision": "text",
    "finished": "text",
    "classnames": "a list of texts",
    "versions": "pairs of texts",
    "plugins": "pairs of texts",
    "zero_shot": "true or false",
    "complete": "true or false",
    "seconds_per_image": NUMBER,
    "adapt_seconds_per_image": NUMBER,
    "peak_device_bytes": NUMBER,
    "classes_in_64": NUMBER,
    "record": "a record",
    "files": "pairs of texts",
    "exported": "true or false",
}


def read_results(path: Path) -> dict[str, Any]:
    """The content of results.json, checked.

    Raises:
        DataError: If it cannot be read, is not complete, or has a field of a wrong type.
    """
    results = read_plain_json(path)
    if not isinstance(results, dict):
        results = {}
    missing = [key for key in REQUIRED if key not in results]
    if missing:
        raise DataError(f"{path.name} is not complete: it lacks {', '.join(missing)}")
    if not results.get("complete", True):
        raise DataError(f"{path.name} is not complete")
    for key, kind in {**REQUIRED, **OPTIONAL}.items():
        if key in results and not KINDS[kind](results[key]):
            value = one_line(repr(results[key]), 80)
            raise DataError(f"{path.name}: {key} must be {kind}, not {value}")
    return results


def read_plain_json(path: Path) -> Any:
    """The content of a JSON file that a page can show.

    Raises:
        DataError: If the file cannot be read or is not JSON.
    """
    try:
        content = json.loads(read_regular(path).decode())
        # Raises for lone surrogates, and for nesting without end.
        json.dumps(content, ensure_ascii=False, default=str).encode()
    except OSError as error:
        raise DataError(f"{path.name}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        words = one_line(error, 120)
        raise DataError(
            f"{path.name} is not valid JSON ({words}); run the evaluation again"
        ) from error
    return content
