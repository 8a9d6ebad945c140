"""Proof-reading of the published tables: averages, differences and colours that do not follow from
their cells."""
from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from promptcal.trainers.config.table import AVERAGE
from promptcal.trainers.registry import method_key
from promptcal.trainers.report import published
from promptcal.trainers.report.published import BASELINE, SOC, Cell


@dataclass(frozen=True)
class Slip:
    """A printed number that does not follow from the other printed cells.

    Attributes:
        cell: Where it is printed.
        kind: average, difference or colour.
        printed: What is printed.
        recomputed: What the other cells give.
        rounding: Whether hidden digits may explain it.
    """

    cell: Cell
    kind: str
    printed: str
    recomputed: str
    rounding: bool


def find_slips(source: str | None = SOC) -> list[Slip]:
    """All slips of one source, or of all with None."""
    slips = []
    for name in published.tables_of(source):
        grid = {}
        for cell in published.cells(name):
            grid[cell.metric, method_key(cell.method), cell.column] = cell
        for (metric, method, column), cell in grid.items():
            if column == AVERAGE:
                row = []
                for key, other in grid.items():
                    if key[:2] == (metric, method) and other is not cell:
                        row.append(other)
                slips += check_average(cell, row)
            if cell.difference is not None:
                slips += check_difference(cell, cell.difference, grid[metric, BASELINE, column])
    return slips


def check_average(cell: Cell, parts: list[Cell]) -> list[Slip]:
    mean = sum((part.value for part in parts), Decimal()) / len(parts)
    unit = Decimal(1).scaleb(-cell.decimals)
    off = abs(mean - cell.value)
    if off <= unit / 2:
        return []
    # Each part and the average itself may be off by half a unit.
    return [Slip(cell, "average", cell.printed, str(mean.quantize(unit / 10)), off <= unit)]


def check_difference(cell: Cell, printed: str, baseline: Cell) -> list[Slip]:
    """The difference against O-TPT, and its colour."""
    actual = cell.value - baseline.value
    off = abs(Decimal(printed) - actual)
    slips = []
    if off:
        rounding = off <= Decimal(1).scaleb(-cell.decimals)
        slips.append(Slip(cell, "difference", printed, f"{actual:+}", rounding))
    is_better = actual >= 0 if cell.metric == "accuracy" else actual <= 0
    if (cell.colour == "better") != is_better:
        slips.append(Slip(cell, "colour", str(cell.colour), "better" if is_better else "worse", False))
    return slips
