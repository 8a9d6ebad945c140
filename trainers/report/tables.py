"""The report's tables: methods × data sets in the paper's layout, all metrics, and conformal sets."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...datasets.base import dataset_info
from ..functional.conformal import KINDS, Sets, conformal
from ..registry import method_info, method_key
from . import published as paper
from .comparison import Column, Comparison, Row, non_default_settings
from .measure import Measured, mean_over_seeds
from .metrics import INTERVAL_NOTE, METRICS, POSTHOC_NOTE, TEMPERATURE_NOTE
from .table_model import Entry, RowBlock, Table, TableRow

Grid = Mapping[Row, Sequence[Entry | None]]

ALPHAS = (0.1, 0.05)  # share of conformal sets that may miss the truth
CONFORMAL_NOTE = (
    "Conformal sets of predictions: a seeded half of each class's test images, with their labels, gives the threshold; "
    "the numbers are of the other half. Coverage: share of sets that hold the true class. Size: classes per set. Gap: "
    "mean over classes of the distance between a class's coverage and the nominal one. LAC, APS, RAPS (λ 0.001, one "
    "free rank)."
)


def paper_table(
    comparison: Comparison, name: str, title: str, metrics: Sequence[str], with_published: bool = False,
    source: str = paper.SOC,
) -> Table:
    """Rows of methods, columns of data sets and their average, a block for each metric; optionally with the rows that
    `source` has published."""
    common = comparison.common_columns()
    average = len(common) > 1
    columns = [comparison.column_label(column) for column in comparison.columns] + ["Average"] * average
    blocks: list[RowBlock] = []
    sources: set[str] = set()
    for metric in metrics:
        grid = {}
        for row in comparison.rows:
            grid[row] = [_cell(comparison, row, column, metric) for column in comparison.columns]
            if average:
                grid[row].append(average_over([comparison.cells.get((row, column), []) for column in common], metric))
        rows = mark(grid, metric)
        if with_published:
            rows, used = _add_published(rows, comparison, metric, average, source)
            sources |= used
        blocks.append(RowBlock(METRICS[metric].heading, rows))
    notes = [*comparison.notes, _legend(blocks, comparison)]
    if "ece_temperature" in metrics:
        notes += _temperature_notes(comparison)
    if "ece_cots" in metrics:
        notes.append(POSTHOC_NOTE)
    if with_published:
        notes += _published_notes(comparison, sources, source)
    return Table(name, title, columns, blocks, notes)


def metrics_table(comparison: Comparison, name: str, title: str, bins: int) -> Table:
    """Every metric of every method, a block for each data set."""
    keys = [key for key in METRICS if any(key in m.metrics for group in comparison.cells.values() for m in group)]
    blocks = []
    for column in comparison.columns:
        rows = [row for row, _ in comparison.cells_on(column)]
        marked = [mark({row: [_cell(comparison, row, column, key, interval=True)] for row in rows}, key)
                  for key in keys]
        lines = [
            TableRow(row.label, row.method, [entry and replace(entry, difference=None, better=None)
                                             for line in of_row for entry in line.entries])
            for row, of_row in zip(rows, zip(*marked, strict=True), strict=True)
        ]
        blocks.append(RowBlock(comparison.column_label(column, with_count=True), lines))
    notes = [
        f"{bins} bins. In percent, but for Brier (0 to 2) and NLL (nats). {INTERVAL_NOTE}",
        "Over-confidence: mean confidence − accuracy. AUROC and AURC: how well confidence separates right from wrong.",
    ]
    if "ece_temperature" in keys:
        notes += _temperature_notes(comparison)
    return Table(name, title, [METRICS[key].label for key in keys], blocks, notes)


def _temperature_notes(comparison: Comparison) -> list[str]:
    """What temperature scaling is, and where it raises ECE."""
    raised = []
    for (row, column), group in comparison.cells.items():
        if all("ece_temperature" in m.metrics for m in group):
            before, after = (f"{100 * mean_over_seeds(group, key):.1f}" for key in ("ece", "ece_temperature"))
            if float(after) > float(before):
                raised.append(f"{row.label} on {comparison.column_label(column)} ({before} → {after})")
    more = f" and {len(raised) - 6} more" if len(raised) > 6 else ""
    note = f"It minimises NLL, not ECE, and raises the ECE here of {', '.join(raised[:6])}{more}."
    return [f"{TEMPERATURE_NOTE} {note}" if raised else TEMPERATURE_NOTE]


def _cell(comparison: Comparison, row: Row, column: Column, metric: str, interval: bool = False) -> Entry | None:
    group = comparison.cells.get((row, column))
    if not group or any(metric not in m.metrics for m in group):
        return None
    scale, only = METRICS[metric].scale, group[0].metrics[metric]
    entry = mean_entry([scale * m.value(metric) for m in group], METRICS[metric].decimals)
    if interval and len(group) == 1 and not np.isnan(only.low):
        return replace(entry, low=scale * float(only.low), high=scale * float(only.high))
    return entry


def mean_entry(values: Sequence[float], decimals: int) -> Entry:
    """The mean over seeds, with the sample deviation if there are several."""
    several = len(values) > 1 and bool(np.isfinite(values).all())
    std = float(np.std(values, ddof=1)) if several else None
    return Entry(float(np.mean(values)), decimals, std=std, seeds=len(values))


def average_over(cells: Sequence[Sequence[Measured]], metric: str) -> Entry | None:
    """The mean over data sets, of each the runs of its seeds; None if a run is missing or lacks the metric. Its
    deviation is that of the seeds' averages, if all data sets have the same seeds."""
    if not cells or not all(cells) or any(metric not in m.metrics for cell in cells for m in cell):
        return None
    scale, decimals = METRICS[metric].scale, METRICS[metric].decimals
    values = [[scale * m.value(metric) for m in cell] for cell in cells]
    if len({tuple(m.run.seed for m in cell) for cell in cells}) == 1:
        return mean_entry(np.mean(values, axis=0).tolist(), decimals)
    return Entry(float(np.mean([np.mean(of_set) for of_set in values])), decimals)


