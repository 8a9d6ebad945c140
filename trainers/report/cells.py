"""The cells of tables: means over seeds and data sets, the best, differences, published values."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..config.table import AVERAGE
from ..functional import calibration as cal
from ..registry import method_info, method_key, registered_name
from . import published as paper
from .grid import Column, Grid, Row
from .grid_notes import have_other_defaults
from .layout import Differences, Layout
from .measure import Measured, measured_alike
from .metrics import METRICS, STD, Top, find_metric
from .pairs import have_same_images, share_images
from .table import UNEQUAL_SEEDS, Entry, TableRow

# Metrics whose difference can be taken on a part of the images, from the top class alone.
TOP_METRICS = {"accuracy": cal.accuracy, "ece": cal.ece, "ace": cal.ace, "mce": cal.mce}
Entries = dict[Row, list[Entry | None]]
CellPair = tuple[list[Measured], list[Measured]]  # the runs of a row and of the baseline


def cell_entry(cell: Sequence[Measured], metric: str, interval: bool = False) -> Entry | None:
    """A cell of a table: the mean over seeds, or the interval of one run if asked for.

    Args:
        metric: Name of the metric, with `_std` for its standard deviation over seeds.

    Returns:
        None if there is no run, or one of them lacks the metric. Where a run was exported without
        the logits that it needs, a value that is no number, which is shown as –.
    """
    if metric.endswith(STD) and metric not in METRICS:
        return deviation_entry(cell, metric.removesuffix(STD))
    about = METRICS[metric]
    cell = measured_alike(cell, metric)
    values = values_of(cell, metric)
    if values is None:
        missing = [measured for measured in cell if metric not in measured.metrics]
        if any(not measured.has_logits for measured in missing):
            return Entry(np.nan, about.decimals, ranked=False)
        return None
    entry = mean_entry(values, about.decimals)
    # "± 0.0" would look like a result where all seeds have the same predictions.
    if entry.std == 0 and has_one_prediction(cell):
        entry = replace(entry, std=None)
    only = cell[0].metrics[metric]
    if interval and len(cell) == 1 and not np.isnan(only.low):
        low = about.scale * float(only.low)
        high = about.scale * float(only.high)
        entry = replace(entry, low=low, high=high)
    return replace(entry, ranked=all(measured.is_ranked for measured in cell))


def has_one_prediction(cell: Sequence[Measured]) -> bool:
    """Whether all seeds predict the same, as those of a method without randomness do."""
    first = cell[0].tuned
    for measured in cell[1:]:
        if not np.array_equal(measured.tuned.confidence, first.confidence):
            return False
        if not np.array_equal(measured.tuned.correct, first.correct):
            return False
    return True


def values_of(cell: Sequence[Measured], metric: str) -> list[float] | None:
    """A metric of each run, as it is shown; None if there is no run or one lacks it."""
    values = []
    for measured in cell:
        if metric not in measured.metrics:
            return None
        values.append(METRICS[metric].scale * measured.value(metric))
    return values or None


def deviation_entry(cell: Sequence[Measured], metric: str) -> Entry | None:
    """The sample standard deviation over seeds, in the units of the metric.

    Returns:
        None with fewer than two seeds, or if a run lacks the metric.
    """
    values = values_of(measured_alike(cell, metric), metric)
    if values is None or len(values) < 2:
        return None
    return Entry(float(np.std(values, ddof=1)), 2, seeds=len(values))


def mean_entry(values: Sequence[float], decimals: int) -> Entry:
    """The mean over seeds, with the sample deviation if there are several.

    Args:
        values: One per seed, in the unit of the table.
    """
    std = None
    if len(values) > 1 and np.isfinite(values).all():
        std = float(np.std(values, ddof=1))
    return Entry(float(np.mean(values)), decimals, std=std, seeds=len(values))


def average_entry(cells: Sequence[Sequence[Measured]], metric: str) -> Entry | None:
    """The mean over data sets; None if a run is missing or lacks the metric.

    Its deviation is that of the seeds' averages, if all data sets have the same seeds.

    Args:
        cells: For each data set its runs, one per seed.
    """
    if not cells:
        return None
    means = []
    ranked = True
    for cell in cells:
        entry = cell_entry(cell, metric)
        if entry is None:
            return None
        means.append(entry.value)
        ranked = ranked and entry.ranked
    decimals = find_metric(metric).decimals
    # The deviation over seeds of an average is not the average of the data sets' deviations.
    by_seed = averages_by_seed(cells, metric)
    if by_seed is not None:
        entry = mean_entry(by_seed, decimals)
        if entry.std == 0 and all(has_one_prediction(cell) for cell in cells):
            entry = replace(entry, std=None)
        return replace(entry, ranked=ranked)
    numbers = {len(cell) for cell in cells}
    seeds = numbers.pop() if len(numbers) == 1 else UNEQUAL_SEEDS
    return Entry(float(np.mean(means)), decimals, seeds=seeds, ranked=ranked)


def averages_by_seed(cells: Sequence[Sequence[Measured]], metric: str) -> list[float] | None:
    """The average over data sets of each seed; None if they have other seeds, or no such metric.

    Args:
        cells: For each data set its runs, one per seed.

    Returns:
        One per seed, in the unit of the metric.
    """
    if metric not in METRICS:
        return None
    seeds = seeds_of(measured_alike(cells[0], metric))
    rows = []
    for all_runs in cells:
        cell = measured_alike(all_runs, metric)
        values = values_of(cell, metric)
        if values is None or seeds_of(cell) != seeds:
            return None
        rows.append(values)
    return np.mean(rows, axis=0).tolist()


def seeds_of(cell: Sequence[Measured]) -> list[int]:
    """The seeds of the runs, in their order."""
    return [measured.seed for measured in cell]


def tuned_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows of methods that tune."""
    return [row for row in rows if method_info(row.method).tuned]


