"""Tables with columns of their own: thresholds, class similarity, prompts, decisions, all metrics.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...datasets.utils.cli import counted
from ..functional.intervals import Interval
from ..functional.selective import selective_accuracy
from .entries import cell_entry, has_one_prediction, mean_entry
from .figures.class_pairs import PairErrors, pair_errors_of
from .figures.comparison import mean_point
from .grid import Grid, Row
from .grid_notes import failure_notes
from .marks import Entries, mark_best
from .measure import ALPHA, Measured
from .metrics import COVERAGE, METRICS, OF_UNEQUAL_CLASSES, POSTHOC, SURE, TEMPERATURE
from .sentences import images_fact
from .table_model import UNEQUAL_SEEDS, Entry, RowBlock, Table, TableRow, fact_sentences
from .tables import best_facts, entries_of, temperature_note

THRESHOLDS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
THIRDS = ("least alike third", "middle third", "most alike third", "all")

# The metrics of each table of single runs; what a plugin registers is in the last one.
DECISIONS = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "selective_accuracy",
    "share_above",
    "risk",
    "auroc",
    "aurc",
)
CALIBRATION = ("signed_error", "ece", "rms_calibration_error", "smooth_ece", "ace", "mce",
               "classwise_ece")
POSTHOC_TABLE = ("ece_sals", TEMPERATURE)
SCORES = ("brier", "nll")

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


def single_run_table(
    grid: Grid, name: str, title: str, metrics: Sequence[str], notes: Sequence[str],
    with_sets: bool = False,
) -> Table | None:
    """Some metrics of every method with intervals, a block for each data set.

    Args:
        grid: The runs.
        name: Name of the table, for its files and anchors.
        title: Title of the table.
        metrics: Names of the metrics; those that no run has are left out.
        notes: What the metrics mean.
        with_sets: Whether conformal sets are added.
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
    """The rows of one data set.

    Args:
        cells: The runs of each row.
        metrics: Names of the metrics.
        kinds: Kinds of conformal sets.
    """
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
    """Coverage in percent and mean size of each kind of conformal sets, two cells per kind.

    Args:
        cell: The runs of a row on a data set, one per seed.
        kinds: Kinds of conformal sets.
    """
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
        decimals: Number of decimals that the table shows.
    """
    entry = mean_entry([scale * float(interval.value) for interval in intervals], decimals)
    low = scale * float(intervals[0].low)
    high = scale * float(intervals[0].high)
    if len(intervals) == 1 and math.isfinite(low) and math.isfinite(high):
        entry = replace(entry, low=low, high=high)
    return entry


def decision_table(grid: Grid, name: str, title: str) -> Table | None:
    """What a user who may decline to answer needs: selective accuracy, risk, conformal sets.

    Args:
        grid: The runs of a backbone.
        name: Name of the table, for its files and anchors.
        title: Title of the table.
    """
    return single_run_table(
        grid, name, title, DECISIONS, [DECISION_NOTE, SETS_NOTE], with_sets=True
    )


def metric_tables(grid: Grid, name: str) -> list[Table]:
    """Tables of the metrics that the other tables do not show, sorted by what they measure.

    Args:
        grid: The runs.
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


def threshold_table(grid: Grid, name: str, title: str) -> Table:
    """Accuracy of the predictions above a confidence, over all data sets, and the share kept.

    Args:
        grid: The runs.
        name: Name of the table, for its files and anchors.
        title: Title of the table.
    """
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
        grid: The runs.
        row: The method.
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

    Args:
        grid: The runs.
        name: Name of the table, for its files and anchors.
        title: Title of the table.

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

    Args:
        grid: The runs.
        name: Name of the table, for its files and anchors.
        title: Title of the table.

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