def mark(grid: Grid, metric: str) -> list[TableRow]:
    """Marks the best of the tuned methods. If a single method is newer than O-TPT, as in the paper, adds its difference
    against O-TPT."""
    higher = METRICS[metric].higher_is_better
    tuned = [row for row in grid if method_info(row.method).tuned]
    within = _by_setting(tuned)
    lines = []
    for row, entries in grid.items():
        rivals = [other for other in tuned if other.variant == row.variant or not within]
        baselines = [other for other in rivals if method_key(other.method) == paper.BASELINE]
        last = method_info(paper.BASELINE).order
        newer = {other.method for other in rivals if method_info(other.method).order > last}
        later = newer == {row.method} and len(baselines) == 1
        marked = []
        for at, entry in enumerate(entries):
            if entry and later:
                entry = _with_difference(entry, grid[baselines[0]][at], higher)
            values = [round(cell.value, cell.decimals) for other in rivals if (cell := grid[other][at])]
            if entry and row in tuned and higher is not None and len(values) > 1:
                top = max(values) if higher else min(values)
                entry = replace(entry, best=round(entry.value, entry.decimals) == top)
            marked.append(entry)
        lines.append(TableRow(row.label, row.method, marked))
    return lines


def _by_setting(rows: Sequence[Row]) -> bool:
    """Whether methods are compared within one setting only: if every setting of a table is that of several methods
    (steps, prompts). If only one method has settings (λ), all rows are compared."""
    methods = defaultdict(set)
    for row in rows:
        methods[row.variant].add(row.method)
    return len(methods) > 1 and all(len(group) > 1 for group in methods.values())


def _with_difference(entry: Entry, base: Entry | None, higher: bool | None) -> Entry:
    """The difference of the printed values, so that a reader can check it."""
    if base is None or np.isnan(entry.value - base.value):
        return entry
    change = round(float(entry.text) - float(base.text), entry.decimals)
    better = None if higher is None or change == 0 else (change > 0) == higher
    return replace(entry, difference=change + 0.0, better=better)


def _add_published(
    rows: list[TableRow], comparison: Comparison, metric: str, average: bool, source: str,
) -> tuple[list[TableRow], set[str]]:
    """After each method's row its published one, if there is one under the same conditions."""
    datasets = ["" if column.part else column.dataset for column in comparison.columns]  # a part is not published
    lines, sources = [], set()
    for line in rows:
        lines.append(line)
        runs = [m.run for (row, _), group in comparison.cells.items() for m in group if row.label == line.label]
        steps = {run.settings.get("TTA.STEPS", 1) for run in runs} if method_info(line.method).tuned else {1}
        if len(steps) != 1 or any(non_default_settings(run).keys() - {"TTA.STEPS"} for run in runs):
            continue
        plain, sals = metric.removesuffix("_sals"), metric.endswith("_sals")
        where = (comparison.backbone, steps.pop(), sals, source)
        cells = [paper.find_for_run(plain, line.method, name, *where) if name else None for name in datasets]
        if average:
            cells.append(_published_average(cells[0], datasets, source))
        sources |= {cell.source for cell in cells if cell}
        lines += published_rows(line, cells)
    return lines, sources


def published_rows(like: TableRow, cells: Sequence[paper.Cell | None]) -> list[TableRow]:
    """The published row to put below a row, named by its source, if there is any cell of it."""
    entries = [Entry(float(cell.value), cell.decimals) if cell else None for cell in cells]
    found = [cell for cell in cells if cell]
    if not found:
        return []
    label = f"{like.label} (published: {'; '.join(dict.fromkeys(cell.source for cell in found))})"
    return [TableRow(label, like.method, entries, published=True, cite=paper.cite_key(paper.source_of(found[0].table)))]


