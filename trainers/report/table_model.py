"""A table as data: cells in the units they are shown in, rows, blocks of rows, and notes."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

# In place of the number of seeds, where a mean is over data sets with unequal numbers.
UNEQUAL_SEEDS = 0


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Attributes:
        value: The number, in the unit of the table; NaN is shown as a dash.
        decimals: Number of decimals that are shown.
        std: Standard deviation over seeds; None for one seed.
        seeds: Number of seeds, or UNEQUAL_SEEDS.
        low: Lower end of the interval; None if there is none. Several seeds have `std` instead.
        high: Upper end of the interval.
        difference: Difference from the baseline method; None if it is not stated.
        better: Whether that difference is an improvement; None if it is not stated.
        best: Whether it is the best of its column.
        signed: Whether the value is a difference, which is always shown with its sign.
        words: Text in place of a number.
        ranked: Whether it may be the best. False if too many images failed.
    """

    value: float
    decimals: int = 1
    std: float | None = None
    seeds: int = 1
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    better: bool | None = None
    best: bool = False
    signed: bool = False
    words: str = ""
    ranked: bool = True

    def show(self, value: float) -> str:
        """A number with the decimals of this cell."""
        if self.signed:
            return f"{round(value, self.decimals) + 0.0:+.{self.decimals}f}"  # + 0.0 avoids -0.0
        return f"{value:.{self.decimals}f}"

    @property
    def text(self) -> str:
        """The cell without spread and difference."""
        if self.words:
            return self.words
        if np.isnan(self.value):
            return "–"
        return self.show(self.value)

    @property
    def spread(self) -> str:
        """`± std` over seeds, or the interval. A value that is not a number has none."""
        if self.std is not None:
            if not np.isfinite([self.value, self.std]).all():
                return ""
            return f"± {self.std:.{self.decimals}f}"
        if self.low is None or self.high is None:
            return ""
        if not np.isfinite([self.value, self.low, self.high]).all():
            return ""
        return f"[{self.show(self.low)}, {self.show(self.high)}]"

    @property
    def delta(self) -> str:
        """The difference against the baseline with its sign; "" if there is none."""
        if self.difference is None:
            return ""
        return f"{self.difference:+.{self.decimals}f}"


def text_entry(words: str) -> Entry:
    """A cell that holds words."""
    return Entry(float("nan"), words=words)


@dataclass(frozen=True)
class TableRow:
    """One row of a table.

    Attributes:
        label: What the row is called.
        method: Name of the method.
        entries: The cells, one per column; None for an empty cell.
        published: Whether the numbers are from a publication.
        cite: BibTeX key of a published row.
    """

    label: str
    method: str
    entries: Sequence[Entry | None]
    published: bool = False
    cite: str = ""


@dataclass(frozen=True)
class RowBlock:
    """Rows below a common label, such as those of one metric."""

    label: str
    rows: list[TableRow]


@dataclass(frozen=True)
class Table:
    """A table with what is said about it.

    Attributes:
        name: Name of the table, for its files and anchors.
        title: The first sentence of a caption.
        columns: Their labels.
        blocks: Blocks of rows.
        notes: Sentences below the table. LaTeX has them in a file of their own.
        facts: What the caption says besides the title, in its second sentence: images, bins, marks.
        short_columns: Labels of the columns in LaTeX, where `columns` are much wider than the
            cells; () if they are not.
        short_columns_fact: What these labels mean, for the caption.
    """

    name: str
    title: str
    columns: list[str]
    blocks: list[RowBlock]
    notes: list[str] = field(default_factory=list)
    facts: Sequence[str] = ()
    short_columns: Sequence[str] = ()
    short_columns_fact: str = ""

    @property
    def caption(self) -> str:
        """The title and the facts, in at most two sentences."""
        sentences = [f"{self.title.rstrip('.')}."]
        if self.facts:
            sentences.append(f"{'; '.join(self.facts)}.")
        return " ".join(sentences)


def with_short_columns(table: Table) -> Table:
    """The table with the short labels of its columns and a caption that explains them."""
    if not table.short_columns:
        return table
    facts = [*table.facts, table.short_columns_fact]
    return replace(table, columns=list(table.short_columns), facts=facts)


def fact_sentences(facts: Sequence[str]) -> str:
    """The facts of a caption as sentences of a note."""
    sentences = [f"{fact[0].upper()}{fact[1:]}." for fact in facts]
    return " ".join(sentences)
