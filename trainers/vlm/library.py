"""Libraries that are optional: their import, and their errors in one line."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from ...datasets.utils.errors import UserError, WeightsError, one_line


def import_library(name: str, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise WeightsError(f"this backbone needs {name}: pip install promptcal[{extra}]") from error


@contextmanager
def library_errors(problem: str, remedy: str) -> Iterator[None]:
    """Any error of a library (no network, damaged files, shapes that do not fit) as one line with the remedy."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        lines = (str(error).strip() or type(error).__name__).splitlines()
        raise WeightsError(f"{problem} ({one_line(lines[0], 300)}): {remedy}") from error
