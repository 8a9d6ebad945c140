"""Published rows beside ours, and the differences from them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import published as paper
from .grid import Column, Grid
from .grid_notes import have_other_defaults
from .measure import Measured
from .table_model import Entry, TableRow


@dataclass(frozen=True)
class PublishedOptions:
    """Which published numbers are shown.

    Attributes:
        source: The source whose published tables are shown; "" for none.
        differences: Whether rows "ours − published" are added.
    """

    source: str = ""
    differences: bool = False


def add_published_rows(
    rows: Sequence[TableRow], grid: Grid, metric: str, has_average: bool, options: PublishedOptions,
) -> tuple[list[TableRow], list[str]]:
    """After each row its published one, if there is one under the same conditions.

    Args:
        rows: The rows of a block, in the order of the grid's rows.
        grid: The runs.
        metric: Name of the block's metric.
        has_average: Whether the last column is the average.
        options: Which published numbers are shown.

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
                cells.append(find_published(metric, runs, options.source))
        if has_average:
            cells.append(published_average(cells, grid.columns, options.source))
        for cell in cells:
            if cell is not None and cell.source not in sources:
                sources.append(cell.source)
        lines.append(line)
        lines += published_lines(line, cells, options.differences)
    return lines, sources


def is_ambiguous(grid: Grid, column: Column, runs: Sequence[Measured]) -> bool:
    """Whether a default was edited between some runs and others of their method.

    It is then not known which of them have the settings of a published source.

    Args:
        grid: The runs.
        column: The images.
        runs: The runs of one cell on these images.
    """
    on_column = [cell[0] for _, cell in grid.cells_on(column)]
    return have_other_defaults(runs[:1], on_column)


def find_published(metric: str, runs: Sequence[Measured], source: str) -> paper.Cell | None:
    """The published cell that stands beside a cell of ours.

    Args:
        metric: Name of the metric.
        runs: The runs of our cell, one per seed.
        source: The source whose published tables are searched.

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
        columns: The columns of the table.
        source: The source whose published tables are searched.
    """
    first = cells[0]
    if first is None or None in cells:
        return None
    datasets = [str(column.record.data["dataset"]) for column in columns]
    averaged = paper.tables_of(source)[first.table]["columns"]
    if sorted([*datasets, paper.AVERAGE]) != sorted(averaged):
        return None
    return paper.find(first.table, first.metric, first.method, paper.AVERAGE)


def published_lines(
    line: TableRow, cells: Sequence[paper.Cell | None], with_differences: bool,
) -> list[TableRow]:
    """The published row below a row, named by its source, and the differences from it.

    Args:
        line: Our row.
        cells: The published cell of each column; None where there is none.
        with_differences: Whether a row "ours − published" is added.

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
        backbone: The backbone, as tables name it.
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
