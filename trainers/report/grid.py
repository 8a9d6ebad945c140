"""The model of a table: rows of methods and settings, columns of test images, cells of runs.

Tables, figures and tests read it. `make_grid.py` makes it of measured runs.
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...datasets.base import dataset_info
from ..functional.arrays import Array
from ..registry import method_info
from ..runs.record import UNKNOWN_IMAGES, RunRecord
from .measure import Measured, mean_over_seeds
from .sentences import PROMPT, dataset_words, images_words, starts_from_prompt


@dataclass(frozen=True, eq=False)
class Column:
    """One set of test images. Runs on other images of the same data set have another column.

    Attributes:
        record: Record of the first run on these images.
        n: Number of images.
        names: What these images are called; several if they were tested under several names.
        images: Identities of the images of the first run, (n,); None if they are not known.
        family: The data set as which averages count these images. It is another one if a data set
            of another name has the same images, with other labels or classes.
    """

    record: RunRecord
    n: int
    names: tuple[str, ...]
    images: Array | None = None
    family: str = ""

    @property
    def label(self) -> str:
        """As tables name it."""
        return self.names[0]

    @property
    def dataset(self) -> str:
        """The data set with its corruption, whatever part of it these images are."""
        return dataset_words(self.record)

    @property
    def order(self) -> tuple:
        """Sorts columns as the tables of papers do."""
        name = str(self.record.data["dataset"])
        if self.record.data.get("corruption"):
            name = f"{name}-{self.record.data['corruption']}-{self.record.data['severity']}"
        content = str(self.record.data["images"])
        return *dataset_info(name).order, self.dataset, -self.n, natural_key(self.label), content

    def shared_images(self, other: Column) -> int:
        """How many images another column has too; 0 if the images of one are not known."""
        if self.images is None or other.images is None:
            return 0
        if self.images is other.images:
            return len(self.images)
        return int(np.isin(self.images, other.images).sum())


@dataclass(frozen=True, eq=False)
class Row:
    """A method with its choices.

    Attributes:
        record: Record of the row's first run.
        name: The method, or what takes its place.
        prompt: The learnt prompt that it starts from, in words; "" for a hand-written one, and
            where `name` states it.
        variant: Values of the settings that a table compares, in words.
        settings: Other settings that are not defaults, in words.
        details: What tells it from another row of the same settings, in words.
        values: The settings that the table compares, by key.
    """

    record: RunRecord
    name: str
    prompt: str = ""
    variant: str = ""
    settings: str = ""
    details: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Name of the trainer."""
        return str(self.record.method["trainer"])

    @property
    def label(self) -> str:
        """All that names the row: method, prompt and settings."""
        return joined_parts(self.name, self.prompt, self.variant, self.settings, self.details)

    @property
    def protocol(self) -> str:
        """How the learnt prompt was made that it starts from; "" for a hand-written one."""
        if not starts_from_prompt(self.record):
            return ""
        return str(self.record.get(PROMPT) or "")

    @property
    def base(self) -> str:
        """The label without the values that the table compares."""
        return joined_parts(self.name, self.prompt, self.settings, self.details)


