"""Makes the tables that a layout describes."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..runs.record import group_records
from .arrange import by_backbone
from .grid import Grid, joined_parts
from .grid_notes import grid_notes
from .layout import Differences, TableSpec
from .make_grid import grid_of, record_of
from .measure import Measured
from .published_rows import PublishedOptions
from .sentences import changed_words, listed, method_name, prompt_words
from .special_tables import prompts_table, similarity_table, threshold_table
from .table_model import Table
from .tables import metric_table, results_table
from .value_tables import TEXT_KEYS, texts_label, texts_note, value_tables

# Tables with columns of their own: what the columns are -> the function that makes the table.
SPECIAL: Mapping[str, Callable[[Grid, str, str], Table | None]] = {
    "threshold": threshold_table, "similarity": similarity_table, "prompts": prompts_table,
}


def spec_tables(
    measured: Sequence[Measured], spec: TableSpec, published: PublishedOptions,
    differences: Differences,
) -> list[Table]:
    """The tables of a specification, one for each backbone.

    Args:
        measured: The test runs.
        spec: What the columns, rows and metrics are.
        published: Which published rows are added.
        differences: Which rows state their difference from which other row.
    """
    if spec.columns == "corruption":
        return corruption_tables(measured, spec, published, differences)
    if spec.per == "texts":
        return tables_per_text(measured, spec, published, differences)
    if spec.columns not in ("dataset", "metric", *SPECIAL):
        return value_tables(measured, spec, published)
    tables = []
    for table in by_backbone(measured):
        grid = grid_of(table.runs, table.label, table.label, spec.rows)
        grid.notes += grid_notes(grid)
        finished = grid_table(grid, spec, published, differences)
        if finished is not None:
            tables.append(finished)
    return tables


def grid_table(
    grid: Grid, spec: TableSpec, published: PublishedOptions, differences: Differences,
) -> Table | None:
    """One table of a specification.

    Args:
        grid: The runs of a backbone.
        spec: What the columns, rows and metrics are.
        published: Which published rows are added.
        differences: Which rows state their difference from which other row.

    Returns:
        None if the runs lack what the table shows.
    """
    title = f"{spec.title}, {grid.heading}"
    if spec.columns in SPECIAL:
        table = SPECIAL[spec.columns](grid, spec.name, title)
    elif spec.columns == "metric":
        table = metric_table(grid, spec.name, title, spec.metrics)
    else:
        table = results_table(grid, spec.name, title, spec.metrics, published, differences)
    if table is not None and spec.states_texts:
        table = replace(table, notes=[*table.notes, grid_texts(grid)])
    return table


def grid_texts(grid: Grid) -> str:
    """The seeds and texts of the rows of a table."""
    cells = []
    for (row, _), cell in grid.cells.items():
        cells.append((row.label, cell))
    return texts_note(cells)


def corruption_tables(
    measured: Sequence[Measured], spec: TableSpec, published: PublishedOptions,
    differences: Differences,
) -> list[Table]:
    """For each data set the methods by corruptions, at the highest severity.

    Args:
        measured: Runs on corrupted images.
        spec: What the rows and metrics are.
        published: Which published rows are added.
        differences: Which rows state their difference from which other row.
    """
    tables = []
    for name, runs in by_dataset(measured).items():
        worst = max(int(run.record.data["severity"]) for run in runs)
        at_worst = [run for run in runs if run.record.data["severity"] == worst]
        left_out = only_at_lower_severities(runs, worst)
        for table in by_backbone(at_worst):
            grid = grid_of(table.runs, table.label, table.label, spec.rows)
            grid.notes += grid_notes(grid)
            by_column = results_table(
                grid, f"{spec.name}_{name.lower()}", "", spec.metrics, published, differences
            )
            corruptions = []
            for column in grid.columns:
                corruption = str(column.record.data["corruption"])
                corruptions.append(corruption.replace("_", " "))
            labels = []
            for column, corruption in zip(grid.columns, corruptions, strict=True):
                # Other images of one corruption, such as a pilot, are named by their number.
                is_only = corruptions.count(corruption) == 1
                labels.append(corruption if is_only else grid.column_label(column))
            labels += by_column.columns[len(labels) :]  # the average, if there is one
            title = f"{spec.title}, {grid.heading}, {name} at severity {worst}"
            notes = [*by_column.notes, *left_out, grid_texts(grid)]
            tables.append(replace(by_column, title=title, columns=labels, notes=notes))
    return tables


def only_at_lower_severities(runs: Sequence[Measured], worst: int) -> list[str]:
    """A note on the rows and corruptions that were not run at the severity of a table.

    Args:
        runs: Runs on one data set.
        worst: The severity that the table shows.
    """
    lower = []
    for row in group_records(runs, "row", record_of):
        severities: dict[tuple[str, str], list[int]] = {}
        for run in row:
            corruption = str(run.record.data["corruption"])
            where = (corruption, run.record.key("table"))
            severities.setdefault(where, []).append(int(run.record.data["severity"]))
        first = row[0].record
        label = joined_parts(method_name(first), prompt_words(first), *changed_words(first))
        for (corruption, _), levels in severities.items():
            if worst not in levels:
                corruption_words = corruption.replace("_", " ")
                lower.append(f"{label} on {corruption_words} (up to {max(levels)})")
    if not lower:
        return []
    return [f"Not run at severity {worst}, so not in this table: {listed(lower)}."]


def by_dataset(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """Corrupted runs by the data set, whatever the corruption."""
    groups: dict[str, list[Measured]] = {}
    for run in measured:
        if run.record.data.get("corruption"):
            groups.setdefault(run.record.dataset_name, []).append(run)
    return groups


def tables_per_text(
    measured: Sequence[Measured], spec: TableSpec, published: PublishedOptions,
    differences: Differences,
) -> list[Table]:
    """A table for each choice of texts.

    Args:
        measured: The test runs.
        spec: What the columns, rows and metrics are.
        published: Which published rows are added.
        differences: Which rows state their difference from which other row.
    """
    groups: dict[str, list[Measured]] = {}
    for run in measured:
        groups.setdefault(texts_label(run.record.changed), []).append(run)
    tables = []
    for number, (text, runs) in enumerate(groups.items()):
        part = replace(spec, name=f"{spec.name}_{number}")
        for table in by_backbone(runs):
            # Each data set has a file of descriptions of its own, which makes no other row here.
            grid = grid_of(table.runs, table.label, table.label, spec.rows, hidden=TEXT_KEYS)
            grid.notes += grid_notes(grid)
            finished = grid_table(grid, part, published, differences)
            if finished is not None:
                tables.append(replace(finished, title=f"{finished.title}: {text}"))
    return tables

