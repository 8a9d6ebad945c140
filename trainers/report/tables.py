"""Tables of methods × data sets, metrics, or values of a setting, next to published ones."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config.settings import setting_words
from ..functional import calibration as cal
from ..functional.arrays import Array
from ..registry import method_info, method_key
from ..runs.record import canonical_json, group_records
from . import published as paper
from .arrange import BackboneRuns, by_backbone
from .grid import Column, Grid, Row, layers_of_cell, make_columns, make_row, record_of, value_of
from .grid_notes import seeds_words, stream_words
from .images import have_same_images, share_images
from .layout import TableSpec
from .measure import Measured, mean_over_seeds
from .metrics import METRICS, POSTHOC, STD, find_metric
from .sentences import images_words, listed, text_words
from .table_model import Entry, RowBlock, Table, TableRow

Entries = dict[Row, list[Entry | None]]

TEMPERATURE_NOTE = (
    "† temperature scaling needs labels, which test-time tuning never sees: a reference, not a method. "
    "It is fitted on a run over the validation split (TEST.SPLIT val) if there is one; otherwise each "
    "half of the test images is scaled by the temperature fitted on the other half."
)
POSTHOC_NOTE = (
    "CoTS and E-CoTS rescale each image by its own strong views; they need a method that uses several "
    "views. A method that does not change the prompt has τ = 1 everywhere. E-CoTS weights the plain "
    "view by the mean cosine a of the classes: where class features are nearly orthogonal, as those of "
    "small models are, the strong views decide alone and accuracy falls. Fixed temperature: 1.16 for "
    "transformers, 1.15 for ResNets, as in C-TPT's code."
)
SECONDS_NOTE = (
    "Seconds per image: adaptation and prediction from cached view features on this machine, without "
    "encoding."
)
SHARED_NOTE = (
    "Where two runs did not predict the same images, their difference is of the images that both have, "
    "found by identity."
)
TOP_METRICS = {"accuracy": cal.accuracy, "ece": cal.ece, "ace": cal.ace, "mce": cal.mce}


@dataclass(frozen=True)
class PublishedOptions:
    """Which published numbers are shown.

    Attributes:
        source: Whose tables; "" for none.
        differences: Whether rows "ours − published" are added.
    """

    source: str = ""
    differences: bool = False


def results_table(
    grid: Grid, name: str, title: str, metrics: Sequence[str], published: PublishedOptions,
    with_notes: bool = True,
) -> Table:
    """Rows of methods, columns of data sets and their average, a block for each metric.

    Args:
        grid: The runs.
        name: Of the table.
        title: Of the table.
        metrics: By name.
        published: Which published rows are added.
        with_notes: Whether the notes on runs are below this table.
    """
    common = grid.common_columns()
    has_average = len(common) > 1
    labels = [grid.column_label(column) for column in grid.columns]
    if has_average:
        labels.append("Average")
    blocks = []
    sources: list[str] = []
    for metric in metrics:
        entries: Entries = {}
        for row in grid.rows:
            entries[row] = [cell_entry(grid.cells.get((row, column), []), metric) for column in grid.columns]
            if has_average:
                cells = [grid.cells.get((row, column), []) for column in common]
                entries[row].append(average_entry(cells, metric))
        add_differences(entries, grid, common, metric)
        rows = marked_rows(entries, metric)
        if published.source:
            rows = with_published_rows(rows, grid, metric, has_average, published, sources)
        blocks.append(RowBlock(find_metric(metric).heading, rows))
    notes = list(grid.notes) if with_notes else []
    notes.append(legend(blocks, grid))
    notes += metric_notes(grid, metrics)
    if published.source:
        notes.append(published_note(sources, published.source, grid.backbone))
    return Table(name, title, labels, blocks, notes)


def metric_table(grid: Grid, name: str, title: str, metrics: Sequence[str]) -> Table:
    """One line per method with every metric, the mean over the data sets that all methods have."""
    common = grid.common_columns()
    compared = grid.rows_on(common) if common else []
    by_metric = []
    for metric in metrics:
        entries: Entries = {}
        for row in grid.rows:
            cells = [grid.cells[row, column] for column in common] if row in compared else []
            entries[row] = [average_entry(cells, metric)]
        by_metric.append(marked_rows(entries, metric))
    rows = []
    for number, row in enumerate(grid.rows):
        cells_of_row = [lines[number].entries[0] for lines in by_metric]
        rows.append(TableRow(row.label, row.method, cells_of_row))
    names = ", ".join(grid.column_label(column) for column in common)
    average = f"Average over {names}. " if len(common) > 1 else ""
    block = RowBlock("", rows)
    notes = [f"{average}{grid.images(common)} {grid.bins} bins.", *grid.notes]
    notes += spread_notes([block], grid.cells)
    notes += metric_notes(grid, metrics)
    return Table(name, title, [find_metric(metric).heading for metric in metrics], [block], notes)


def cell_entry(cell: Sequence[Measured], metric: str, interval: bool = False) -> Entry | None:
    """A cell of a table: the mean over seeds, or the interval of one run if asked for."""
    if metric.endswith(STD) and metric not in METRICS:
        return deviation_entry(cell, metric.removesuffix(STD))
    about = METRICS[metric]
    missing = [measured for measured in cell if metric not in measured.metrics]
    if any(not measured.has_logits for measured in missing):
        return Entry(np.nan, about.decimals, ranked=False)  # shown as –
    if missing or not cell:
        return None
    entry = mean_entry([about.scale * measured.value(metric) for measured in cell], about.decimals)
    only = cell[0].metrics[metric]
    if interval and len(cell) == 1 and not np.isnan(only.low):
        entry = replace(entry, low=about.scale * float(only.low), high=about.scale * float(only.high))
    return replace(entry, ranked=all(measured.is_ranked for measured in cell))


def deviation_entry(cell: Sequence[Measured], metric: str) -> Entry | None:
    """The sample standard deviation over seeds, in the units of the metric."""
    if len(cell) < 2 or any(metric not in measured.metrics for measured in cell):
        return None
    values = [METRICS[metric].scale * measured.value(metric) for measured in cell]
    return Entry(float(np.std(values, ddof=1)), 2, seeds=len(cell))


def mean_entry(values: Sequence[float], decimals: int) -> Entry:
    """The mean over seeds, with the sample deviation if there are several."""
    std = None
    if len(values) > 1 and np.isfinite(values).all():
        std = float(np.std(values, ddof=1))
    return Entry(float(np.mean(values)), decimals, std=std, seeds=len(values))


def average_entry(cells: Sequence[Sequence[Measured]], metric: str) -> Entry | None:
    """The mean over data sets; None if a run is missing or lacks the metric.

    Its deviation is that of the seeds' averages, if all data sets have the same seeds.

    Args:
        cells: For each data set the runs of its seeds.
        metric: By name.
    """
    if not cells or not all(cells):
        return None
    entries = [cell_entry(cell, metric) for cell in cells]
    present = [entry for entry in entries if entry is not None]
    if len(present) < len(cells):
        return None
    decimals = find_metric(metric).decimals
    ranked = all(entry.ranked for entry in present)
    seeds = {tuple(measured.seed for measured in cell) for cell in cells}
    if len(seeds) == 1 and metric in METRICS:
        scale = METRICS[metric].scale
        values = np.array([[scale * measured.value(metric) for measured in cell] for cell in cells])
        return replace(mean_entry(values.mean(axis=0).tolist(), decimals), ranked=ranked)
    mean = float(np.mean([entry.value for entry in present]))
    return Entry(mean, decimals, ranked=ranked)


def marked_rows(entries: Entries, metric: str) -> list[TableRow]:
    """The rows with the best of the tuned methods marked, column by column."""
    higher = find_metric(metric).higher_is_better
    tuned = [row for row in entries if method_info(row.method).tuned]
    within = compares_within_settings(tuned)
    rows = []
    for row, cells in entries.items():
        rivals = [other for other in tuned if not within or other.variant == row.variant]
        marked = []
        for at, entry in enumerate(cells):
            if entry is not None and row in tuned and higher is not None and entry.ranked:
                values = []
                for other in rivals:
                    cell = entries[other][at]
                    if cell is not None and cell.ranked:
                        values.append(round(cell.value, cell.decimals))
                if len(values) > 1:
                    top = max(values) if higher else min(values)
                    entry = replace(entry, best=round(entry.value, entry.decimals) == top)
            marked.append(entry)
        rows.append(TableRow(row.label, row.method, marked))
    return rows


def compares_within_settings(rows: Sequence[Row]) -> bool:
    """Whether methods are compared within one setting only.

    They are if every setting of a table is that of several methods (steps, prompts). If only one
    method has settings (λ), all rows are compared.
    """
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(row.variant, set()).add(row.method)
    return len(methods) > 1 and all(len(group) > 1 for group in methods.values())


def add_differences(entries: Entries, grid: Grid, common: Sequence[Column], metric: str) -> None:
    """Adds the difference against O-TPT, if a single method is newer than O-TPT, as in the paper."""
    tuned = [row for row in entries if method_info(row.method).tuned]
    within = compares_within_settings(tuned)
    last = method_info(paper.BASELINE).order
    for row in tuned:
        rivals = [other for other in tuned if not within or other.variant == row.variant]
        baselines = [other for other in rivals if method_key(other.method) == paper.BASELINE]
        newer = {other.method for other in rivals if method_info(other.method).order > last}
        if newer != {row.method} or len(baselines) != 1:
            continue
        base = baselines[0]
        columns: list[Sequence[Column]] = [[column] for column in grid.columns]
        if len(entries[row]) > len(columns):
            columns.append(common)
        for at, columns_of_cell in enumerate(columns):
            entry = entries[row][at]
            other = entries[base][at]
            if entry is not None and other is not None:
                cells = [(grid.cells[row, column], grid.cells[base, column]) for column in columns_of_cell]
                entries[row][at] = with_difference(entry, other, cells, metric)


def with_difference(
    entry: Entry, base: Entry, cells: Sequence[tuple[list[Measured], list[Measured]]], metric: str,
) -> Entry:
    """The difference of the printed values, so that a reader can check it.

    If the runs did not predict the same images, it is the difference on those that both have.
    """
    if np.isnan(entry.value - base.value):
        return entry
    if all(have_same_images(ours, theirs) for ours, theirs in cells):
        change = round(float(entry.text) - float(base.text), entry.decimals)
    else:
        shared = difference_on_shared_images(cells, metric)
        if shared is None:
            return entry
        change = round(shared, entry.decimals)
    higher = find_metric(metric).higher_is_better
    better = None
    if higher is not None and change != 0:
        better = (change > 0) == higher
    return replace(entry, difference=change + 0.0, better=better)


def difference_on_shared_images(
    cells: Sequence[tuple[list[Measured], list[Measured]]], metric: str,
) -> float | None:
    """Ours minus theirs on the images that both have, in the units of the metric."""
    if metric not in TOP_METRICS:
        return None
    differences = []
    for ours, theirs in cells:
        shared = share_images(theirs, ours)
        if shared is None:
            return None
        differences.append(seed_mean(shared.second, metric) - seed_mean(shared.first, metric))
    return METRICS[metric].scale * float(np.mean(differences))


def seed_mean(samples: tuple[Array, Array], metric: str) -> float:
    """The mean over seeds of a metric of (N, S) confidences and correctness."""
    confidence, correct = samples
    values = [TOP_METRICS[metric](confidence[:, seed], correct[:, seed]) for seed in range(confidence.shape[1])]
    return float(np.mean(values))


def with_published_rows(
    rows: Sequence[TableRow], grid: Grid, metric: str, has_average: bool, published: PublishedOptions,
    sources: list[str],
) -> list[TableRow]:
    """After each row its published one, if there is one under the same conditions."""
    lines: list[TableRow] = []
    for row, line in zip(grid.rows, rows, strict=True):
        lines.append(line)
        cells: list[paper.Cell | None] = []
        for column in grid.columns:
            runs = grid.cells.get((row, column), [])
            cell = None
            if runs:
                cell = find_published(metric, runs, published.source)
            cells.append(cell)
        if has_average:
            cells.append(published_average(cells, grid.columns, published.source))
        for cell in cells:
            if cell is not None and cell.source not in sources:
                sources.append(cell.source)
        lines += published_lines(line, cells, published.differences)
    return lines


def find_published(metric: str, runs: Sequence[Measured], source: str) -> paper.Cell | None:
    """The published cell for all runs of a cell."""
    plain = metric
    if metric.endswith(STD) and metric not in METRICS:
        plain = metric.removesuffix(STD) + "_std"
    cells = [paper.find_for_record(plain, measured.record, source) for measured in runs]
    return cells[0] if all(cell is not None for cell in cells) else None


def published_average(
    cells: Sequence[paper.Cell | None], columns: Sequence[Column], source: str,
) -> paper.Cell | None:
    """The source's average, if it is over exactly these data sets."""
    if not cells or any(cell is None for cell in cells):
        return None
    first = cells[0]
    assert first is not None
    datasets = [str(column.record.data["dataset"]) for column in columns]
    averaged = sorted(paper.tables_of(source)[first.table]["columns"])
    if sorted([*datasets, paper.AVERAGE]) != averaged:
        return None
    return paper.find(first.table, first.metric, first.method, paper.AVERAGE)