@dataclass
class Grid:
    """Runs with the same weights as rows × columns. A cell that is missing has no run.

    Attributes:
        title: Title of the table.
        backbone: The backbone, as tables name it.
        columns: The columns, in the order of papers.
        rows: The rows, in the order of papers.
        cells: The runs of each row and column, one per seed.
        stated: Settings whose values the rows compare, by key; () in a main table.
        shared: Settings that all rows share and the title states, in words.
        other_columns: Columns of the same report that this table does not have.
        notes: On runs that are not comparable.
    """

    title: str
    backbone: str
    columns: list[Column]
    rows: list[Row]
    cells: dict[tuple[Row, Column], list[Measured]]
    stated: tuple[str, ...] = ()
    shared: Sequence[str] = ()
    other_columns: Sequence[Column] = ()
    notes: list[str] = field(default_factory=list)

    @property
    def shared_words(self) -> str:
        """What a title adds about the settings that all rows share."""
        return "".join(f", {words}" for words in self.shared)

    @property
    def heading(self) -> str:
        """The backbone, and the settings that all rows share."""
        return f"{self.backbone}{self.shared_words}"

    @property
    def bins(self) -> int:
        """Number of bins of ECE, the same for all runs."""
        return next(iter(self.cells.values()))[0].bins

    @property
    def measured(self) -> list[Measured]:
        """All runs of the table."""
        measured = []
        for cell in self.cells.values():
            measured += cell
        return measured

    def column_label(self, column: Column, with_count: bool = False) -> str:
        """The data set; with the number of images if it was run on several sets of images.

        Args:
            column: The column.
            with_count: Whether the number of images is stated in any case.
        """
        label = column.label
        same_dataset = 0
        columns = [*self.columns, *self.other_columns]
        for other in columns:
            if other.dataset == column.dataset:
                same_dataset += 1
        if with_count or same_dataset > 1:
            label += f", {column.n:,} images"
        return label + twin_words(column, columns)

    def columns_of(self, dataset: str) -> list[Column]:
        """The columns of one data set. Their images may overlap."""
        return [column for column in self.columns if column.dataset == dataset]

    def images(self, columns: Sequence[Column] = ()) -> str:
        """The test images of some columns, or of all, in words."""
        return images_words(self.counts(columns))

    def counts(self, columns: Sequence[Column] = ()) -> dict[str, list[int]]:
        """The number of test images of some columns, or of all, by label.

        A data set that was run on several sets of images has several numbers.
        """
        counts: dict[str, list[int]] = {}
        for column in columns or self.columns:
            label = self.column_label(column).removesuffix(f", {column.n:,} images")
            counts.setdefault(label, []).append(column.n)
        return counts

    def common_columns(self) -> list[Column]:
        """The columns that every row has; only these may be averaged.

        Of columns that may share images the one with most images counts. Methods that are trained
        on single data sets need not have them. If no column is common to all rows, those of the
        rows that share the most frequent column are taken: one stray run does not prevent a
        comparison of the others.
        """
        rows = [row for row in self.rows if not method_info(row.method).trained]
        if not rows:
            rows = self.rows
        common = self.columns_with(rows)
        if not common and self.columns:
            frequent = max(self.columns, key=lambda column: (len(self.rows_on([column])), column.n))
            sharing = []
            adapting = 0
            for row in self.rows_on([frequent]):
                if row in rows:
                    sharing.append(row)
                    adapting += not method_info(row.method).zero_shot
            if adapting > 1:
                common = self.columns_with(sharing)
        return largest_of_each_family(common)

    def main_columns(self) -> list[Column]:
        """One column per data set: the common one, otherwise that of most rows."""
        common = self.common_columns()

        def preference(column: Column) -> tuple:
            return column not in common, -len(self.rows_on([column])), -column.n

        chosen: dict[str, Column] = {}
        for column in sorted(self.columns, key=preference):
            chosen.setdefault(column.dataset, column)
        return [column for column in self.columns if chosen[column.dataset] is column]

    def columns_with(self, rows: Sequence[Row]) -> list[Column]:
        """The columns that all of these rows have."""
        columns = []
        for column in self.columns:
            if all((row, column) in self.cells for row in rows):
                columns.append(column)
        return columns

    def rows_on(self, columns: Sequence[Column]) -> list[Row]:
        """The rows that have all of these columns."""
        rows = []
        for row in self.rows:
            if all((row, column) in self.cells for column in columns):
                rows.append(row)
        return rows

    def cells_on(self, column: Column) -> list[tuple[Row, list[Measured]]]:
        """The rows that have runs on a column, with these."""
        cells = []
        for row in self.rows:
            if (row, column) in self.cells:
                cells.append((row, self.cells[row, column]))
        return cells

    def is_ranked(self, row: Row, columns: Sequence[Column]) -> bool:
        """Whether a row may be called best on these columns.

        It may not if too many images failed in any of its runs on them.
        """
        for column in columns:
            for measured in self.cells.get((row, column), []):
                if not measured.is_ranked:
                    return False
        return True

    def mean(self, row: Row, columns: Sequence[Column], metric: str) -> float:
        """Mean of a metric over seeds, then over columns, as a fraction.

        Args:
            row: The row.
            columns: Data sets on which it has runs.
            metric: Name of the metric.
        """
        values = [mean_over_seeds(self.cells[row, column], metric) for column in columns]
        return float(np.mean(values))


def joined_parts(*parts: str) -> str:
    """The parts of a label that are not empty, with commas."""
    return ", ".join(filter(None, parts))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Sorts texts with the numbers in them by size: `2 shots` before `16 shots`."""
    parts = []
    for part in re.split(r"(\d+)", text):
        if part.isdecimal():
            parts.append((0, int(part), ""))
        else:
            parts.append((1, 0, part))
    return parts


def twin_words(column: Column, columns: Sequence[Column]) -> str:
    """What a label adds where another set of as many images has the same name; "" otherwise.

    Args:
        column: One of the columns, or one of the same images.
        columns: All columns of a report.
    """
    twins = []
    for other in columns:
        if (other.dataset, other.n, other.label) == (column.dataset, column.n, column.label):
            twins.append(other)
    if len(twins) < 2:
        return ""
    return f" ({content_words(column, twins)})"


def content_words(column: Column, twins: Sequence[Column]) -> str:
    """What tells a column from others of its name: short hashes of its images, and of its class
    names if they differ on the same images.

    Args:
        column: One of `twins`.
        twins: Columns of equal names.
    """
    data = column.record.data
    words = [short_hash(data["images"])]
    if str(data["images"]).startswith(UNKNOWN_IMAGES):
        words = ["not known by content"]
    same_images = []
    for twin in twins:
        if twin.record.data["images"] == data["images"]:
            same_images.append(twin.record.data)
    if any(other["classes"] != data["classes"] for other in same_images):
        words.append(f"class names {short_hash(data['classes'])}")
    if any(other.get("subset") != data.get("subset") for other in same_images):
        words.append(str(data.get("subset") or "the whole split"))
    return ", ".join(words)


def short_hash(content: object) -> str:
    """The first digits of a hash such as `4:5913c6…`, without the count before it."""
    return str(content).rpartition(":")[2][:6]


def largest_of_each_family(columns: Sequence[Column]) -> list[Column]:
    """Of columns that may share images the one with most images; of equal ones the first."""
    chosen: dict[str, Column] = {}
    for column in sorted(columns, key=lambda column: -column.n):
        chosen.setdefault(column.family, column)
    return [column for column in columns if chosen[column.family] is column]
