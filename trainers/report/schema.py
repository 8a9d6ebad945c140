"""Checks of results.json and config.yaml before anything is computed from them.

A run folder may be edited by hand, truncated, written by another project, or hostile. A DataError names the file and
the field.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ...datasets.utils.errors import ConfigError, DataError, one_line
from ...datasets.utils.files import is_printable, read_regular
from ..config.build import cast_like_default
from ..config.roles import leaves
from ..config.safe_yaml import flatten, read_yaml
from ..config.settings import get_cfg_default
from ..registry import TRAINER_REGISTRY

NUMBER, COUNT = "a number from 0", "a whole number above 0"

KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda v: isinstance(v, str) and len(v) <= 1000,
    "a name": lambda v: KINDS["text"](v) and v.strip() and is_printable(v),
    NUMBER: lambda v: type(v) in (int, float) and 0 <= v <= 1e300,
    COUNT: lambda v: type(v) is int and 1 <= v <= 10**10,
    "a whole number from 0": lambda v: type(v) is int and 0 <= v <= 2**63,
    "a list of texts": lambda v: v is None or (isinstance(v, list) and all(map(KINDS["text"], v))),
    "pairs of texts": lambda v: v is None or (isinstance(v, dict) and all(map(KINDS["text"], v.values()))),
    "true or false": lambda v: isinstance(v, bool),
}
REQUIRED = {
    "trainer": "a name", "dataset": "a name", "backbone": "a name", "seed": "a whole number from 0", "n": COUNT,
    "classes": COUNT, "bins": COUNT, "accuracy": NUMBER, "ece": NUMBER,
}
OPTIONAL = {
    "split": "a name", "data_hash": "text", "weights_hash": "text", "device": "text", "precision": "text",
    "finished": "text", "classnames": "a list of texts", "versions": "pairs of texts", "plugins": "pairs of texts",
    "zero_shot": "true or false", "complete": "true or false", "seconds_per_image": NUMBER,
    "adapt_seconds_per_image": NUMBER, "classes_in_64": NUMBER,
}


def read_results(path: Path) -> dict:
    """The content of results.json."""
    try:
        results = json.loads(read_regular(path).decode())
        _check_text(results)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({one_line(error, 120)}); run the evaluation again") from error
    missing = [key for key in REQUIRED if key not in results] if isinstance(results, dict) else list(REQUIRED)
    if missing or not results.get("complete", True):
        raise DataError(f"{path} is not complete{': it lacks ' if missing else ''}{', '.join(missing)}")
    for key, kind in {**REQUIRED, **OPTIONAL}.items():
        if key in results and not KINDS[kind](results[key]):
            raise DataError(f"{path}: {key} must be {kind}, not {one_line(repr(results[key]), 80)}; "
                            "the run is left out")
    return results


def read_settings(path: Path) -> dict[str, object]:
    """config.yaml as flat `KEY: value` pairs, each of the type that the key has by default."""
    try:
        settings = dict(flatten(read_yaml(path)))
        _check_text(settings)
        known = _defaults(str(settings.get("TRAINER.NAME")))
        if not settings.keys() <= known.keys():  # for instance another method's weight in TRAINER.REGULARISERS
            known = _defaults()
        for key, value in settings.items():
            settings[key] = value = cast_like_default(key, value, known[key], str(path)) if key in known else value
            if isinstance(value, int) and abs(value) > 2**64:
                raise ConfigError(f"{path}: {one_line(key, 80)} is too large")
        return settings
    except ConfigError as error:
        raise DataError(f"{error}; the run is left out") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not plain yaml ({one_line(error, 120)}); the run is left out") from error


def _check_text(content: object) -> None:
    """Raises a ValueError or RecursionError for what no page can show: lone surrogates, endless or deep nesting."""
    json.dumps(content, ensure_ascii=False, default=str).encode()


@cache
def _defaults(method: str = "") -> dict[str, object]:
    return leaves(get_cfg_default([method] if method in TRAINER_REGISTRY else TRAINER_REGISTRY))
