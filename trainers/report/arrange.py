"""The one arranger of rows and columns: measured runs become a table's cells."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ...datasets.base import dataset_info
from ..registry import method_info
from .comparability_notes import caveats
from .grid import Column, Comparison, Row
from .measure import Measured

LEARNT = "CoOp prompt, untuned"


def arrange(
    runs: Iterable[tuple[Row, Measured]], backbone: str, title: str, key: str = "",
    elsewhere: Iterable[Column] = (),
) -> Comparison:
    """Seeds in a cell, one set of images a column, methods as papers list them; within a method, rows in the order in
    which they come. `key` is the setting whose values the rows compare."""
    cells, order = defaultdict(list), {}
    for row, measured in runs:
        order.setdefault(row, (*method_info(row.method).order, len(order)))
        cells[row, column_of(measured)].append(measured)
    for group in cells.values():
        group.sort(key=lambda m: m.run.seed)
    columns = sorted({column for _, column in cells}, key=lambda c: (*dataset_info(c.dataset).order, -c.n, c.data_hash))
    comparison = Comparison(title, backbone, columns, sorted(order, key=order.get), dict(cells), key,
                            elsewhere=frozenset(elsewhere))
    comparison.notes = caveats(comparison)
    return comparison


def row_of(measured: Measured, variant: str = "") -> Row:
    """The row that a run belongs to. Before tuning, a model that starts from a learnt prompt is not zero-shot CLIP."""
    run = measured.run
    learnt = method_info(run.trainer).zero_shot and bool(run.settings.get("MODEL.INIT_WEIGHTS"))
    return Row(run.trainer, variant, LEARNT if learnt else "")


def column_of(measured: Measured) -> Column:
    """The set of images that a run was measured on."""
    return Column(measured.run.dataset, measured.run.data_hash, measured.run.results["n"])
