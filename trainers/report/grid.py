"""Runs arranged as rows × columns: one set of images a column, one method or setting a row, seeds in a cell."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...datasets.base import dataset_label
from ..registry import is_trained, method_label
from .measure import Measured


@dataclass(frozen=True)
class Column:
    """One set of test images. Runs on other images of the same data set get a column of their own."""

    dataset: str
    data_hash: str
    n: int


@dataclass(frozen=True)
class Row:
    """A method, and where settings are compared, which one."""

    method: str
    variant: str = ""

    @property
    def label(self) -> str:
        return f"{method_label(self.method)}, {self.variant}" if self.variant else method_label(self.method)


@dataclass
class Comparison:
    """Runs of one backbone arranged as rows × columns; each cell holds the runs of its seeds."""

    title: str
    backbone: str
    columns: list[Column]
    rows: list[Row]
    cells: dict[tuple[Row, Column], list[Measured]]
    swept: str = ""  # the key whose values the rows compare; "" in the main table
    notes: list[str] = field(default_factory=list)

    def column_label(self, column: Column) -> str:
        alike = [other for other in self.columns if other.dataset == column.dataset]
        label = dataset_label(column.dataset)
        return label if len(alike) == 1 else f"{label} #{alike.index(column) + 1}"

    @property
    def bins(self) -> int:
        """With which all of its figures were computed."""
        return next(iter(self.cells.values()))[0].bins

    def images(self, columns: Sequence[Column] | None = None) -> str:
        """What the figures of some columns, or of all, were measured on."""
        return f"Test images: {', '.join(f'{self.column_label(c)} {c.n:,}' for c in columns or self.columns)}."

    def common_columns(self) -> list[Column]:
        """The columns that every row has, the only ones an average may use. Methods that are trained, which happens on
        single data sets, need not have them."""
        rows = [row for row in self.rows if not is_trained(row.method)] or self.rows
        return [column for column in self.columns if all((row, column) in self.cells for row in rows)]