def rivals_of(row: Row, tuned: Sequence[Row]) -> list[Row]:
    """The tuned rows among which a row may be the best, itself included.

    They start from the same prompt. If the table compares several methods at several settings, they
    have the row's setting too.
    """
    by_setting = compares_within_settings(tuned)
    rivals = []
    for other in tuned:
        if other.protocol != row.protocol:
            continue
        if not by_setting or other.variant == row.variant:
            rivals.append(other)
    return rivals


def compares_within_settings(rows: Sequence[Row]) -> bool:
    """Whether methods are compared within one setting only.

    They are if every setting of a table is that of several methods (steps, prompts). If only one
    method has settings (λ), all rows are compared.
    """
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(row.variant, set()).add(row.method)
    return len(methods) > 1 and min(len(group) for group in methods.values()) > 1


def mark_best(entries: Entries, metric: str) -> list[TableRow]:
    """The rows of a block with the best of the tuned methods marked, column by column.

    Args:
        entries: The cells of each row, one for each column.
        metric: Name of the metric, which decides whether the highest or the lowest is best.
    """
    higher = find_metric(metric).higher_is_better
    tuned = tuned_rows(list(entries))
    rows = []
    for row, cells in entries.items():
        marked = list(cells)
        if row in tuned and higher is not None:
            rivals = rivals_of(row, tuned)
            for at, entry in enumerate(cells):
                best = best_value(entries, rivals, at, higher)
                if entry is not None and entry.ranked and best is not None:
                    # Rounded as printed: all cells that show the best number are marked.
                    marked[at] = replace(entry, best=round(entry.value, entry.decimals) == best)
        rows.append(TableRow(row.label, row.method, marked))
    return rows


def best_value(entries: Entries, rivals: Sequence[Row], at: int, higher: bool) -> float | None:
    """The best printed value of a column.

    Args:
        rivals: The rows that are compared.
        at: Position of the column.
        higher: Whether higher values are better.

    Returns:
        None if fewer than two rows are ranked there.
    """
    values = []
    for row in rivals:
        entry = entries[row][at]
        if entry is not None and entry.ranked:
            values.append(round(entry.value, entry.decimals))
    if len(values) < 2:
        return None
    return max(values) if higher else min(values)


def states_difference(row: Row, differences: Differences) -> bool:
    """Whether a row states its difference from a baseline."""
    info = method_info(row.method)
    if differences.ours:
        return any(is_named(row, name) for name in differences.ours)
    if differences.only_newer:
        baseline = method_info(registered_name(differences.baseline))
        if info.order <= baseline.order:
            return False
    return info.tuned


def is_named(row: Row, name: str) -> bool:
    """Whether a name, in any spelling, is that of a row's method or the row's label."""
    return method_key(name) in (method_key(row.method), method_key(row.label))


def baseline_of(row: Row, rows: Sequence[Row], differences: Differences) -> Row | None:
    """The row that a row is compared with; None if there is none.

    It starts from the same prompt. Where methods are compared within one setting, it has this
    setting, too. Of several the one with the same settings is taken, of these the one that the
    same words tell from others, such as its precision; otherwise the one at its defaults.
    """
    candidates = []
    for other in comparable_rows(row, rows):
        if row.protocol and differences.is_default:
            is_wanted = method_info(other.method).zero_shot
        else:
            is_wanted = is_named(other, differences.baseline)
        if is_wanted and other is not row:
            candidates.append(other)
    for other in candidates:
        if other.settings == row.settings and other.details == row.details:
            return other
    for other in candidates:
        if other.settings == row.settings and not other.details:
            return other
    for other in candidates:
        if not other.settings and not other.details:
            return other
    return candidates[0] if candidates else None


