"""The extra table of conformal sets: coverage, size, and how unevenly classes are covered."""
from __future__ import annotations

import numpy as np

from ..functional.conformal import KINDS, Sets, conformal
from .grid import Comparison
from .measure import Measured
from .table_model import Entry, RowBlock, Table, TableRow

ALPHAS = (0.1, 0.05)  # the share of sets that may miss the truth
NOTE = (
    "Conformal sets of predictions: a seeded half of each class's test images, with their labels, gives the threshold; "
    "the figures are of the other half. Coverage: share of sets that hold the true class. Size: classes in a set. Gap: "
    "mean over classes of the distance between a class's coverage and the promise. LAC, APS, RAPS (λ 0.001, one free "
    "rank)."
)


def sets_tables(comparison: Comparison, name: str) -> list[Table]:
    """A table for each promise, a block for each data set."""
    sets = {key: [conformal_sets(m) for m in cell] for key, cell in comparison.cells.items()}
    return [sets_table(comparison, f"{name}_{round(100 * alpha)}", alpha, sets) for alpha in ALPHAS]


def conformal_sets(measured: Measured) -> dict[tuple[str, float], Sets]:
    """Of a run, or of its zero-shot part where that stands for a zero-shot run."""
    data = measured.run.load_predictions()
    logits = data.zero_shot_logits if measured.derived else data.logits
    if len(data.label) < 2:
        return {}
    return {(kind, alpha): conformal(logits, data.label, kind, alpha) for kind in KINDS for alpha in ALPHAS}


def sets_table(comparison: Comparison, name: str, alpha: float, sets: dict) -> Table:
    blocks = []
    for column in comparison.columns:
        rows = []
        for row in comparison.rows:
            found = [one for one in sets.get((row, column), []) if one]
            if found:
                entries = [entry for kind in KINDS for entry in entries_of([one[kind, alpha] for one in found])]
                rows.append(TableRow(row.label, row.method, entries))
        if rows:
            blocks.append(RowBlock(f"{comparison.column_label(column)} ({column.n:,} images)", rows))
    labels = [f"{kind} {what}" for kind in KINDS for what in ("coverage (%)", "size", "gap (%)")]
    title = f"Sets of predictions that promise {100 * (1 - alpha):g} %, {comparison.backbone}"
    return Table(name, title, labels, blocks, [NOTE, *comparison.notes])


def entries_of(seeds: list[Sets]) -> list[Entry]:
    """The means over seeds, with their deviation where there are several."""
    entries = []
    for field, scale, decimals in (("coverage", 100, 1), ("size", 1, 2), ("gap", 100, 1)):
        values = [scale * getattr(sets, field) for sets in seeds]
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        entries.append(Entry(float(np.mean(values)), decimals, std=std, seeds=len(values)))
    return entries
