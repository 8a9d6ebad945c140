"""A figure of the report with its name and its words, and what all of them are made with."""
from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ...datasets.utils.errors import one_line
from .grid import Column, Comparison, Row
from .measure import Measured

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Picture:
    """A figure with its file name and one sentence that tells what to look for."""

    name: str
    caption: str
    figure: Figure


def attempted(make: Callable[[], Iterable[Picture]]) -> Iterator[Picture]:
    """What `make` draws; where it cannot, a line in the log: the other figures and the tables are still wanted."""
    try:
        yield from make()
    except Exception as error:
        logger.warning("a figure is left out: %s", one_line(error, 200), exc_info=logger.isEnabledFor(logging.DEBUG))


def cells_of(comparison: Comparison, row: Row) -> list[tuple[Column, list[Measured]]]:
    """The cells of a row that hold runs."""
    return [(c, comparison.cells[row, c]) for c in comparison.columns if (row, c) in comparison.cells]


def in_percent(cell: list[Measured], metric: str) -> float:
    """The mean over a cell's seeds."""
    return 100 * float(np.mean([m.metrics[metric].value for m in cell]))


def slug(text: str) -> str:
    """A label as a part of a file's name."""
    return re.sub(r"\W+", "_", text.lower(), flags=re.ASCII).strip("_") or "data"