def published_lines(
    line: TableRow, cells: Sequence[paper.Cell | None], with_differences: bool,
) -> list[TableRow]:
    """The published row below a row, named by its source, and the differences from it."""
    found = [cell for cell in cells if cell is not None]
    if not found:
        return []
    entries: list[Entry | None] = []
    for cell in cells:
        entries.append(None if cell is None else Entry(float(cell.value), cell.decimals))
    sources = "; ".join(dict.fromkeys(cell.source for cell in found))
    cite = paper.cite_key(paper.source_of(found[0].table))
    lines = [TableRow(f"{line.label} (published: {sources})", line.method, entries, published=True, cite=cite)]
    if with_differences:
        differences = [difference(ours, theirs) for ours, theirs in zip(line.entries, entries, strict=True)]
        lines.append(TableRow(f"{line.label}: ours − published", line.method, differences))
    return lines


def difference(ours: Entry | None, theirs: Entry | None) -> Entry | None:
    """Ours minus published, of the numbers as printed, so that a reader can check it."""
    if ours is None or theirs is None:
        return None
    decimals = min(ours.decimals, theirs.decimals)
    value = round(round(ours.value, decimals) - theirs.value, decimals) + 0.0
    return Entry(value, decimals, signed=True)


def published_note(sources: Sequence[str], source: str, backbone: str) -> str:
    if not sources:
        return (f"{paper.source_name(source)} print no numbers for {backbone} under these settings, on "
                "these numbers of test images.")
    return (f"Rows marked published are from {'; '.join(sorted(sources))} and were not measured here. "
            "They stand beside runs on the whole test set, with OpenAI's weights and the settings of the "
            "source.")


