"""The tables of `report`: methods × data sets, methods × metrics, and metrics of single runs."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...datasets.utils.cli import counted
from ..config.table import AVERAGE
from ..functional.intervals import Interval
from .cells import (
    Entries,
    add_differences,
    add_published_rows,
    average_entry,
    cell_entry,
    compares_within_settings,
    has_one_prediction,
    mark_best,
    mean_entry,
    published_note,
    tuned_rows,
)
from .grid import Column, Grid, Row, joined_parts
from .grid_notes import differing_note, failure_notes, seeds_words, stream_words
from .layout import PLAIN, Layout
from .measure import ALPHA, Measured, mean_over_seeds, measured_alike
from .metrics import COVERAGE, METRICS, OF_UNEQUAL_CLASSES, POSTHOC, SURE, TEMPERATURE, find_metric
from .table import Entry, RowBlock, Table, TableRow, fact_sentences
from .words import images_fact, is_untuned_prompt, joined_with_or, listed

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
# The metrics of each table of single runs; what a plugin registers is in the last one.
DECISIONS = (
    "accuracy", "balanced_accuracy", "macro_f1", "selective_accuracy", "share_above", "risk",
    "auroc", "aurc",
)
CALIBRATION = ("signed_error", "ece", "rms_calibration_error", "smooth_ece", "ace", "mce",
               "classwise_ece")
POSTHOC_TABLE = ("ece_sals", TEMPERATURE)
DECISION_NOTE = (
    f"Accuracy above {SURE:g}: of the predictions whose confidence exceeds {SURE:g}. Errors at "
    f"{100 * COVERAGE:g} % coverage: error rate of the most confident {100 * COVERAGE:g} % of the "
    "images. AUROC and AURC: how well confidence separates right from wrong."
)
SETS_NOTE = (
    f"Conformal sets with nominal coverage {100 * (1 - ALPHA):g} %: a seeded half of each class's "
    "test images, with their labels, gives the threshold; coverage (share of sets that hold the "
    "true class) and size (classes per set) are of the other half."
)
CALIBRATION_NOTE = (
    "ECE, smooth ECE, ACE, MCE and classwise ECE have no interval: chance adds to the |gap| of "
    "each bin, so on few images they are too high. The debiased RMS error is without what chance "
    "adds (Kumar, Liang and Ma, 2019), so it can be below ECE."
)
UNEQUAL_NOTE = (
    "The classes have unequal numbers of test images. Balanced accuracy: mean over classes of the "
    "share of right images. Macro-F1: mean over classes of F1."
)
GROUPS_NOTE = (
    "Images of one group (such as a patient) are not independent: accuracy and over-confidence "
    "have intervals by group, other metrics have none."
)


def results_table(
    grid: Grid, name: str, title: str, metrics: Sequence[str], layout: Layout = PLAIN,
) -> Table:
    """Rows of methods, columns of data sets and their average, a block for each metric."""
    metrics = without_absent_memory(grid, metrics)
    common = grid.common_columns()
    has_average = len(common) > 1
    labels = [grid.column_label(column) for column in grid.columns]
    if has_average:
        labels.append(AVERAGE)
    blocks = []
    sources: list[str] = []
    baselines: list[Row] = []
    for metric in metrics:
        entries = result_entries(grid, common, metric)
        for baseline in add_differences(entries, grid, common, metric, layout.differences):
            if baseline not in baselines:
                baselines.append(baseline)
        rows = mark_best(entries, metric)
        if layout.published:
            rows, printed_in = add_published_rows(rows, grid, metric, has_average, layout)
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
    if layout.published:
        notes.append(published_note(sources, layout.published, grid.backbone))
    return Table(name, title, labels, blocks, notes, facts)


def result_entries(grid: Grid, common: Sequence[Column], metric: str) -> Entries:
    """A metric of every row on every column, and averaged over the common ones.

    Args:
        common: The columns that are averaged; with one there is no average.
    """
    entries: Entries = {}
    for row in grid.rows:
        cells = [cell_entry(grid.cells.get((row, column), []), metric) for column in grid.columns]
        if len(common) > 1:
            cells.append(row_average(grid, row, common, metric))
        entries[row] = cells
    return entries


def row_average(grid: Grid, row: Row, columns: Sequence[Column], metric: str) -> Entry | None:
    """The average of a row over some columns; None if it lacks one of them."""
    cells = [grid.cells.get((row, column), []) for column in columns]
    return average_entry(cells, metric)


def metric_table(grid: Grid, name: str, title: str, metrics: Sequence[str]) -> Table:
    """One line per method with every metric, the mean over the data sets that all methods have.

    Args:
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
    """What ± means, if any entry has it."""
    for entry in entries_of(blocks):
        if entry.spread.startswith("±"):
            return [seeds_words(cells)]
    return []


