"""Runs arranged as rows × columns: one set of images a column, one method or setting a row, seeds in a cell."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...datasets.base import dataset_info
from ..registry import method_info
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
    name: str = ""  # where the method's own label would mislead

    @property
    def label(self) -> str:
        name = self.name or method_info(self.method).label
        return f"{name}, {self.variant}" if self.variant else name


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
    elsewhere: frozenset[Column] = frozenset()  # columns of the other tables beside which this one is read

    def column_label(self, column: Column) -> str:
        """The data set; where it was run on several sets of images, with what tells them apart."""
        if not self._has_several(column):
            return dataset_info(column.dataset).label
        label = f"{dataset_info(column.dataset).label}, {column.n:,} images"
        twins = [other for other in self.alike(column) if other.n == column.n]
        return label if len(twins) == 1 else f"{label} ({column.data_hash[:6] or twins.index(column) + 1})"

    def column_title(self, column: Column) -> str:
        """The label, with the number of images wherever it is not part of it."""
        label = self.column_label(column)
        return label if self._has_several(column) else f"{label}, {column.n:,} images"

    def _has_several(self, column: Column) -> bool:
        """Whether the data set's name alone does not tell which of its images are meant."""
        return len({other for other in (*self.columns, *self.elsewhere) if other.dataset == column.dataset}) > 1

    def alike(self, column: Column) -> list[Column]:
        """The columns of one data set. Their images may overlap."""
        return [other for other in self.columns if other.dataset == column.dataset]

    @property
    def bins(self) -> int:
        """With which all of its figures were computed."""
        return next(iter(self.cells.values()))[0].bins

    def images(self, columns: Sequence[Column] | None = None) -> str:
        """What some columns, or all, were measured on."""
        shown = [f"{dataset_info(column.dataset).label} {column.n:,}" for column in columns or self.columns]
        return f"Test images: {', '.join(shown)}."

    @property
    def of_first_seed(self) -> str:
        """What a caption adds that is about single runs, where there are several of a kind."""
        return " First seed of each." if any(len(cell) > 1 for cell in self.cells.values()) else ""

    def common_columns(self) -> list[Column]:
        """The columns that every row has, the only ones an average may use; of each data set the one with most images,
        since its others may share images with it. Methods that are trained, which happens on single data sets, need
        not have them. Where no column is everybody's, those of the rows that share the most popular one: a stray run
        does not keep the others from being compared."""
        rows = [row for row in self.rows if not method_info(row.method).trained] or self.rows
        common = self._columns_of(rows)
        if not common:
            popular = max(self.columns, key=lambda column: (len(self.rows_on([column])), column.n))
            sharing = [row for row in self.rows_on([popular]) if row in rows]
            if sum(not method_info(row.method).zero_shot for row in sharing) > 1:
                common = self._columns_of(sharing)
        largest = {}
        for column in sorted(common, key=lambda column: column.n):
            largest[column.dataset] = column
        return [column for column in common if largest[column.dataset] == column]

    def main_columns(self) -> list[Column]:
        """Of each data set the column that stands for it: the common one, else the one of most rows."""
        common = self.common_columns()
        best = {}
        for column in sorted(self.columns, key=lambda one: (one in common, len(self.rows_on([one])), one.n)):
            best[column.dataset] = column
        return [column for column in self.columns if best[column.dataset] == column]

    def _columns_of(self, rows: Sequence[Row]) -> list[Column]:
        return [column for column in self.columns if all((row, column) in self.cells for row in rows)]

    def rows_on(self, columns: Sequence[Column]) -> list[Row]:
        """The rows that have all of these columns."""
        return [row for row in self.rows if all((row, column) in self.cells for column in columns)]

    def mean(self, row: Row, columns: Sequence[Column], metric: str) -> float:
        """In fractions: over seeds, then over columns."""
        cells = [self.cells[row, column] for column in columns]
        return float(np.mean([np.mean([m.metrics[metric].value for m in cell]) for cell in cells]))
