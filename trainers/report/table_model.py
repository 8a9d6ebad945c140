"""A table as data: cells in the units they are shown in, rows, blocks of rows, and notes."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Entry:
    """One cell. Several seeds have `std`, one seed may have a bootstrap interval."""

    value: float
    decimals: int = 1
    std: float | None = None
    seeds: int = 1
    low: float | None = None
    high: float | None = None
    difference: float | None = None  # against O-TPT
    better: bool | None = None  # whether that difference is an improvement
    best: bool = False
    signed: bool = False  # a difference, always with its sign
    words: str = ""  # shown in place of a number

    def _show(self, value: float) -> str:
        if self.signed:
            return f"{round(value, self.decimals) + 0.0:+.{self.decimals}f}"  # + 0.0 avoids -0.0
        return f"{value:.{self.decimals}f}"

    @property
    def text(self) -> str:
        return self.words or ("–" if np.isnan(self.value) else self._show(self.value))

    @property
    def spread(self) -> str:
        """`± std` over seeds, or the interval, or nothing: a value that is not a number has no spread."""
        if self.std is not None:
            return f"± {self.std:.{self.decimals}f}" if np.isfinite([self.value, self.std]).all() else ""
        if self.low is None or self.high is None or not np.isfinite([self.value, self.low, self.high]).all():
            return ""
        return f"[{self._show(self.low)}, {self._show(self.high)}]"

    @property
    def delta(self) -> str:
        return "" if self.difference is None else f"{self.difference:+.{self.decimals}f}"


def text_entry(words: str) -> Entry:
    """A cell that holds words."""
    return Entry(float("nan"), words=words)


@dataclass(frozen=True)
class TableRow:
    label: str
    method: str
    entries: Sequence[Entry | None]
    published: bool = False
    cite: str = ""  # BibTeX key of a published row


@dataclass(frozen=True)
class RowBlock:
    label: str
    rows: list[TableRow]


@dataclass(frozen=True)
class Table:
    name: str  # for files and anchors
    title: str
    columns: list[str]
    blocks: list[RowBlock]
    notes: list[str] = field(default_factory=list)