def legend(blocks: Sequence[RowBlock], grid: Grid) -> str:
    """Images, bins, and what the marks of a table mean."""
    entries = [entry for block in blocks for row in block.rows for entry in row.entries if entry]
    parts = [f"{grid.images()} {grid.bins} bins."]
    if any(entry.best for entry in entries):
        tuned = [row for row in grid.rows if method_info(row.method).tuned]
        within = ", setting by setting" if compares_within_settings(tuned) else ""
        parts.append(f"Bold: best of the tuned methods{within}.")
    if any(entry.difference is not None for entry in entries):
        parts.append("In parentheses: difference against O-TPT.")
        if any(measured.skipped for measured in grid.measured):
            parts.append(SHARED_NOTE)
    parts += spread_notes(blocks, grid.cells)
    if stream_words(grid):
        parts.append(stream_words(grid))
    return " ".join(parts)


def spread_notes(
    blocks: Sequence[RowBlock], cells: Mapping[tuple[Row, Column], Sequence[Measured]],
) -> list[str]:
    """What ± means, if any entry has it."""
    for block in blocks:
        for row in block.rows:
            if any(entry is not None and entry.std is not None for entry in row.entries):
                return [seeds_words(cells)]
    return []


def metric_notes(grid: Grid, metrics: Sequence[str]) -> list[str]:
    """What some metrics mean."""
    notes = []
    if "ece_temperature" in metrics:
        notes.append(temperature_note(grid))
    if set(POSTHOC) & set(metrics):
        notes.append(POSTHOC_NOTE)
    if "seconds" in metrics:
        notes.append(SECONDS_NOTE)
    return notes


