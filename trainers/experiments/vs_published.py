"""Our results next to the published ones: published rows, and the differences from them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..report import published as paper
from ..report.comparison import Row
from ..report.table_model import Entry, RowBlock, Table, TableRow
from ..report.tables import mark, published_rows


def with_differences(table: Table) -> Table:
    """Adds a row of differences after each published one."""
    blocks = []
    for block in table.blocks:
        rows: list[TableRow] = []
        for row in block.rows:
            rows.append(row)
            if row.published:
                own = rows[-2]  # a published row follows ours
                differences = [difference(ours, theirs) for ours, theirs in zip(own.entries, row.entries, strict=True)]
                rows.append(TableRow(f"{own.label}: ours − published", own.method, differences))
        blocks.append(RowBlock(block.label, rows))
    return replace(table, blocks=blocks)


def difference(ours: Entry | None, theirs: Entry | None) -> Entry | None:
    """Ours minus published, of the numbers as printed, so that a reader can check it."""
    if ours is None or theirs is None:
        return None
    decimals = min(ours.decimals, theirs.decimals)
    return Entry(round(round(ours.value, decimals) - theirs.value, decimals) + 0.0, decimals, signed=True)


def block_vs_published(
    label: str, grid: Mapping[Row, list[Entry | None]], metric: str, columns: Sequence[str], table: str = "",
    published_metric: str = "",
) -> RowBlock:
    """Rows with the best marked, each method's followed by the published one from `table`, whose metric may have
    another name there."""
    rows = []
    for key, row in zip(grid, mark(dict(grid), metric), strict=True):
        rows.append(row)
        if table and not key.variant and not key.settings:
            cells = [paper.find(table, published_metric or metric, row.method, column) for column in columns]
            rows += published_rows(row, cells)
    return RowBlock(label, rows)


def published_note(table: str) -> str:
    return f"Rows marked published are from {paper.where_printed(table)} and were not measured here."


def slip_notes(tables: Sequence[str]) -> list[str]:
    """Errors in the published tables themselves (averages and differences that their cells do not give)."""
    found = [slip for slip in paper.slips(None) if slip.cell.table in tables and not slip.rounding]
    return [f"A slip in the published table: {slip}." for slip in found]
