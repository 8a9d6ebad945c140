"""Tables of methods × data sets, and of methods × metrics."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...datasets.utils.cli import counted
from .entries import average_entry, cell_entry
from .grid import Column, Grid, Row, joined_parts
from .grid_notes import differing_note, seeds_words, stream_words
from .layout import FROM_BASELINE, Differences
from .marks import Entries, add_differences, compares_within_settings, mark_best, tuned_rows
from .measure import Measured, mean_over_seeds, measured_alike
from .metrics import POSTHOC, TEMPERATURE, find_metric
from .published_rows import PublishedOptions, add_published_rows, published_note
from .sentences import images_fact, is_untuned_prompt, joined_with_or, listed
from .table_model import Entry, RowBlock, Table, TableRow, fact_sentences

TEMPERATURE_NOTE = (
    "† temperature scaling needs labels, which test-time tuning never sees: a reference, not a "
    "method. It is fitted on a run over the validation split (TEST.SPLIT val) if there is one; "
    "otherwise each half of the test images is scaled by the temperature fitted on the other half."
)
POSTHOC_NOTE = (
    "CoTS and E-CoTS rescale each image by its own strong views; they need a method that uses "
    "several views. A method that does not change the prompt has τ = 1 everywhere. E-CoTS weights "
    "the plain view by the mean cosine a of the classes: where class features are nearly "
    "orthogonal, as those of small models are, the strong views decide alone and accuracy falls. "
    "Fixed temperature: 1.16 for transformers, 1.15 for ResNets, as in C-TPT's code."
)
SECONDS_NOTE = (
    "Seconds per image: adaptation and prediction from cached view features, on the machine of "
    "each run, without encoding."
)
MEMORY_NOTE = (
    "GPU memory: the most that tensors took at once, model and encoding included; libraries and "
    "fragmentation take more. Runs on a CPU have none."
)
SHARED_NOTE = (
    "Where two runs did not predict the same images, their difference is of the images that both "
    "have, found by identity."
)


def results_table(
    grid: Grid, name: str, title: str, metrics: Sequence[str], published: PublishedOptions,
    differences: Differences = FROM_BASELINE,
) -> Table:
    """Rows of methods, columns of data sets and their average, a block for each metric.

    Args:
        grid: The runs.
        name: Name of the table, for its files and anchors.
        title: Title of the table.
        metrics: Names of the metrics.
        published: Which published rows are added.
        differences: Which rows state their difference from which other row.
    """
    metrics = without_absent_memory(grid, metrics)
    common = grid.common_columns()
    has_average = len(common) > 1
    labels = [grid.column_label(column) for column in grid.columns]
    if has_average:
        labels.append("Average")
    blocks = []
    sources: list[str] = []
    baselines: list[Row] = []
    for metric in metrics:
        entries = result_entries(grid, common, metric)
        for baseline in add_differences(entries, grid, common, metric, differences):
            if baseline not in baselines:
                baselines.append(baseline)
        rows = mark_best(entries, metric)
        if published.source:
            rows, printed_in = add_published_rows(rows, grid, metric, has_average, published)
            sources += printed_in
        blocks.append(RowBlock(find_metric(metric).heading, rows))
    facts = table_facts(blocks, grid, baselines)
    notes = [*grid.notes, fact_sentences(facts)]
    if baselines and any(measured.skipped for measured in grid.measured):
        notes.append(SHARED_NOTE)
    streams = stream_words(grid)
    if streams:
        notes.append(streams)
    notes += metric_notes(grid, metrics)
    if published.source:
        notes.append(published_note(sources, published.source, grid.backbone))
    return Table(name, title, labels, blocks, notes, facts)


def result_entries(grid: Grid, common: Sequence[Column], metric: str) -> Entries:
    """A metric of every row on every column, and averaged over the common ones.

    Args:
        grid: The runs.
        common: The columns that are averaged; with one there is no average.
        metric: Name of the metric.
    """
    entries: Entries = {}
    for row in grid.rows:
        cells = [cell_entry(grid.cells.get((row, column), []), metric) for column in grid.columns]
        if len(common) > 1:
            cells.append(row_average(grid, row, common, metric))
        entries[row] = cells
    return entries


def row_average(grid: Grid, row: Row, columns: Sequence[Column], metric: str) -> Entry | None:
    """The average of a row over some columns; None if it lacks one of them.

    Args:
        grid: The runs.
        row: The row.
        columns: The data sets.
        metric: Name of the metric.
    """
    cells = [grid.cells.get((row, column), []) for column in columns]
    return average_entry(cells, metric)


def metric_table(grid: Grid, name: str, title: str, metrics: Sequence[str]) -> Table:
    """One line per method with every metric, the mean over the data sets that all methods have.

    Args:
        grid: The runs.
        name: Name of the table, for its files and anchors.
        title: Title of the table.
        metrics: Names of the metrics, which are the columns.
    """
    metrics = without_absent_memory(grid, metrics)
    common = grid.common_columns()
    by_metric = []
    for metric in metrics:
        entries: Entries = {}
        for row in grid.rows:
            entries[row] = [row_average(grid, row, common, metric)]
        by_metric.append(mark_best(entries, metric))
    rows = []
    for number, row in enumerate(grid.rows):
        cells = [lines[number].entries[0] for lines in by_metric]
        rows.append(TableRow(row.label, row.method, cells))
    block = RowBlock("", rows)
    facts = []
    if len(common) > 1:
        averaged = [grid.column_label(column) for column in common]
        facts.append(f"average over {', '.join(averaged)}")
    facts += [images_fact(grid.counts(common)), counted(grid.bins, "bin")]
    facts += spread_facts([block], grid.cells)
    notes = [fact_sentences(facts), *grid.notes]
    notes += metric_notes(grid, metrics)
    headings = [find_metric(metric).heading for metric in metrics]
    return Table(name, title, headings, [block], notes, facts)


def table_facts(
    blocks: Sequence[RowBlock], grid: Grid, baselines: Sequence[Row] = (),
) -> list[str]:
    """Images, bins, and what the marks of a table mean, for its caption.

    Args:
        blocks: Blocks of the table.
        grid: The runs.
        baselines: The rows from which others state their difference.
    """
    has_differences = any(entry.difference is not None for entry in entries_of(blocks))
    facts = [images_fact(grid.counts()), counted(grid.bins, "bin"), *best_facts(blocks, grid)]
    if has_differences:
        facts.append(f"in parentheses: difference from {baseline_words(baselines)}")
    return [*facts, *spread_facts(blocks, grid.cells)]


def best_facts(blocks: Sequence[RowBlock], grid: Grid) -> list[str]:
    """What bold means, if a cell of the blocks is bold."""
    if any(entry.best for entry in entries_of(blocks)):
        return [f"bold: best of the tuned methods{within_words(tuned_rows(grid.rows))}"]
    return []


def within_words(tuned: Sequence[Row]) -> str:
    """Words for a caption on which tuned methods are compared; "" if all are with one another."""
    within = []
    if len({row.protocol for row in tuned}) > 1:
        within.append("prompt by prompt")
    if compares_within_settings(tuned):
        within.append("setting by setting")
    if not within:
        return ""
    return f", {' and '.join(within)}"


def baseline_words(baselines: Sequence[Row]) -> str:
    """The methods from which rows state their difference."""
    names: dict[str, None] = {}
    for row in baselines:
        name = joined_parts(row.name, row.settings, row.details)
        if is_untuned_prompt(row.record):
            name = "the untuned prompt"
        names[name] = None
    return joined_with_or(list(names))


def entries_of(blocks: Sequence[RowBlock]) -> list[Entry]:
    """All cells of a table that are not empty."""
    entries = []
    for block in blocks:
        for row in block.rows:
            for entry in row.entries:
                if entry is not None:
                    entries.append(entry)
    return entries


def spread_facts(
    blocks: Sequence[RowBlock], cells: Mapping[tuple[Row, Column], Sequence[Measured]],
) -> list[str]:
    """What ± means, if any entry has it.

    Args:
        blocks: Blocks of the table.
        cells: The runs of each row and column.
    """
    for entry in entries_of(blocks):
        if entry.spread.startswith("±"):
            return [seeds_words(cells)]
    return []


def metric_notes(grid: Grid, metrics: Sequence[str]) -> list[str]:
    """Notes on the metrics of a table whose names do not say what they are.

    Args:
        grid: The runs.
        metrics: Names of the metrics that the table shows.
    """
    notes = []
    if TEMPERATURE in metrics:
        notes.append(temperature_note(grid))
    if set(POSTHOC) & set(metrics):
        notes.append(POSTHOC_NOTE)
    if "seconds" in metrics:
        notes += [SECONDS_NOTE, *device_notes(grid)]
    if "device_memory" in metrics:
        notes.append(MEMORY_NOTE)
    return notes


def device_notes(grid: Grid) -> list[str]:
    """A note if rows were computed on other devices, so that their times do not compare."""
    devices: dict[str, list[str]] = {}
    for (row, _), cell in grid.cells.items():
        if cell[0].from_tuned_run:  # which has no times of its own
            continue
        of_row = devices.setdefault(row.label, [])
        for measured in cell:
            device = str(measured.run.results.get("device") or "unknown")
            if device not in of_row:
                of_row.append(device)
    ordered = {label: sorted(of_row) for label, of_row in devices.items()}
    notes = differing_note("Devices differ between the rows", ordered)
    for of_row in ordered.values():
        if not notes and len(of_row) > 1:
            notes.append(f"Times are of several devices: {', '.join(of_row)}.")
    return notes


def without_absent_memory(grid: Grid, metrics: Sequence[str]) -> Sequence[str]:
    """Metrics without the memory of a GPU, where all runs were on a CPU."""
    if any("device_memory" in measured.metrics for measured in grid.measured):
        return metrics
    return [metric for metric in metrics if metric != "device_memory"]


def temperature_note(grid: Grid) -> str:
    """What temperature scaling is, on what it was fitted, and where it raises ECE."""
    fitted = []
    raised = []
    for (row, column), cell in grid.cells.items():
        where = f"{row.label} on {grid.column_label(column)}"
        counts = []  # of validation images, of the seeds that have any
        for measured in cell:
            if measured.temperature_from > 0:
                counts.append(measured.temperature_from)
        if counts:
            words = ", ".join(f"{count:,}" for count in sorted(set(counts)))
            if len(counts) < len(cell):
                words += f" for {len(counts)} of {len(cell)} seeds, the others do not count"
            fitted.append(f"{where} ({words})")
        scaled = measured_alike(cell, TEMPERATURE)
        if all(TEMPERATURE in measured.metrics for measured in scaled):
            before = f"{100 * mean_over_seeds(scaled, 'ece'):.1f}"
            after = f"{100 * mean_over_seeds(scaled, TEMPERATURE):.1f}"
            if float(after) > float(before):
                raised.append(f"{where} ({before} → {after})")
    note = TEMPERATURE_NOTE
    if fitted:
        note += f" Fitted on validation images: {listed(fitted)}."
    if raised:
        note += f" It minimises NLL, not ECE, and raises the ECE here of {listed(raised)}."
    return note