def temperature_note(grid: Grid) -> str:
    """What temperature scaling is, on what it was fitted, and where it raises ECE."""
    note = TEMPERATURE_NOTE
    fitted = []
    raised = []
    for (row, column), cell in grid.cells.items():
        where = f"{row.label} on {grid.column_label(column)}"
        images = {measured.temperature_from for measured in cell}
        if max(images) > 0:
            fitted.append(f"{where} ({', '.join(f'{count:,}' for count in sorted(images))})")
        if all("ece_temperature" in measured.metrics for measured in cell):
            before = f"{100 * mean_over_seeds(cell, 'ece'):.1f}"
            after = f"{100 * mean_over_seeds(cell, 'ece_temperature'):.1f}"
            if float(after) > float(before):
                raised.append(f"{where} ({before} → {after})")
    if fitted:
        note += f" Fitted on validation images: {listed(fitted)}."
    if raised:
        note += f" It minimises NLL, not ECE, and raises the ECE here of {listed(raised)}."
    return note


# Tables whose columns are values of a setting, backbones, prompts or texts.

COLUMN_LABELS: Mapping[str, Mapping[str, str]] = {  # as in the published tables
    "TRAINER.SOC.NORM": {"minmax": "(S - min) / (max - min)", "max": "S / max", "shift": "S - min"},
}
TEXT_KEYS = ("PROMPT.TEMPLATE", "PROMPT.DESCRIPTIONS", "PROMPT.ENSEMBLE", "PROMPT.DESCRIPTION_FORMAT")
PROMPT_KEY = "model.prompt.protocol"


