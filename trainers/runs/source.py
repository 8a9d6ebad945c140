"""The source of a method: a method that was edited is another method."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ... import __version__
from ...datasets.utils.source import (
    hash_files,
    imported_files,
    is_plugin,
    plugin_source,
    source_file,
)

PACKAGE = __name__.partition(".trainers.")[0]
FORMULAS = Path(__file__).resolve().parents[1] / "functional"
LIFE_CYCLE = f"{PACKAGE}.trainers.base"  # of runs: it holds no formula of a method


def method_source(classes: Sequence[type]) -> dict[str, str]:
    """The source of a method and of the terms that are added to it.

    Args:
        classes: The method's class and those of added regularisers.

    Returns:
        version: Of this package, to whose files `hash` belongs.
        hash: Of the files of this package that define the classes, and of the formulas in
            `trainers/functional` that these files import.
        plugin: Of the files outside this package: those of the classes and the modules of their
            own folders that they import. Empty for a built-in method.
    """
    built_in: set[Path] = set()
    for method in classes:
        for cls in method.__mro__:
            if cls is object or is_plugin(cls) or cls.__module__ == LIFE_CYCLE:
                continue
            path = source_file(cls)
            if path is not None:
                built_in |= imported_files(path, FORMULAS)
    return {"version": __version__, "hash": hash_files(built_in), "plugin": plugin_source(classes)}