def metric_notes(grid: Grid, metrics: Sequence[str]) -> list[str]:
    """Notes on the metrics of a table whose names do not say what they are."""
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




def single_run_table(
    grid: Grid, name: str, title: str, metrics: Sequence[str], notes: Sequence[str],
    with_sets: bool = False,
) -> Table | None:
    """Some metrics of every method with intervals, a block for each data set.

    Args:
        metrics: Names of the metrics; those that no run has are left out.
    """
    measured_metrics: set[str] = set()
    for measured in grid.measured:
        measured_metrics |= set(measured.metrics)
    if not any(measured.has_unequal_classes for measured in grid.measured):
        measured_metrics -= set(OF_UNEQUAL_CLASSES)
    present = [metric for metric in metrics if metric in measured_metrics]
    if not present:
        return None
    labels = [METRICS[metric].heading for metric in present]
    kinds = set_kinds(grid) if with_sets else []
    for kind in kinds:
        labels += [f"{kind} coverage (%)", f"{kind} size"]
    blocks = []
    for column in grid.columns:
        rows = single_run_rows(grid.cells_on(column), present, kinds)
        blocks.append(RowBlock(grid.column_label(column, with_count=True), rows))
    facts = [counted(grid.bins, "bin"), *best_facts(blocks, grid), *interval_facts(blocks)]
    all_notes = [*failure_notes(grid), fact_sentences(facts), *notes]
    if TEMPERATURE in present:
        all_notes.append(temperature_note(grid))
    if set(present) & set(OF_UNEQUAL_CLASSES):
        all_notes.append(UNEQUAL_NOTE)
    if has_groups(grid):
        all_notes.append(GROUPS_NOTE)
    return Table(name, title, labels, blocks, all_notes, facts)


def interval_facts(blocks: Sequence[RowBlock]) -> list[str]:
    """What brackets and ± mean, of those that the blocks have."""
    spreads = [entry.spread for entry in entries_of(blocks)]
    facts = []
    if any(spread.startswith("[") for spread in spreads):
        facts.append("brackets: 95 % interval of one run")
    if any(spread.startswith("±") for spread in spreads):
        facts.append("± is the sample standard deviation over seeds")
    return facts


def single_run_rows(
    cells: Sequence[tuple[Row, list[Measured]]], metrics: Sequence[str], kinds: Sequence[str],
) -> list[TableRow]:
    """The rows of one data set."""
    entries_of_row: dict[Row, list[Entry | None]] = {row: [] for row, _ in cells}
    for metric in metrics:
        entries: Entries = {}
        for row, cell in cells:
            entries[row] = [cell_entry(cell, metric, interval=True)]
        for row, line in zip(entries, mark_best(entries, metric), strict=True):
            entries_of_row[row] += line.entries
    rows = []
    for row, cell in cells:
        rows.append(
            TableRow(row.label, row.method, [*entries_of_row[row], *set_entries(cell, kinds)])
        )
    return rows


def has_groups(grid: Grid) -> bool:
    """Whether a run has clusters of several images, so that most intervals are not shown."""
    for measured in grid.measured:
        brier = measured.metrics.get("brier")
        if measured.cluster is not None and brier is not None and np.isnan(brier.low):
            return measured.n > 1
    return False


def set_kinds(grid: Grid) -> list[str]:
    """The kinds of conformal sets that were made."""
    kinds: dict[str, None] = {}
    for measured in grid.measured:
        kinds.update(dict.fromkeys(measured.sets))
    return list(kinds)