def varied_keys(columns: str) -> tuple[str, ...]:
    """The settings and fields in which the runs of one row may differ."""
    if columns == "backbone":
        return ()
    if columns == "prompt":
        return (PROMPT_KEY,)
    if columns == "texts":
        return TEXT_KEYS
    return (columns,)


def column_value(columns: str, measured: Measured, runs: Sequence[Measured], backbone: str) -> tuple[str, str]:
    """The column of a run in a table of values: what makes it another column, and its label."""
    record = measured.record
    if columns == "backbone":
        return backbone, backbone
    if columns == "prompt":
        protocol = str(record.get(PROMPT_KEY) or "")
        return protocol, shots_label(protocol, str(record.names.get("prompt") or ""))
    if columns == "texts":
        label = texts_label(record.changed)
        return label, label
    value = value_of(columns, record, runs)
    labels = COLUMN_LABELS.get(columns, {})
    return canonical_json(value), labels.get(str(value), setting_words(columns, value))


def shots_label(protocol: str, name: str) -> str:
    """The column of a learnt prompt, as the paper prints it where the shots are known."""
    if not protocol:
        return "Baseline"
    for text in (name, protocol):
        words = text.replace("-", " ").split()
        for number, word in itertools.pairwise(words):
            if number.isdigit() and word.startswith("shot"):
                return f"{number}-shots"
    return name or protocol


