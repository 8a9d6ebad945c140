"""Tables whose columns are values of a setting, backbones, learnt prompts or texts."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ...datasets.utils.cli import counted
from ..config.settings import setting_words
from ..registry import method_info
from ..runs.record import canonical_json, group_records
from . import published as paper
from .arrange import BackboneRuns, by_backbone, zero_shot_parts
from .cells import (
    Entries,
    average_entry,
    mark_best,
    published_lines,
    published_note,
    with_difference,
)
from .grid import (
    Column,
    Row,
    distinct_rows,
    groups_by_value,
    joined_parts,
    largest_of_each_family,
    layers_of_cell,
    make_columns,
    make_row,
    record_of,
    row_order,
    shared_settings,
    twin_words,
    value_of,
)
from .grid_notes import default_notes, differing_note, have_other_defaults
from .layout import Layout, TableSpec
from .measure import Measured
from .metrics import find_metric
from .report_tables import entries_of, spread_facts
from .table import RowBlock, Table, TableRow, fact_sentences
from .words import PROMPT, images_fact, is_untuned_prompt, listed, text_words

COLUMN_LABELS: Mapping[str, Mapping[str, str]] = {  # as in the published tables
    "TRAINER.SOC.NORM": {"minmax": "(S - min) / (max - min)", "max": "S / max", "shift": "S - min"},
}
TEXT_KEYS = (
    "PROMPT.TEMPLATE", "PROMPT.DESCRIPTIONS", "PROMPT.ENSEMBLE", "PROMPT.DESCRIPTION_FORMAT",
)


def varied_keys(columns: str) -> tuple[str, ...]:
    """The settings and fields in which the runs of one row may differ.

    Args:
        columns: What the columns are; see `TableSpec`.
    """
    if columns == "backbone":
        return ()
    if columns == "prompt":
        return (PROMPT,)
    if columns == "texts":
        return TEXT_KEYS
    return (columns,)


def column_value(
    columns: str, measured: Measured, runs: Sequence[Measured], backbone: str
) -> tuple[str, str]:
    """The column of a run in a table of values.

    Args:
        columns: What the columns are; see `TableSpec`.
        runs: Runs of its row, one of which may have the default value of a setting.

    Returns:
        The key of the column, which is equal for all runs of a column, and its label.
    """
    record = measured.record
    if columns == "backbone":
        return backbone, backbone
    if columns == "prompt":
        protocol = str(record.get(PROMPT) or "")
        return protocol, shots_label(protocol, str(record.names.get("prompt") or ""))
    if columns == "texts":
        label = texts_label(record.changed)
        return label, label
    value = value_of(columns, record, runs)
    labels = COLUMN_LABELS.get(columns, {})
    return canonical_json(value), labels.get(str(value), setting_words(columns, value))


def shots_label(protocol: str, name: str) -> str:
    """The column of a learnt prompt, as the paper prints it where the shots are known.

    Args:
        protocol: How the prompt was made; "" for a hand-written one.
        name: What the user calls the prompt; "" if it has no name.
    """
    if not protocol:
        return "Baseline"
    for text in (name, protocol):
        words = text.replace("-", " ").split()
        for number, word in pairwise(words):
            if number.isdigit() and word.startswith("shot"):
                return f"{number}-shots"
    return name or protocol


def texts_label(changed: Mapping[str, Any]) -> str:
    """What a run's texts are, in words.

    Descriptions are called `descriptions`, whatever the file: each data set has its own.

    Args:
        changed: Default and value of each changed setting, by key, as in a record.
    """
    words = []
    for key in TEXT_KEYS:
        if key in changed:
            if key == "PROMPT.DESCRIPTIONS":
                words.append("descriptions")
            else:
                words.append(setting_words(key, changed[key][1]))
    return ", ".join(words) or "initial prompt"


def value_tables(
    measured: Sequence[Measured], spec: TableSpec, layout: Layout,
) -> list[Table]:
    """Averages over data sets, a column for each value, backbone, prompt or choice of texts.

    Returns:
        A table for each backbone, or one table whose columns are the backbones.
    """
    backbones = by_backbone(measured)
    if spec.columns == "backbone":
        return [value_table(measured, backbones, spec, layout, spec.title)]
    tables = []
    for backbone in backbones:
        title = f"{spec.title}, {backbone.label}"
        tables.append(value_table(backbone.runs, [backbone], spec, layout, title))
    return tables


def value_table(
    runs: Sequence[Measured], backbones: Sequence[BackboneRuns], spec: TableSpec,
    layout: Layout, title: str,
) -> Table:
    """One table of `value_tables`.

    Args:
        backbones: The runs of each backbone, whose labels name the columns or the sources.
    """
    tested = [run for run in runs if not method_info(run.run.trainer).trained]
    if spec.columns == "prompt":
        tested += zero_shot_parts(tested)
    grid = ValueGrid(tested, backbones, spec)
    blocks = []
    sources: list[str] = []  # where the published cells are printed
    for metric in spec.metrics:
        entries = result_entries(grid, metric)
        lines: list[TableRow] = []
        for row, line in zip(grid.rows, mark_best(entries, metric), strict=True):
            lines.append(line)
            if layout.published:
                cells = [grid.published_cell(row, value, metric) for value in grid.values]
                sources += [cell.source for cell in cells if cell is not None]
                lines += published_lines(line, cells, layout.from_published)
        blocks.append(RowBlock(find_metric(metric).heading, lines))
    facts = grid.facts()
    if any(entry.difference is not None for entry in entries_of(blocks)):
        facts.append("in parentheses: difference from the untuned prompt")
    facts += spread_facts(blocks, grid.cells_without_value())
    notes = [fact_sentences(facts), *grid.make_notes()]
    if layout.published:
        labels = ", ".join(backbone.label for backbone in backbones)
        notes.append(published_note(sources, layout.published, labels))
    title = ", ".join([title, *grid.shared.values()])
    return Table(spec.name, title, list(grid.values.values()), blocks, notes, facts)


def result_entries(grid: ValueGrid, metric: str) -> Entries:
    """The average of a metric over data sets, of each row and value."""
    entries: Entries = {}
    for row in grid.rows:
        entries[row] = []
        for value in grid.values:
            entries[row].append(average_entry(grid.cells_of(row, value), metric))
    if grid.spec.columns == "prompt":
        add_prompt_differences(entries, grid, metric)
    return entries


def add_prompt_differences(entries: Entries, grid: ValueGrid, metric: str) -> None:
    """Adds to the results from each learnt prompt the difference from this prompt untuned.

    Args:
        entries: The cells of each row, one for each value. The difference is added in place.
    """
    for position, value in enumerate(grid.values):
        untuned = grid.untuned_row(value)
        if untuned is None:
            continue
        base = entries[untuned][position]
        base_cells = grid.cells_of(untuned, value)
        for row, entries_of_row in entries.items():
            entry = entries_of_row[position]
            if row is not untuned and entry is not None and base is not None:
                pairs = list(zip(grid.cells_of(row, value), base_cells, strict=True))
                entries_of_row[position] = with_difference(entry, base, pairs, metric)


class ValueGrid:
    """Rows × values, each cell with the runs of several data sets.

    Attributes:
        rows: The rows, in the order of papers.
        shared: Settings that all rows share and the title states, in words by key.
        values: Label of each column, by what makes it another column.
        printed: What published tables call each column.
        cells: The runs of each row and value by data set.
        columns: All data sets.
        common: The data sets that all cells have; only these are averaged.
        left_out: Labels of the other data sets.
        smaller: Labels of sets of images that are left out for a larger one of the same data set.
        relabelled: Labels of those that are left out because another data set has their images.
        bins: Number of bins of ECE, ACE and MCE.
    """

    def __init__(
        self, runs: Sequence[Measured], backbones: Sequence[BackboneRuns], spec: TableSpec,
    ) -> None:
        """Arranges runs.

        Args:
            runs: The test runs of the table.
            backbones: The same runs by backbone; the backbones' labels may name columns.
            spec: What the columns and rows are.
        """
        self.spec = spec
        self.varied = varied_keys(spec.columns)
        self.values: dict[str, str] = {}
        self.printed: dict[str, str] = {}
        self.shared: dict[str, str] = {}
        self.cells: dict[tuple[Row, str], dict[Column, list[Measured]]] = {}
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.common: list[Column] = []
        self.left_out: list[str] = []
        self.smaller: list[str] = []
        self.relabelled: list[str] = []
        self.bins = runs[0].bins
        columns, column_of = make_columns(runs)
        self.columns = columns
        self.arrange(runs, backbones, column_of)
        for (row, _), runs_by_column in self.cells.items():
            for column, cell in runs_by_column.items():
                runs_by_column[column] = self.first_layer(row, column, cell)
        shared = []
        for column in columns:
            if all(column in runs_by_column for runs_by_column in self.cells.values()):
                shared.append(column)
            else:
                label = self.label(column)
                if [other.dataset for other in columns].count(column.dataset) > 1:
                    label += f", {column.n:,} images"
                self.left_out.append(label)
        # A pilot and the whole set have images in common: only the larger one is averaged.
        self.common = largest_of_each_family(shared)
        averaged = {column.dataset for column in self.common}
        for column in shared:
            if column in self.common:
                continue
            label = f"{self.label(column)}, {column.n:,} images"
            if column.dataset in averaged:
                self.smaller.append(label)
            else:
                self.relabelled.append(label)

    def arrange(
        self, runs: Sequence[Measured], backbones: Sequence[BackboneRuns],
        column_of: Mapping[Measured, Column],
    ) -> None:
        """Puts each run into its row, value and data set.

        Args:
            backbones: The same runs by backbone.
        """
        backbone_of = {}
        for backbone in backbones:
            for run in backbone.runs:
                backbone_of[run.run] = backbone.label
        tuned = []
        untuned = []
        for run in runs:
            if is_untuned_prompt(run.record):
                untuned.append(run)
            else:
                tuned.append(run)
        groups = groups_by_value(tuned, self.spec.rows, self.varied)
        groups += group_records(untuned, "row", record_of)  # of one prompt each
        records = [group[0].record for group in groups]
        self.shared = shared_settings(records, [*self.spec.rows, *self.varied])
        unstated = [*self.varied, *self.shared]
        for group in groups:
            row = make_row(group[0].record, self.spec.rows, unstated, group)
            self.rows.append(row)
            for run in group:
                backbone_label = backbone_of[run.run]
                key, label = column_value(self.spec.columns, run, group, backbone_label)
                self.values.setdefault(key, label)
                runs_by_column = self.cells.setdefault((row, key), {})
                runs_by_column.setdefault(column_of[run], []).append(run)
        self.printed = dict(self.values)
        labels = list(self.printed.values())
        for key, label in self.printed.items():
            if labels.count(label) > 1:  # two prompts of as many shots
                self.values[key] = key
        of_prompts = [row for row in self.rows if is_untuned_prompt(row.record)]
        others = [row for row in self.rows if row not in of_prompts]
        renamed = {**distinct_rows(others, self.varied), **distinct_rows(of_prompts)}
        cells = {(renamed[row], key): by_column for (row, key), by_column in self.cells.items()}
        self.cells = cells
        self.rows = sorted(renamed.values(), key=row_order)

    def label(self, column: Column) -> str:
        """A data set, told apart from another one of the same name and size."""
        return column.label + twin_words(column, self.columns)

    def untuned_row(self, protocol: str) -> Row | None:
        """The row of a learnt prompt without tuning; None if there is none."""
        for row in self.rows:
            if is_untuned_prompt(row.record) and row.protocol == protocol:
                return row
        return None

    def first_layer(self, row: Row, column: Column, runs: Sequence[Measured]) -> list[Measured]:
        """The runs of a cell that may be pooled as seeds; others are named in `notes`."""
        layers = layers_of_cell(runs, self.notes)
        for layer in layers[1:]:
            names = ", ".join(run.run.name for run in layer)
            self.notes.append(
                f"{row.label} on {column.label}: {names} may not be pooled with the other "
                "runs of this cell and is left out here."
            )
        return sorted(layers[0], key=lambda run: run.seed)

    def cells_of(self, row: Row, value: str) -> list[list[Measured]]:
        """The runs of each common data set; empty if there are none."""
        runs_by_column = self.cells.get((row, value))
        if runs_by_column is None:
            return []
        return [runs_by_column[column] for column in self.common]

    def published_cell(self, row: Row, value: str, metric: str) -> paper.Cell | None:
        """The published average of a row and column, if it is over the same data sets.

        Args:
            row: The row whose method is looked up.
            value: Key of `printed`.
        """
        if not paper.has_published_bins(metric, self.bins):
            return None
        records = []
        for cell in self.cells_of(row, value):
            if not all(run.is_ranked for run in cell):
                return None
            records += [run.record for run in cell]
        table = self.spec.published[0]
        if not records or not paper.is_published_set(table, records, self.varied):
            return None
        if self.has_other_defaults(row, value):
            return None
        return paper.find(table, metric, row.method, self.printed[value])

    def has_other_defaults(self, row: Row, value: str) -> bool:
        """Whether a default was edited between a cell and others of its method."""
        for column in self.common:
            others = [by_column[column][0] for by_column in self.cells.values()]
            if have_other_defaults(self.cells[row, value][column][:1], others):
                return True
        return False

    def cells_without_value(self) -> dict[tuple[Row, Column], list[Measured]]:
        """The runs of each row and data set, of the last value that has some."""
        cells = {}
        for (row, _), runs_by_column in self.cells.items():
            for column, cell in runs_by_column.items():
                cells[row, column] = cell
        return cells

    def facts(self) -> list[str]:
        """What is averaged, for the caption."""
        counts: dict[str, list[int]] = {}
        for column in self.common:
            counts.setdefault(self.label(column), []).append(column.n)
        if not counts:
            return ["no data set is common to all cells"]
        facts = [images_fact(counts), counted(self.bins, "bin")]
        if len(self.common) > 1:
            facts.insert(0, "Average over the data sets")
        return facts

    def make_notes(self) -> list[str]:
        """Failed images, and what was left out."""
        notes = list(self.notes)
        notes += self.differing_seeds()
        notes += self.differing_defaults()
        failed = self.failed_images()
        if failed:
            notes.append(
                f"Failed images: {listed(failed)}. Above 1 % of either a cell is not ranked."
            )
        if self.left_out:
            notes.append(f"Left out, because not every cell has them: {listed(self.left_out)}.")
        if self.smaller:
            notes.append(
                "Left out for a larger set of images of the same data set, or the first one of "
                f"equal size: {listed(self.smaller)}."
            )
        if self.relabelled:
            notes.append(
                "Left out, because another data set of the average has their images, with other "
                f"labels or classes: {listed(self.relabelled)}."
            )
        return notes

    def differing_seeds(self) -> list[str]:
        """Notes on the averaged data sets on which cells have other seeds."""
        notes = []
        for column in self.common:
            seeds: dict[str, list[str]] = {}
            for (row, value), runs_by_column in self.cells.items():
                cell = runs_by_column[column]
                if not cell[0].from_tuned_run:
                    label = joined_parts(row.label, self.values[value])
                    seeds[label] = [str(run.seed) for run in cell]
            notes += differing_note(f"{column.label}: view seeds differ between the cells", seeds)
        return notes

    def differing_defaults(self) -> list[str]:
        """Notes on the averaged data sets on which cells of one method have other defaults."""
        notes = []
        for column in self.common:
            runs = {}
            for (row, value), runs_by_column in self.cells.items():
                label = joined_parts(row.label, self.values[value])
                runs[label] = runs_by_column[column][0]
            notes += default_notes(column.label, runs, but=self.varied)
        return notes

    def failed_images(self) -> list[str]:
        """Which runs have images without a prediction of the method, in words."""
        failed = []
        for (row, value), runs_by_column in self.cells.items():
            for column, cell in runs_by_column.items():
                for run in cell:
                    if run.flagged or run.skipped:
                        failed.append(f"{row.label}, {self.values[value]}, {column.label}: "
                                      f"{run.flagged:,} with their zero-shot prediction, "
                                      f"{run.skipped:,} unreadable")
        return failed


def texts_note(cells: Iterable[tuple[str, Sequence[Measured]]]) -> str:
    """The seeds and the texts that rows have used.

    Args:
        cells: Label and runs of each cell; a row may have several.
    """
    seeds: set[int] = set()
    texts_of: dict[str, list[str]] = {}  # by label
    labels_with: dict[str, list[str]] = {}  # labels by their texts
    for label, runs in cells:
        for run in runs:
            seeds.add(run.seed)
            words = str(run.run.results.get("texts") or text_words(run.record))
            if words not in texts_of.setdefault(label, []):
                texts_of[label].append(words)
    for label, texts in texts_of.items():
        labels_with.setdefault("; ".join(texts), []).append(label)
    parts = []
    for joined_texts, labels in labels_with.items():
        if len(labels_with) > 1:
            parts.append(f"{', '.join(labels)}: {joined_texts}")
        else:  # all rows have the same texts
            parts.append(joined_texts)
    words = " | ".join(parts)
    end = "" if words.endswith("”") else "."
    plural = "s" if len(seeds) > 1 else ""
    return f"Seed{plural} {', '.join(map(str, sorted(seeds)))}. Texts: {words}{end}"
