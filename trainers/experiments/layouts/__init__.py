"""How an experiment's results are laid out: one file a layout, found by its name.

A layout is a function `show(material)` that gives tables and pictures; pictures are drawn as they are asked for.
Where methods are ranked by it, the file also says `RANKS_METHODS = True`. Adding a layout is adding a file.
"""
from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ...report.gallery import NamedFigure
from ...report.table_model import Table

Shown = tuple[list[Table], Iterable[NamedFigure]]


def layout_names() -> list[str]:
    """All layouts, without importing any."""
    files = [file for folder in __path__ for file in Path(folder).glob("*.py")]
    return sorted(file.stem for file in files if file.stem != "__init__")


def find_layout(name: str) -> ModuleType:
    return import_module(f".{name}", __package__)