def texts_label(changed: Mapping[str, Any]) -> str:
    """What a run's texts are; descriptions by that word: each data set has a file of its own."""
    words = []
    for key in TEXT_KEYS:
        if key in changed:
            if key == "PROMPT.DESCRIPTIONS":
                words.append("descriptions")
            else:
                words.append(setting_words(key, changed[key][1]))
    return ", ".join(words) or "initial prompt"


def value_tables(
    measured: Sequence[Measured], spec: TableSpec, published: PublishedOptions,
) -> list[Table]:
    """Averages over data sets, a column for each value, backbone, prompt or choice of texts."""
    tables = by_backbone(measured)
    if spec.columns == "backbone":
        return [value_table(measured, tables, spec, published, spec.title)]
    made = []
    for table in tables:
        made.append(value_table(table.runs, [table], spec, published, f"{spec.title}, {table.label}"))
    return made


def value_table(
    runs: Sequence[Measured], tables: Sequence[BackboneRuns], spec: TableSpec,
    published: PublishedOptions, title: str,
) -> Table:
    """One table of `value_tables`."""
    grid = ValueGrid([run for run in runs if not method_info(run.run.trainer).trained], tables, spec)
    blocks = []
    sources: list[str] = []
    for metric in spec.metrics:
        entries: Entries = {}
        for row in grid.rows:
            entries[row] = [average_entry(grid.cells_of(row, value), metric) for value in grid.values]
        lines = []
        for row, line in zip(grid.rows, marked_rows(entries, metric), strict=True):
            lines.append(line)
            if published.source and spec.published:
                neighbours = [grid.published_cell(row, value, metric) for value in grid.values]
                sources += [cell.source for cell in neighbours if cell is not None]
                lines += published_lines(line, neighbours, published.differences)
        blocks.append(RowBlock(find_metric(metric).heading, lines))
    notes = grid.make_notes()
    notes += spread_notes(blocks, grid.flat_cells())
    if published.source and spec.published:
        backbones = ", ".join(table.label for table in tables)
        notes.append(published_note(list(dict.fromkeys(sources)), published.source, backbones))
    return Table(spec.name, title, distinct(list(grid.values.values())), blocks, notes)


