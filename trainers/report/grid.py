"""The grid of a table: rows of methods and settings, columns of test images, cells of runs.

Tables, figures and tests read it. Rows and columns are groups of records, and labels only describe
them. The README of this folder draws an example.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from ...datasets.base import dataset_info
from ..config.settings import setting_words
from ..functional.arrays import Array
from ..registry import method_info
from ..runs.record import (
    UNKNOWN_IMAGES,
    WORDS,
    RunRecord,
    canonical_json,
    group_records,
    value_label,
)
from .measure import Measured, mean_over_seeds
from .words import (
    PROMPT,
    changed_words,
    column_words,
    corruption_of,
    dataset_words,
    difference_words,
    is_untuned_prompt,
    method_name,
    prompt_words,
    starts_from_prompt,
)

# Settings that zero-shot predictions depend on.
OF_ZERO_SHOT = ("PROMPT.", "INPUT.", "MODEL.", "TRAINER.COOP.CLASS_TOKEN_POSITION")
# Share of the images of the smaller of two data sets up to which they count as two in an average.
# Some pictures are in several public data sets.
MOST_SHARED = 0.1
# What each seed or data set has of its own within one row, besides the images.
OF_EACH_SEED = ("seed", "model.prompt.hash", "method.training.images")
EXPORTED_DIGITS = 1e-4  # confidences of a copy may be rounded


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
        """The data set; with the number of images if it was run on several sets of images."""
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
        """Mean of a metric over seeds, then over columns, as a fraction."""
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


# A part of a group that becomes one row: its runs by column, with each seed at most once.
Layer = dict[Column, list[Measured]]


def grid_of(
    runs: Sequence[Measured], backbone: str, title: str, stated: Sequence[str] = (),
    other_columns: Sequence[Column] = (), hidden: Sequence[str] = (),
) -> Grid:
    """Runs with the same weights in their cells.

    Args:
        runs: Runs, in the order in which rows of one method are to be listed.
        stated: Settings whose values every label states, by key.
        other_columns: Columns of other tables of the report.
        hidden: Settings or fields that no label states, because the table does. Runs that differ
            in them on different data sets share a row.
    """
    columns, column_of = make_columns(runs)
    cells: dict[tuple[Row, Column], list[Measured]] = {}
    rows: list[Row] = []
    notes: list[str] = []
    groups = groups_by_value(runs, stated, hidden)
    # The title states the settings that all rows share, so no label repeats them.
    shared = shared_settings([group[0].record for group in groups], [*stated, *hidden])
    unstated = [*hidden, *shared]
    for group in groups:
        # A row has one run per seed and column. Further runs of a group are rows of their own.
        layers = separate_layers(group, column_of, notes)
        first_layer = layers[0]
        for number, layer in enumerate(layers):
            first = next(iter(layer.values()))[0]
            siblings = [measured for measured in runs if measured.method == first.method]
            row = make_row(first.record, stated, unstated, siblings)
            if number > 0:
                row = replace(row, details=layer_words(first_layer, layer))
            rows.append(row)
            for column, cell in layer.items():
                cells[row, column] = sorted(cell, key=lambda measured: measured.seed)
    rows, cells = with_distinct_labels(rows, cells)
    rows.sort(key=row_order)
    others = [column for column in other_columns if not is_among(column, columns)]
    return Grid(title, backbone, columns, rows, cells, tuple(stated), list(shared.values()), others,
                notes)


def make_columns(runs: Iterable[Measured]) -> tuple[list[Column], dict[Measured, Column]]:
    """The sets of images of some runs, and the column of each run."""
    groups = {}
    columns = []
    for group in group_records(runs, "column", record_of):
        first = group[0]
        names = dict.fromkeys(column_words(measured.record) for measured in group)
        n = int(first.record.data["n"])
        column = Column(first.record, n, tuple(names), first.image)
        groups[column] = group
        columns.append(column)
    columns.sort(key=lambda column: column.order)
    families = find_families(columns)
    final_columns = []
    column_of = {}
    for column in columns:
        final_column = replace(column, family=families[column.dataset])
        final_columns.append(final_column)
        for measured in groups[column]:
            column_of[measured] = final_column
    return final_columns, column_of


def find_families(columns: Sequence[Column]) -> dict[str, str]:
    """For each data set the first one that has the same images, which may be itself.

    Images of different corruptions are different images, so that only columns of one corruption
    are compared.
    """
    families: dict[str, str] = {}
    for position, column in enumerate(columns):
        families.setdefault(column.dataset, column.dataset)
        for earlier in columns[:position]:
            if families[earlier.dataset] == families[column.dataset]:
                continue
            if corruption_of(earlier.record) != corruption_of(column.record):
                continue
            if (
                earlier.shared_images(column) > MOST_SHARED * min(earlier.n, column.n)
                or may_be_of_1_0(earlier, column)
            ):
                families[column.dataset] = families[earlier.dataset]
    return families


def may_be_of_1_0(first: Column, second: Column) -> bool:
    """Whether one column was made with version 1.0 and may have the images of the other.

    Version 1.0 did not know images by content, and called a folder of images by its name and a hash
    of its path. As many images of the same classes, read in the same way, may be the same.
    """
    if first.record.is_1_0 == second.record.is_1_0 or first.n != second.n:
        return False
    is_same_reader = first.record.data["dataset"] == second.record.data["dataset"]
    return is_same_reader and first.record.data["classes"] == second.record.data["classes"]


def is_among(column: Column, columns: Sequence[Column]) -> bool:
    """Whether one of the columns has the same images."""
    return any(column.record.is_same(other.record, "column") for other in columns)


def record_of(measured: Measured) -> RunRecord:
    return measured.record


def groups_by_value(
    runs: Sequence[Measured], stated: Sequence[str], hidden: Sequence[str],
) -> list[list[Measured]]:
    """Groups of runs that may be in one row.

    A row that states the value of a setting has the runs with this value, whether they were given
    it or it is the default of their data set.

    Args:
        stated: Settings whose values every label states, by key.
        hidden: Settings or fields in which the runs of one row may differ.
    """
    by_method: dict[str, list[Measured]] = {}
    for measured in runs:
        by_method.setdefault(measured.method, []).append(measured)
    groups: list[list[Measured]] = []
    for alike in group_records(runs, "row", record_of, without=[*hidden, *stated]):
        by_value: dict[str, list[Measured]] = {}
        for measured in alike:
            siblings = by_method[measured.method]
            values = stated_values(stated, measured.record, siblings)
            by_value.setdefault(canonical_json(values), []).append(measured)
        groups += by_value.values()
    return groups


def stated_values(
    stated: Sequence[str], record: RunRecord, siblings: Sequence[Measured],
) -> dict[str, Any]:
    """The values of some settings in a run, without those that the run has not.

    Args:
        stated: The settings, by key.
        siblings: Runs of the same method, one of which may know the default of a setting.
    """
    values = {}
    for key in stated:
        value = value_of(key, record, siblings)
        if value is not None:
            values[key] = value
    return values


def value_of(key: str, record: RunRecord, others: Iterable[Measured] = ()) -> Any:
    """The value of a setting in a run; None if the run has no such setting.

    Args:
        others: Runs that may know the default of the setting.
    """
    if key in record.changed:
        return value_label(record.changed[key][1])
    if key in record.method["settings"]:
        return record.method["settings"][key]
    # Settings whose value a record states in another field, also if it is the default.
    elsewhere = {
        "PROMPT.CTX_INIT": "model.prompt.words", "TTA.VIEWS": "views.count",
        "TEST.ORDER": "method.stream.order", "TEST.CORRELATION": "method.stream.correlation",
        PROMPT: PROMPT,
    }
    if key in elsewhere:
        return record.get(elsewhere[key])
    # A run that changed the setting knows its default too, which may be of one data set only.
    knowing = [measured.record for measured in others if key in measured.record.changed]
    knowing.sort(key=lambda other: other.data["dataset"] != record.data["dataset"])
    if knowing:
        return knowing[0].changed[key][0]
    return None


def is_learnt_and_trained(measured: Measured) -> bool:
    """Whether it is a trained method that was given its prompt.

    Its zero-shot predictions are of a hand-written prompt that its record does not state.
    """
    return starts_from_prompt(measured.record) and method_info(measured.run.trainer).trained


def conditions(record: RunRecord) -> str:
    """All that zero-shot predictions depend on, as text: equal for runs that share them."""
    fields = [record.key("column"), record.key("table"), canonical_json(record.model["prompt"]),
              canonical_json(record.views.get("pixels")), str(record.numerics.get("precision"))]
    return "\n".join(fields)


def shared_settings(records: Sequence[RunRecord], but: Sequence[str]) -> dict[str, str]:
    """The settings that all rows of a table share, in words by key.

    They are those that every tuned method was given with the same value, if there are several. On
    zero-shot rows they have no effect, or these share them too.
    """
    tuned = []
    others = []
    for record in records:
        if method_info(str(record.method["trainer"])).tuned:
            tuned.append(record)
        else:
            others.append(record)
    if len(tuned) < 2:
        return {}
    shared = {}
    for key, (_, value) in tuned[0].changed.items():
        concerned = list(tuned)
        if key.startswith(OF_ZERO_SHOT):
            concerned += others
        if key not in but and all_have_value(concerned, key, value):
            shared[key] = setting_words(key, value_label(value))
    return shared


def all_have_value(records: Sequence[RunRecord], key: str, value: Any) -> bool:
    """Whether all runs were given the same value of a setting."""
    for record in records:
        if key not in record.changed or record.changed[key][1] != value:
            return False
    return True


def separate_layers(
    group: Sequence[Measured], column_of: Mapping[Measured, Column], notes: list[str],
) -> list[Layer]:
    """The runs of one group, in layers that have each seed of a column at most once.

    Runs of equal ids are the same run and count once. Runs that may not be pooled as seeds of one
    another, and different runs of one seed, are in different layers: each becomes a row.

    Args:
        group: Runs that are the same for the purpose "row".
        notes: Gets a note on each run that was found twice.
    """
    by_column: dict[Column, list[Measured]] = {}
    for measured in group:
        by_column.setdefault(column_of[measured], []).append(measured)
    layers: list[Layer] = []
    for column, runs in by_column.items():
        cells = layers_of_cell(runs, notes)
        while len(layers) < len(cells):
            layers.append({})
        # Each cell takes the nearest layer that has no cell on this column yet.
        free = list(range(len(cells)))
        for cell in cells:
            number = min(free, key=lambda number: distance(layers[number], cell))
            layers[number][column] = cell
            free.remove(number)
    return layers


def distance(layer: Layer, cell: Sequence[Measured]) -> float:
    """In how many fields of their records the runs of a layer differ from those of a cell.

    The layer has runs on other images; fields of the data and of the seed do not count. A cell goes
    to the layer with the smallest distance, so that one row has, for example, all runs that were
    computed on a GPU. An empty layer is farthest.

    Args:
        layer: Runs on other images, by column.
        cell: The runs of a column, at least one.
    """
    if not layer:
        return float("inf")
    first = next(iter(layer.values()))[0]
    differing = 0
    for name in first.record.difference(cell[0].record, "resume"):
        depends_on_data = name.startswith("data.") or name in OF_EACH_SEED
        if not depends_on_data:
            differing += 1
    return differing


def layers_of_cell(runs: Sequence[Measured], notes: list[str]) -> list[list[Measured]]:
    """Separates the runs of one group and column, so that each layer has a seed at most once.

    Args:
        runs: Runs of the group on the images of the column.
        notes: Gets a note on each run that counts once with another; changed in place.

    Returns:
        The runs of each layer, the layer with most runs first.
    """
    different: dict[str, Measured] = {}

    def preference(measured: Measured) -> tuple:
        # Of a run and its copy without logits, or with unreadable images, the run itself counts;
        # of equal ones the first by its path, whatever the order on the command line.
        path = str(measured.run.folder.resolve())
        return not measured.has_logits, measured.flagged + measured.skipped, path

    for measured in sorted(runs, key=preference):
        if measured.record.id in different:
            first = different[measured.record.id]
            if not measured.from_tuned_run:
                notes.append(copy_note(first, measured))
        else:
            different[measured.record.id] = measured
    layers: list[list[Measured]] = []
    for pool in group_records(different.values(), "pool", record_of):
        # Of each seed the runs of the most frequent numerics come first, so that a layer does not
        # mix them.
        numerics = Counter(canonical_json(measured.record.numerics) for measured in pool)
        order = [text for text, _ in numerics.most_common()]
        pool.sort(key=lambda measured: order.index(canonical_json(measured.record.numerics)))
        by_seed: dict[int, list[Measured]] = {}
        for measured in pool:
            by_seed.setdefault(measured.seed, []).append(measured)
        for same_seed in zip_longest(*by_seed.values()):
            layer = [measured for measured in same_seed if measured is not None]
            layers.append(layer)
    layers.sort(key=lambda layer: -len(layer))
    return layers


def copy_note(first: Measured, second: Measured) -> str:
    """The note on a run that was found twice, of which the second does not count.

    The predictions of the two may differ all the same: an image may have been unreadable at one
    time, or the version of a library may differ.

    Args:
        first: The run that counts.
        second: The run that does not count.
    """
    first_top = first.tuned
    second_top = second.tuned
    is_equal = (
        np.array_equal(first_top.correct, second_top.correct)
        and np.allclose(first_top.confidence, second_top.confidence, atol=EXPORTED_DIGITS)
    )
    if is_equal:
        return f"{second.run.name} is the same run as {first.run.name} and counts once."
    return (
        f"{second.run.name} has the same record as {first.run.name} but other predictions: "
        f"{first.run.name} counts, {second.run.name} does not."
    )


def make_row(
    record: RunRecord, stated: Sequence[str], hidden: Sequence[str], siblings: Sequence[Measured],
) -> Row:
    """A row with the words of its label.

    Args:
        stated: Settings whose values the label states.
        hidden: Settings that it does not state.
        siblings: Runs of the same method, one of which may know the default of a setting.
    """
    values = stated_values(stated, record, siblings)
    variant = ", ".join(setting_words(key, value) for key, value in values.items())
    settings = ", ".join(changed_words(record, [*values, *hidden]))
    prompt = prompt_words(record)
    if PROMPT in hidden or is_untuned_prompt(record):  # the name of the latter states it
        prompt = ""
    return Row(record, method_name(record), prompt, variant, settings, values=values)


def layer_words(first: Layer, layer: Layer) -> str:
    """What tells the runs of a further layer from those of the first, in words.

    Args:
        first: The runs of the first layer by column.
        layer: Runs of the layer to be added.
    """
    all_words: list[str] = []
    for column, cell in layer.items():
        if column in first:
            difference = first[column][0].record.difference(cell[0].record, "resume")
            words = difference_words(difference, second=True)
            if not words:  # only how the work was divided, which changes the last bits
                for path in ("numerics.part", "numerics.episodes"):
                    if path in difference:
                        words.append(f"{WORDS[path]} {difference[path][1]}")
            for word in words:
                if word not in all_words:
                    all_words.append(word)
    return ", ".join(all_words) or next(iter(layer.values()))[0].run.name


def with_distinct_labels(
    rows: Sequence[Row], cells: Mapping[tuple[Row, Column], list[Measured]],
) -> tuple[list[Row], dict[tuple[Row, Column], list[Measured]]]:
    """Rows of equal labels get what differs between their records as details.

    Returns:
        The rows and the cells, with the new rows in place of the old ones.
    """
    renamed = distinct_rows(rows)
    new_rows = [renamed[row] for row in rows]
    new_cells = {}
    for (row, column), cell in cells.items():
        new_cells[renamed[row], column] = cell
    return new_rows, new_cells


def distinct_rows(rows: Sequence[Row], without: Sequence[str] = ()) -> dict[Row, Row]:
    """For each row the same one, with details that tell it from others of its label.

    Args:
        without: Settings or fields in which the runs of one row may differ.
    """
    by_label: dict[str, list[Row]] = {}
    for row in rows:
        by_label.setdefault(row.label, []).append(row)
    renamed: dict[Row, Row] = {}
    labels: set[str] = set()
    for same_label in by_label.values():
        first = same_label[0]
        for number, row in enumerate(same_label):
            details = row.details
            if len(same_label) > 1:
                other = same_label[1] if number == 0 else first
                if number == 0:
                    words = difference_words(
                        row.record.difference(other.record, "row", without), second=False
                    )
                else:
                    words = difference_words(
                        first.record.difference(row.record, "row", without), second=True
                    )
                details = joined_parts(details, *words) or f"no. {number + 1}"
            renamed[row] = replace(row, details=details)
            # Three rows may differ from the first in the same words
            if renamed[row].label in labels:
                renamed[row] = replace(
                    row, details=f"{details}, no. {number + 1}".removeprefix(", ")
                )
            labels.add(renamed[row].label)
    return renamed


def row_order(row: Row) -> tuple:
    """Sorts rows: methods as in papers, hand-written prompts before learnt ones, by their shots."""
    words = prompt_words(row.record)
    has_settings = bool(row.settings or row.details)
    return method_info(row.method).order, bool(words), natural_key(words), has_settings