def comparable_rows(row: Row, rows: Sequence[Row]) -> list[Row]:
    """The rows with which a row can be compared.

    They start from the same prompt. Where methods are compared within one setting, they have the
    row's setting, or state none.
    """
    by_setting = compares_within_settings(tuned_rows(rows))
    comparable = []
    for other in rows:
        if other.protocol != row.protocol:
            continue
        if not by_setting or not other.variant or other.variant == row.variant:
            comparable.append(other)
    return comparable


def first_tuned(row: Row, rows: Sequence[Row], differences: Differences) -> Row | None:
    """In place of the default baseline, where it was not run: the first tuned row in paper order.

    Args:
        row: The row that is compared with it.

    Returns:
        None if the baseline was chosen or was run, or if the row is of that method itself.
    """
    if not differences.is_default or differences.only_newer or differences.ours:
        return None
    tuned = tuned_rows(comparable_rows(row, rows))
    if not tuned or any(is_named(other, differences.baseline) for other in tuned):
        return None
    if tuned[0].method == row.method:
        return None
    return tuned[0]


def add_differences(
    entries: Entries, grid: Grid, common: Sequence[Column], metric: str, differences: Differences,
) -> list[Row]:
    """Adds to the rows that state it the difference from their baseline.

    Args:
        entries: A metric of every row on every column and averaged; rows are changed in place.
        common: The columns that are averaged.

    Returns:
        The baselines that were used.
    """
    rows = list(entries)
    baselines: dict[Row, None] = {}
    for row in rows:
        if not states_difference(row, differences):
            continue
        base = baseline_of(row, rows, differences) or first_tuned(row, rows, differences)
        if base is None:
            continue
        for at, entry in enumerate(entries[row]):
            other = entries[base][at]
            if entry is None or other is None:
                continue
            columns = common
            if at < len(grid.columns):
                columns = [grid.columns[at]]
            pairs = [(grid.cells[row, column], grid.cells[base, column]) for column in columns]
            entries[row][at] = with_difference(entry, other, pairs, metric)
            baselines[base] = None
    return list(baselines)


def with_difference(entry: Entry, base: Entry, pairs: Sequence[CellPair], metric: str) -> Entry:
    """The difference of the printed values, so that a reader can check it.

    If the runs did not predict the same images, it is the difference on those that both have.

    Args:
        entry: The cell that gets the difference.
        base: The cell from which it is.
        pairs: The runs behind both, a pair for each data set.
    """
    if np.isnan(entry.value - base.value):
        return entry
    # Of the numbers as printed: the unrounded difference may be another in the last digit.
    change: float | None = float(entry.text) - float(base.text)
    for ours, theirs in pairs:
        if not have_same_images(ours, theirs):
            change = difference_on_shared_images(pairs, metric)
            break
    if change is None:
        return entry
    change = round(change, entry.decimals) + 0.0  # + 0.0 avoids -0.0
    higher = find_metric(metric).higher_is_better
    better = None
    if higher is not None and change != 0:
        better = (change > 0) == higher
    return replace(entry, difference=change, better=better)


def difference_on_shared_images(pairs: Sequence[CellPair], metric: str) -> float | None:
    """Ours minus theirs on the images that both have, in the units of the metric.

    Args:
        pairs: Our runs and theirs, a pair for each data set.

    Returns:
        Mean over data sets; None if they share no images, or if the metric needs more than the top
        classes.
    """
    if metric not in TOP_METRICS:
        return None
    differences = []
    for ours, theirs in pairs:
        shared = share_images(theirs, ours)
        if shared is None:
            return None
        differences.append(seed_mean(shared.second, metric) - seed_mean(shared.first, metric))
    return METRICS[metric].scale * float(np.mean(differences))


def seed_mean(top: Top, metric: str) -> float:
    """The mean over seeds of a metric of the top class.

    Args:
        top: Confidence and correctness, (N, S) each for S seeds.
        metric: Name of a metric of TOP_METRICS.
    """
    confidence, correct = top
    values = []
    for seed in range(confidence.shape[1]):
        values.append(TOP_METRICS[metric](confidence[:, seed], correct[:, seed]))
    return float(np.mean(values))


