"""Yaml text as plain data: no code, no bombs, and one kind of exception for all that it cannot be."""
from __future__ import annotations

from copy import deepcopy
from functools import lru_cache

import yaml

from ...datasets.utils.errors import one_line

LARGEST = 1_000_000  # letters of a text, or values that it stands for
OFTEN_READ = 10_000  # letters: a file of settings that is kept in mind


def parse_yaml(text: str | bytes) -> object:
    """The plain data in yaml text. What looks like a date or a number but is none (`2024-13-45`, `0x_`), a wrong tag
    (`!!int x`) or a thousand brackets end in exceptions of many kinds inside the library: here they are one."""
    try:
        if len(text) > LARGEST:
            raise yaml.YAMLError(f"it is longer than {LARGEST:,} letters")
        if (b"&" if isinstance(text, bytes) else "&") in text:
            written_out(yaml.compose(text, Loader=yaml.SafeLoader), {})
        return deepcopy(load(text)) if len(text) <= OFTEN_READ else yaml.safe_load(text)
    except Exception as error:
        raise yaml.YAMLError(one_line(error, 300) or type(error).__name__) from error


@lru_cache(maxsize=200)
def load(text: str | bytes) -> object:
    """A plan of many runs reads the same few files thousands of times; a copy is made in a tenth of the time."""
    return yaml.safe_load(text)


def written_out(node: yaml.Node | None, known: dict[int, int]) -> int:
    """How many values a yaml node stands for when all its aliases (`*x`) are written out. A few lines of aliases of
    aliases stand for more than any memory holds, and one of itself for infinitely many."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = LARGEST  # while it is being counted
        parts = [part for pair in node.value for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(written_out(part, known) for part in parts)
    if known[id(node)] >= LARGEST:
        raise yaml.YAMLError("its aliases stand for each other without end")
    return known[id(node)]
