"""The tables that a layout describes.

Some have columns of their own: thresholds of confidence, class similarity, initial prompts.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...datasets.utils.cli import counted
from ..functional.intervals import Interval
from ..functional.selective import selective_accuracy
from ..runs.record import group_records
from .arrange import by_backbone
from .figures.class_pairs import PairErrors, pair_errors_of
from .figures.comparison import mean_point
from .grid import Grid, Row, grid_of, joined_parts, record_of
from .grid_notes import grid_notes
from .layout import Layout, TableSpec
from .measure import Measured
from .report_tables import metric_table, results_table
from .table import UNEQUAL_SEEDS, Entry, RowBlock, Table, TableRow, fact_sentences
from .value_tables import TEXT_KEYS, texts_label, texts_note, value_tables
from .words import changed_words, images_fact, listed, method_name, prompt_words

THRESHOLDS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
THIRDS = ("least alike third", "middle third", "most alike third", "all")


def spec_tables(
    measured: Sequence[Measured], spec: TableSpec, layout: Layout,
) -> list[Table]:
    """The tables of a specification, one for each backbone."""
    if not spec.published:
        layout = replace(layout, published="")
    if spec.columns == "corruption":
        return corruption_tables(measured, spec, layout)
    if spec.per == "texts":
        return tables_per_text(measured, spec, layout)
    if spec.columns not in ("dataset", "metric", *SPECIAL):
        return value_tables(measured, spec, layout)
    tables = []
    for table in by_backbone(measured):
        grid = grid_of(table.runs, table.label, table.label, spec.rows)
        grid.notes += grid_notes(grid)
        finished = grid_table(grid, spec, layout)
        if finished is not None:
            tables.append(finished)
    return tables


def grid_table(
    grid: Grid, spec: TableSpec, layout: Layout,
) -> Table | None:
    """One table of a specification.

    Returns:
        None if the runs lack what the table shows.
    """
    title = f"{spec.title}, {grid.heading}"
    if spec.columns in SPECIAL:
        table = SPECIAL[spec.columns](grid, spec.name, title)
    elif spec.columns == "metric":
        table = metric_table(grid, spec.name, title, spec.metrics)
    else:
        table = results_table(grid, spec.name, title, spec.metrics, layout)
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
    measured: Sequence[Measured], spec: TableSpec, layout: Layout,
) -> list[Table]:
    """For each data set the methods by corruptions, at the highest severity.

    Args:
        measured: Runs on corrupted images.
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
                grid, f"{spec.name}_{name.lower()}", "", spec.metrics, layout)
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
    measured: Sequence[Measured], spec: TableSpec, layout: Layout,
) -> list[Table]:
    """A table for each choice of texts."""
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
            finished = grid_table(grid, part, layout)
            if finished is not None:
                tables.append(replace(finished, title=f"{finished.title}: {text}"))
    return tables


def threshold_table(grid: Grid, name: str, title: str) -> Table:
    """Accuracy of the predictions above a confidence, over all data sets, and the share kept."""
    columns = grid.common_columns()
    accuracy = RowBlock("Accuracy of those kept (%)", [])
    share_kept = RowBlock("Share kept (%)", [])
    rows = grid.rows_on(columns) if columns else []
    for row in rows:
        accuracies = []
        shares = []
        for threshold in THRESHOLDS:
            interval, share = pooled_selection(grid, row, threshold)
            accuracies.append(Entry(
                100 * float(interval.value),
                low=100 * float(interval.low),
                high=100 * float(interval.high),
            ))
            shares.append(Entry(100 * share))
        accuracy.rows.append(TableRow(row.label, row.method, accuracies))
        share_kept.rows.append(TableRow(row.label, row.method, shares))
    labels = [f"> {threshold:g}" for threshold in THRESHOLDS]
    total = sum(column.n for column in columns)
    names = ", ".join(column.label for column in columns)
    facts = [f"{total:,} test images of {names} together, first seed of each",
             "brackets: 95 % interval"]
    notes = [fact_sentences(facts), *grid.notes]
    return Table(name, title, labels, [accuracy, share_kept], notes, facts)


def pooled_selection(grid: Grid, row: Row, threshold: float) -> tuple[Interval, float]:
    """Accuracy above a confidence on all common columns together, of a row's first seed.

    Args:
        threshold: Predictions whose confidence exceeds it are kept.

    Returns:
        Accuracy of the predictions that are kept, and their share, as fractions.
    """
    confidences = []
    corrects = []
    clusters = []
    for column in grid.common_columns():
        first = grid.cells[row, column][0]
        confidences.append(first.tuned.confidence)
        corrects.append(first.tuned.correct)
        if first.cluster is not None:
            clusters.append(first.cluster)
    confidence = np.concatenate(confidences)
    share = float((confidence > threshold).mean())
    identities = None
    if len(clusters) == len(confidences):
        identities = np.concatenate(clusters)
    accuracy = selective_accuracy(confidence, np.concatenate(corrects), threshold, identities)
    return accuracy, share