def set_entries(cell: Sequence[Measured], kinds: Sequence[str]) -> list[Entry | None]:
    """Coverage in percent and mean size of each kind of conformal sets, two cells per kind."""
    entries: list[Entry | None] = []
    for kind in kinds:
        coverages = []
        sizes = []
        for measured in cell:
            if kind in measured.sets:
                coverages.append(measured.sets[kind].coverage_interval)
                sizes.append(measured.sets[kind].size_interval)
        if coverages:
            set_cells = [interval_entry(coverages, 100, 1), interval_entry(sizes, 1, 2)]
            if has_one_prediction(cell):
                set_cells = [replace(entry, std=None) for entry in set_cells]
            entries += set_cells
        else:
            entries += [None, None]
    return entries


def interval_entry(intervals: Sequence[Interval], scale: int, decimals: int) -> Entry:
    """The mean over seeds, or the value of one run with its interval.

    Args:
        intervals: One per seed.
        scale: Factor from the intervals' unit to that of the table.
    """
    entry = mean_entry([scale * float(interval.value) for interval in intervals], decimals)
    low = scale * float(intervals[0].low)
    high = scale * float(intervals[0].high)
    if len(intervals) == 1 and math.isfinite(low) and math.isfinite(high):
        entry = replace(entry, low=low, high=high)
    return entry


def decision_table(grid: Grid, name: str, title: str) -> Table | None:
    """What a user who may decline to answer needs: selective accuracy, risk, conformal sets."""
    return single_run_table(
        grid, name, title, DECISIONS, [DECISION_NOTE, SETS_NOTE], with_sets=True
    )


def metric_tables(grid: Grid, name: str) -> list[Table]:
    """Tables of the metrics that the other tables do not show, sorted by what they measure.

    Args:
        name: Name of the main table, to which the names of these tables add a word.
    """
    elsewhere = {*DECISIONS, *CALIBRATION, *POSTHOC_TABLE, *POSTHOC, "seconds", "device_memory"}
    others = [metric for metric in METRICS if metric not in elsewhere]
    tables = []
    calibration = single_run_table(
        grid, f"{name}_calibration", f"Calibration errors, {grid.heading}", CALIBRATION,
        [CALIBRATION_NOTE])
    if calibration is not None:
        tables.append(calibration)
    scores = single_run_table(
        grid, f"{name}_scores", f"Proper scores and further metrics, {grid.heading}", others,
        ["Brier from 0 to 2, NLL in nats."])
    if scores is not None:
        tables.append(scores)
    return tables


def main_tables(grid: Grid, name: str, layout: Layout) -> list[Table]:
    """Accuracy and ECE of a main grid, and what a user who may decline to answer needs.

    Args:
        grid: The runs of a backbone with the main table's settings.
        name: Name of the first table; those of the others add a word.
    """
    title = f"Accuracy and ECE, {grid.heading}"
    results = results_table(grid, name, title, ["accuracy", "ece"], layout)
    decisions = decision_table(
        grid, f"{name}_decisions", f"Decisions by confidence, {grid.heading}")
    if decisions is None:
        return [results]
    return [results, decisions]


def further_tables(grid: Grid, name: str, layout: Layout) -> list[Table]:
    """The other metrics of a main grid: after post-hoc scaling, ACE, then all by their kind.

    Args:
        grid: The runs of a backbone with the main table's settings.
        name: Name of the main table, to which the names of these tables add a word.
    """
    plain = replace(grid, notes=failure_notes(grid))  # the first table has the other notes
    posthoc_metrics = list(POSTHOC_TABLE)
    if layout.posthoc:
        posthoc_metrics += POSTHOC
    title = f"ECE after post-hoc scaling, {grid.heading}"
    posthoc = results_table(plain, f"{name}_posthoc", title, posthoc_metrics, layout)
    title = f"Adaptive calibration error, {grid.heading}"
    ace = results_table(plain, f"{name}_ace", title, ["ace"], layout)
    return [posthoc, ace, *metric_tables(grid, name)]