def add_published_rows(
    rows: Sequence[TableRow], grid: Grid, metric: str, has_average: bool, layout: Layout,
) -> tuple[list[TableRow], list[str]]:
    """After each row its published one, if there is one under the same conditions.

    Args:
        rows: The rows of a block, in the order of the grid's rows.
        layout: Names the source, and says whether differences from it are shown.

    Returns:
        All rows, and where the published ones are printed, such as "Author et al. (year), Table 3".
    """
    lines: list[TableRow] = []
    sources: list[str] = []
    for row, line in zip(grid.rows, rows, strict=True):
        cells: list[paper.Cell | None] = []
        for column in grid.columns:
            runs = grid.cells.get((row, column), [])
            if is_ambiguous(grid, column, runs):
                cells.append(None)
            else:
                cells.append(find_published(metric, runs, layout.published))
        if has_average:
            cells.append(published_average(cells, grid.columns, layout.published))
        for cell in cells:
            if cell is not None and cell.source not in sources:
                sources.append(cell.source)
        lines.append(line)
        lines += published_lines(line, cells, layout.from_published)
    return lines, sources


def is_ambiguous(grid: Grid, column: Column, runs: Sequence[Measured]) -> bool:
    """Whether a default was edited between some runs and others of their method.

    It is then not known which of them have the settings of a published source.

    Args:
        runs: The runs of one cell on these images.
    """
    on_column = [cell[0] for _, cell in grid.cells_on(column)]
    return have_other_defaults(runs[:1], on_column)


def find_published(metric: str, runs: Sequence[Measured], source: str) -> paper.Cell | None:
    """The published cell that stands beside a cell of ours.

    Args:
        runs: The runs of our cell, one per seed.

    Returns:
        None if nothing is published for one of the runs, if too many of its images failed, if the
        number of bins is another one, or if there are no runs.
    """
    cell = None
    for measured in runs:
        cell = paper.find_for_record(metric, measured.record, source)
        if cell is None or not measured.is_ranked:
            return None
        if not paper.has_published_bins(metric, measured.bins):
            return None
    return cell


def published_average(
    cells: Sequence[paper.Cell | None], columns: Sequence[Column], source: str,
) -> paper.Cell | None:
    """The source's average, if it is over exactly these data sets.

    Args:
        cells: The published cell of each column, in a row.
    """
    first = cells[0]
    if first is None or None in cells:
        return None
    datasets = [str(column.record.data["dataset"]) for column in columns]
    averaged = paper.tables_of(source)[first.table]["columns"]
    if sorted([*datasets, AVERAGE]) != sorted(averaged):
        return None
    return paper.find(first.table, first.metric, first.method, AVERAGE)


def published_lines(
    line: TableRow, cells: Sequence[paper.Cell | None], with_differences: bool,
) -> list[TableRow]:
    """The published row below a row, named by its source, and the differences from it.

    Args:
        cells: The published cell of each column; None where there is none.

    Returns:
        Up to two rows; [] if nothing is published.
    """
    entries: list[Entry | None] = []
    sources: list[str] = []
    cite = ""
    for cell in cells:
        if cell is None:
            entries.append(None)
            continue
        entries.append(Entry(float(cell.value), cell.decimals))
        if cell.source not in sources:
            sources.append(cell.source)
        cite = cite or paper.cite_key(paper.source_of(cell.table))
    if not sources:
        return []
    label = f"{line.label} (published: {'; '.join(sources)})"
    lines = [TableRow(label, line.method, entries, published=True, cite=cite)]
    if with_differences:
        differences = []
        for ours, theirs in zip(line.entries, entries, strict=True):
            differences.append(difference(ours, theirs))
        lines.append(TableRow(f"{line.label}: ours − published", line.method, differences))
    return lines


def difference(ours: Entry | None, theirs: Entry | None) -> Entry | None:
    """Ours minus published, of the numbers as printed, so that a reader can check it.

    Args:
        ours: Our cell; None if it is empty.
        theirs: The published cell; None if it is empty.
    """
    if ours is None or theirs is None:
        return None
    decimals = min(ours.decimals, theirs.decimals)
    value = round(round(ours.value, decimals) - theirs.value, decimals) + 0.0  # no -0.0
    return Entry(value, decimals, signed=True)


def published_note(sources: Sequence[str], source: str, backbone: str) -> str:
    """Where the published rows of a table are from, or that there are none.

    Args:
        sources: Papers with their tables, in words, as the rows name them; () if there are none.
        source: Key of the source that was asked for.
    """
    if not sources:
        return (
            f"{paper.source_name(source)} print no numbers for {backbone} under these settings, "
            "on these numbers of test images."
        )
    return (
        f"Rows marked published are from {'; '.join(sorted(set(sources)))} and were not measured "
        "here. They stand beside runs on the whole test set, with OpenAI's weights and the "
        "settings of the source; those of ECE and ACE where ours have 20 bins. Runs of a method "
        "between which a default was edited have none: it is not known which of them have these "
        "settings."
    )