def similarity_table(grid: Grid, name: str, title: str) -> Table | None:
    """Mean confidence of the mistakes, by the similarity of the predicted and the true class.

    Returns:
        None if no run knows the similarity of its classes.
    """
    blocks = []
    for column in grid.columns:
        rows = []
        for row, cell in grid.cells_on(column):
            data = pair_errors_of(cell[0])
            if data is not None:
                entries = [Entry(value) for value in mistakes_by_similarity(data)]
                rows.append(TableRow(row.label, row.method, entries))
        if rows:
            label = f"{grid.column_label(column)}: mean confidence of the mistakes (%)"
            blocks.append(RowBlock(label, rows))
    if not blocks:
        return None
    facts = [images_fact(grid.counts())]
    if any(len(cell) > 1 for cell in grid.cells.values()):
        facts.append("first seed of each")
    notes = [
        "Mistakes sorted by the zero-shot similarity of predicted and true class. Accuracy among "
        "mistakes is 0, so their mean confidence is their ECE.",
        fact_sentences(facts),
        *grid.notes,
    ]
    return Table(name, title, list(THIRDS), blocks, notes, facts)


def mistakes_by_similarity(data: PairErrors) -> list[float]:
    """Mean confidence in percent of each third of the mistakes, and of all; NaN if there are none.
    """
    order = np.argsort(data.similarity, kind="stable")
    # Thirds of the mistakes, not of the pairs of classes: a pair belongs to the third of its last
    # mistake.
    last_mistake = np.cumsum(data.count[order]) - 1  # of each pair, counted from 0
    total = max(data.count.sum(), 1)
    third = np.minimum(3 * last_mistake // total, 2)
    values = []
    for part in (order[third == 0], order[third == 1], order[third == 2], order):
        if len(part):
            values.append(100 * float(np.average(data.error[part], weights=data.count[part])))
        else:
            values.append(float("nan"))
    return values


def prompts_table(grid: Grid, name: str, title: str) -> Table | None:
    """Over all initial prompts each method's mean and worst ECE, and how often it is the lowest.

    Returns:
        None if no data set has a prompt with which all methods were run.
    """
    methods: dict[str, str] = {}  # the method of each row without its prompt
    prompts: dict[str, None] = {}
    for row in grid.rows:
        methods[row.base] = row.method
        prompts[row.variant] = None
    entries: dict[str, list[Entry | None]] = {base: [] for base in methods}
    labels: list[str] = []
    for column in grid.columns:
        ece: dict[str, dict[str, float]] = {}  # by prompt and method
        unranked: set[str] = set()  # methods with too many failed images
        seeds: dict[str, set[int]] = {base: set() for base in methods}  # number of each cell
        for row, cell in grid.cells_on(column):
            ece.setdefault(row.variant, {})[row.base] = mean_point(cell).ece
            seeds[row.base].add(len(cell))
            if not grid.is_ranked(row, [column]):
                unranked.add(row.base)
        shared = [by_method for by_method in ece.values() if len(by_method) == len(methods)]
        if not shared:
            continue
        label = grid.column_label(column)
        labels += [f"{label}: mean", f"{label}: worst", f"{label}: lowest of {len(shared)}"]
        for base in methods:
            values = [by_method[base] for by_method in shared]
            count = seeds[base].pop() if len(seeds[base]) == 1 else UNEQUAL_SEEDS
            entries[base].append(Entry(float(np.mean(values)), seeds=count))
            entries[base].append(Entry(max(values), seeds=count))
            if base in unranked:
                entries[base].append(None)
            else:
                entries[base].append(Entry(times_lowest(base, shared, unranked), 0, seeds=count))
    if not labels:
        return None
    rows = []
    for base, cells in entries.items():
        rows.append(TableRow(base, methods[base], cells))
    facts = [counted(len(prompts), "initial prompt"), images_fact(grid.counts()),
             counted(grid.bins, "bin")]
    notes = [fact_sentences(facts), *grid.notes]
    return Table(name, title, labels, [RowBlock("ECE (%)", rows)], notes, facts)


def times_lowest(
    method: str, by_prompt: Sequence[Mapping[str, float]], unranked: Collection[str],
) -> int:
    """With how many prompts a method has the lowest ECE, and no other has the same.

    Args:
        method: The method, which is ranked.
        by_prompt: The ECE of each method, one mapping for each prompt.
        unranked: Methods that do not count, because too many images failed.
    """
    times = 0
    for ece in by_prompt:
        ranked = [value for name, value in ece.items() if name not in unranked]
        lowest = min(ranked)
        if ece[method] == lowest and ranked.count(lowest) == 1:
            times += 1
    return times


# Tables with columns of their own: what the columns are -> the function that makes the table.
SPECIAL: Mapping[str, Callable[[Grid, str, str], Table | None]] = {
    "threshold": threshold_table, "similarity": similarity_table, "prompts": prompts_table,
}