class ValueGrid:
    """Rows × values, each cell with the runs of several data sets.

    Attributes:
        rows: In the order of papers.
        values: Label of each column, by what makes it another column.
        cells: The runs of each row and value by data set.
        common: The data sets that all cells have; only these are averaged.
    """

    def __init__(self, runs: Sequence[Measured], tables: Sequence[BackboneRuns], spec: TableSpec) -> None:
        self.spec = spec
        self.varied = varied_keys(spec.columns)
        self.values: dict[str, str] = {}
        self.cells: dict[tuple[Row, str], dict[Column, list[Measured]]] = {}
        self.rows: list[Row] = []
        self.notes: list[str] = []
        backbone_of = {id(run): table.label for table in tables for run in table.runs}
        _, column_of = make_columns(runs)
        for group in group_records(runs, "row", record_of, without=self.varied):
            row = make_row(group[0].record, spec.rows, self.varied, group)
            self.rows.append(row)
            for run in group:
                key, label = column_value(spec.columns, run, group, backbone_of[id(run)])
                self.values.setdefault(key, label)
                sets = self.cells.setdefault((row, key), {})
                sets.setdefault(column_of[id(run)], []).append(run)
        self.rows.sort(key=lambda row: method_info(row.method).order)
        for (row, _), sets in self.cells.items():
            for column in sets:
                sets[column] = self.one_layer(row, column, sets[column])
        columns = list(dict.fromkeys(column_of.values()))
        columns.sort(key=lambda column: column.order)
        self.common = [column for column in columns if all(column in sets for sets in self.cells.values())]
        self.left_out = [column.label for column in columns if column not in self.common]

    def one_layer(self, row: Row, column: Column, runs: Sequence[Measured]) -> list[Measured]:
        """The runs of a cell that may be pooled as seeds; others are named and left out."""
        layers = layers_of_cell(runs, self.notes)
        for layer in layers[1:]:
            names = ", ".join(run.run.name for run in layer)
            self.notes.append(f"{row.label} on {column.label}: {names} may not be pooled with the other runs of "
                              "this cell and is left out here.")
        return sorted(layers[0], key=lambda run: run.seed)

    def cells_of(self, row: Row, value: str) -> list[list[Measured]]:
        """The runs of each common data set; empty if there are none."""
        sets = self.cells.get((row, value), {})
        return [sets[column] for column in self.common if column in sets]

    def published_cell(self, row: Row, value: str, metric: str) -> paper.Cell | None:
        """The published average of a row under a column's label, if it is over the same data sets."""
        records = [run.record for cell in self.cells_of(row, value) for run in cell]
        table = self.spec.published[0]
        if not records or not paper.is_published_set(table, records, self.varied):
            return None
        return paper.find(table, metric, row.method, self.values[value])

    def flat_cells(self) -> dict[tuple[Row, Column], list[Measured]]:
        flat = {}
        for (row, _), sets in self.cells.items():
            for column, cell in sets.items():
                flat[row, column] = cell
        return flat

    def make_notes(self) -> list[str]:
        """Images, failed images, and what was left out."""
        counts = {column.label: column.n for column in self.common}
        average = "Average over the data sets. " if len(self.common) > 1 else ""
        notes = [f"{average}{images_words(counts)}", *self.notes]
        failed = []
        for (row, value), sets in self.cells.items():
            for column, cell in sets.items():
                for run in cell:
                    if run.flagged or run.skipped:
                        failed.append(f"{row.label}, {self.values[value]}, {column.label}: {run.flagged:,} with their "
                                      f"zero-shot prediction, {run.skipped:,} unreadable")
        if failed:
            notes.append(f"Failed images: {listed(failed)}. Above 1 % of either a cell is not ranked.")
        if self.left_out:
            notes.append(f"Left out, because not every cell has them: {listed(self.left_out)}.")
        return notes


def distinct(labels: Sequence[str]) -> list[str]:
    """Labels of columns; equal ones get a number."""
    numbered = []
    for position, label in enumerate(labels):
        if labels.count(label) > 1:
            label = f"{label} ({labels[: position + 1].count(label)})"
        numbered.append(label)
    return numbered


def texts_note(cells: Iterable[tuple[str, Sequence[Measured]]]) -> str:
    """The seeds and the texts that rows have used, given their labels and runs."""
    rows: dict[str, list[str]] = {}
    seeds: set[int] = set()
    texts_of: dict[str, list[str]] = {}
    for label, runs in cells:
        for run in runs:
            seeds.add(run.seed)
            words = str(run.run.results.get("texts") or text_words(run.record))
            if words not in texts_of.setdefault(label, []):
                texts_of[label].append(words)
    for label, texts in texts_of.items():
        rows.setdefault("; ".join(texts), []).append(label)
    if len(rows) > 1:
        parts = [f"{', '.join(labels)}: {texts}" for texts, labels in rows.items()]
    else:
        parts = list(rows)
    words = " | ".join(parts)
    end = "" if words.endswith("”") else "."
    plural = "s" if len(seeds) > 1 else ""
    return f"Seed{plural} {', '.join(map(str, sorted(seeds)))}. Texts: {words}{end}"
