"""The paper's tables as data: every cell as printed, and a check of the paper against its own arithmetic."""
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

from ..registry import method_key

# In a checkout and in an installed package alike, `configs` lies beside `trainers`.
BASELINE = "otpt"  # what the paper measures differences against
FILE = Path(__file__).resolve().parents[2] / "configs" / "experiments" / "published.json"
HIGHER_IS_BETTER = {"accuracy"}
AVERAGE = "Average"
SOC = "soc"  # the source whose tables the experiments make again; others stand for themselves, never averaged


@dataclass(frozen=True)
class Cell:
    """One published number. `difference` and `colour` are what the paper prints beside it, where it does."""

    table: str
    metric: str
    method: str
    column: str
    printed: str
    source: str
    difference: str | None = None
    colour: str | None = None

    @property
    def value(self) -> Decimal:
        return Decimal(self.printed.replace(",", ""))


@dataclass(frozen=True)
class Slip:
    """A printed figure that its own neighbours do not yield. `rounding`: hidden digits could still explain it."""

    cell: Cell
    kind: str  # average, difference or colour
    printed: str
    recomputed: str
    rounding: bool

    def __str__(self) -> str:
        where = f"{self.cell.source}, {self.cell.metric} of {self.cell.method}, {self.cell.column}"
        cause = " (rounding can explain it)" if self.rounding else ""
        return f"{where}: {self.kind} printed {self.printed}, the printed cells give {self.recomputed}{cause}"


@cache
def content() -> dict:
    """The data file as it is."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def tables() -> dict:
    """The paper's tables: name -> number, columns and rows."""
    return {name: table for name, table in content()["tables"].items() if "source" not in table}


def tables_of(source: str | None) -> dict:
    """The tables of a source, or of all."""
    others = {name: table for name, table in content()["tables"].items() if "source" in table}
    if source == SOC:
        return tables()
    return {**tables(), **others} if source is None else {n: t for n, t in others.items() if t["source"] == source}


def source_of(table: str) -> str:
    """Who printed a table."""
    return tables_of(None)[table].get("source", SOC)


def source_name(source: str) -> str:
    """A source as a reader knows it."""
    return content()["sources"][source]["name"]


def where_printed(table: str) -> str:
    """Where a table is printed: its number in the paper, or the other source."""
    own = tables_of(None)[table]
    source = own.get("source", SOC)
    return f"Table {own['table']} ({own['label']})" if source == SOC else content()["sources"][source]["where"]


def cells(table: str | None = None) -> Iterator[Cell]:
    """Every cell of one table, or of all, row by row."""
    for name, own in tables_of(None).items():
        if table in (None, name):
            for row in own["rows"]:
                blank = [None] * len(own["columns"])
                extras = zip(row.get("differences", blank), row.get("colours", blank), strict=True)
                for column, printed, extra in zip(own["columns"], row["values"], extras, strict=True):
                    yield Cell(name, row["metric"], row["method"], column, printed, where_printed(name), *extra)


def find(table: str, metric: str, method: str, column: str) -> Cell | None:
    """The cell of a method (in any spelling) and a data set (registry name), or None if the paper has none."""
    for cell in cells(table):
        if (cell.metric, method_key(cell.method), cell.column) == (metric, method_key(method), column):
            return cell
    return None


def find_for_run(
    metric: str, method: str, dataset: str, backbone: str, steps: int = 1, sals: bool = False,
    source: str = SOC,
) -> Cell | None:
    """The cell that a source printed for a run's conditions, or None."""
    for name, own in tables_of(source).items():
        conditions = (own.get("backbone"), own.get("steps", 1), own.get("sals", False))
        if conditions == (backbone, steps, sals) and (cell := find(name, metric, method, dataset)):
            return cell
    return None


def slips(source: str | None = SOC) -> list[Slip]:
    """Averages, differences against O-TPT and their colours that the printed cells of a source, or of all, do not
    yield."""
    found = []
    for name in tables_of(source):
        grid = {(c.metric, method_key(c.method), c.column): c for c in cells(name)}
        for (metric, method, column), cell in grid.items():
            if column == AVERAGE:
                row = [other for key, other in grid.items() if key[:2] == (metric, method) and other is not cell]
                found += _check_average(cell, row)
            if cell.difference is not None:
                found += _check_difference(cell, grid[metric, BASELINE, column])
    return found


def _unit(cell: Cell) -> Decimal:
    """One step of the last printed digit."""
    return Decimal(1).scaleb(cell.value.as_tuple().exponent)


def _check_average(cell: Cell, parts: list[Cell]) -> list[Slip]:
    mean = sum(part.value for part in parts) / len(parts)
    unit = _unit(cell)
    if abs(mean - cell.value) <= unit / 2:
        return []
    # Each part and the average itself may be off by half a unit.
    return [Slip(cell, "average", cell.printed, str(mean.quantize(unit / 10)), abs(mean - cell.value) <= unit)]


def _check_difference(cell: Cell, baseline: Cell) -> list[Slip]:
    actual = cell.value - baseline.value
    off = abs(Decimal(cell.difference) - actual)
    found = [] if off == 0 else [Slip(cell, "difference", cell.difference, f"{actual:+}", off <= _unit(cell))]
    better = actual >= 0 if cell.metric in HIGHER_IS_BETTER else actual <= 0
    if (cell.colour == "better") != better:
        found.append(Slip(cell, "colour", cell.colour, "better" if better else "worse", False))
    return found