def _published_average(cell: paper.Cell | None, datasets: list[str], source: str) -> paper.Cell | None:
    """The source's average of the method of `cell`, if it is over exactly these data sets."""
    averaged = [sorted(content["columns"]) for content in paper.tables_of(source).values()]
    if cell is None or sorted([*datasets, paper.AVERAGE]) not in averaged:
        return None
    return paper.find(cell.table, cell.metric, cell.method, paper.AVERAGE)


def _published_notes(comparison: Comparison, sources: set[str], source: str) -> list[str]:
    if not sources:
        return [f"{paper.source_name(source)} print no numbers for {comparison.backbone_label} under these settings."]
    return [
        f"Rows marked published are from {'; '.join(sorted(sources))} and were not measured here. A row with other "
        "settings has none.", *fewer_images({column.dataset: column.n for column in comparison.columns}),
    ]


def fewer_images(counts: Mapping[str, int]) -> list[str]:
    """A note on the data sets of which fewer images were tested than in the paper."""
    smaller = [f"{dataset_info(dataset).label} {count:,} of {whole.value:,}" for dataset, count in counts.items()
               if (whole := paper.find("datasets", "images", "", dataset)) and whole.value != count]
    words = f"Published numbers are on the whole test sets, ours on fewer images: {', '.join(smaller)}."
    return [words] if smaller else []


def _legend(blocks: list[RowBlock], comparison: Comparison) -> str:
    entries = [entry for block in blocks for row in block.rows for entry in row.entries if entry]
    legend = [f"{comparison.images()} {comparison.bins} bins."]
    if any(entry.best for entry in entries):
        within = _by_setting([row for row in comparison.rows if method_info(row.method).tuned])
        legend.append(f"Bold: best of the tuned methods{', setting by setting' if within else ''}.")
    if any(entry.difference is not None for entry in entries):
        legend.append("In parentheses: difference against O-TPT.")
    return " ".join([*legend, *spread_note(blocks, comparison.cells), *_streams(comparison)])


def spread_note(blocks: Sequence[RowBlock], cells: Mapping[tuple[Row, Any], Sequence[Measured]]) -> list[str]:
    """What ± means, if any entry has it."""
    online = dict.fromkeys(row.label for (row, _), cell in cells.items() if any(m.run.online for m in cell))
    orders = f", which for {' and '.join(online)} are orders of the images" if online else ""
    shown = any(entry and entry.std is not None for block in blocks for row in block.rows for entry in row.entries)
    return [f"± is the sample standard deviation over seeds{orders}."] if shown else []


def _streams(comparison: Comparison) -> list[str]:
    """How many classes follow each other in the streams of the online methods. A concentration alone says little: it
    does not compare across data sets."""
    rows: dict[str, list[str]] = defaultdict(list)
    for (row, column), cell in comparison.cells.items():
        counts = [m.run.results["classes_in_64"] for m in cell if "classes_in_64" in m.run.results and not m.derived]
        if counts:
            rows[row.label].append(f"{comparison.column_label(column)} {np.mean(counts):.1f}")
    alike: dict[str, list[str]] = defaultdict(list)  # the rows with the same counts
    for label, shown in rows.items():
        alike[", ".join(shown)].append(label)
    listed = "; ".join(f"{' and '.join(labels)}: {shown}" for shown, labels in alike.items())
    return [f"Classes among 64 successive images, on average: {listed}."] if rows else []


def conformal_tables(comparison: Comparison, name: str) -> Iterator[Table]:
    """A table of conformal sets for each nominal coverage, with a block for each data set."""
    sets = {key: [found for m in cell if (found := _conformal_sets(m))] for key, cell in comparison.cells.items()}
    columns = {"coverage (%)": ("coverage", 100, 1), "size": ("size", 1, 2), "gap (%)": ("gap", 100, 1)}
    labels = [f"{kind} {what}" for kind in KINDS for what in columns]
    for alpha in ALPHAS:
        blocks = []
        for column in comparison.columns:
            rows = [
                TableRow(row.label, row.method, [
                    mean_entry([scale * getattr(one[kind, alpha], field) for one in sets[row, column]], decimals)
                    for kind in KINDS for field, scale, decimals in columns.values()])
                for row in comparison.rows if sets.get((row, column))
            ]
            if rows:
                blocks.append(RowBlock(f"{comparison.column_label(column)} ({column.n:,} images)", rows))
        title = f"Sets of predictions with nominal coverage {100 * (1 - alpha):g} %, {comparison.backbone_label}"
        notes = [CONFORMAL_NOTE, *comparison.notes]
        yield Table(f"{name}_{round(100 * alpha)}", title, labels, blocks, notes)


def _conformal_sets(measured: Measured) -> dict[tuple[str, float], Sets]:
    data = measured.run.load_predictions()
    logits = data.zero_shot_logits if measured.derived else data.logits
    if len(data.label) < 2:
        return {}
    return {(kind, alpha): conformal(logits, data.label, kind, alpha) for kind in KINDS for alpha in ALPHAS}
