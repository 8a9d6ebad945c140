"""A table of the number of operations that each regulariser takes, from formulas without runs."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...registry import method_info
from ...report import published as paper
from ...report.cells import published_lines
from ...report.table import Entry, RowBlock, Table, TableRow
from ..finished_runs import FinishedRuns

Count = Callable[[int, int], int]  # (K, d) -> operations


class Operations(NamedTuple):
    """Operations that the value of a regulariser takes, for K classes and d features.

    Each addition, multiplication, division, root or comparison counts as one. The sorting behind
    SoC's δ is not counted.
    """

    products: Count  # in products of matrices
    singles: Count  # elementwise


def cubic_products(k: int, d: int) -> int:
    """Operations of O-TPT's penalty as printed, in matrix products, for k classes of d features."""
    return 2 * k**2 * d + 2 * k**3  # T Tᵀ; each row through its reflector


def cubic_singles(k: int, d: int) -> int:
    """Operations of O-TPT's penalty as printed, elementwise."""
    # Three passes over the reflectors (outer product, factor, difference from I); on S: row norms,
    # normals, their squares, the final difference and its norms.
    return 3 * k**3 + 9 * k**2


def similarity_products(k: int, d: int) -> int:
    """Operations of the cosines of all pairs of classes, in matrix products."""
    return 2 * k**2 * d


def closed_form_singles(k: int, d: int) -> int:
    """Operations of O-TPT's penalty in closed form, elementwise."""
    return 2 * k**2 + 2 * k  # squares, their sums, roots, mean


def soc_singles(k: int, d: int) -> int:
    """Operations of SoC's penalty, elementwise."""
    # Per pair: minimum, maximum, two of the normalisation, margin, half, difference, product, sum.
    return 9 * k * (k - 1) // 2


CLOSED_FORM = "closed form (used here)"
REGULARISERS: Mapping[tuple[str, str], Operations] = {  # method and variant
    ("OTPT", ""): Operations(cubic_products, cubic_singles),
    ("OTPT", CLOSED_FORM): Operations(similarity_products, closed_form_singles),
    ("SoC", ""): Operations(similarity_products, soc_singles),
}


def complexity(finished: FinishedRuns) -> list[Table]:
    """Operations of O-TPT's and SoC's penalties by number of classes."""
    experiment = finished.experiment
    classes: Sequence[int] = experiment.study["classes"]
    features: int = experiment.study["features"]
    published = ""
    if experiment.published and not finished.is_demo:
        published = experiment.published[0]
    rows: list[TableRow] = []
    for (method, variant), operations in REGULARISERS.items():
        entries: list[Entry | None] = []
        for k in classes:
            count = operations.products(k, features) + operations.singles(k, features)
            entries.append(Entry(count / 1e6))
        label = method_info(method).label
        if variant:
            label += f", {variant}"
        row = TableRow(label, method, entries)
        rows.append(row)
        if published and not variant:
            cells = [paper.find(published, "mflops", method, str(k)) for k in classes]
            rows += published_lines(row, cells, with_differences=True)
    notes = [
        f"Forward only, text features of width {features}; the sorting behind δ is not counted.",
        "O-TPT reflects each row of the K×K similarities by a K×K matrix, as its public code does. "
        "The closed form has the same value and gradient without the reflectors.",
    ]
    if published:
        notes.append(
            f"Rows marked published are from {paper.where_printed(published)} and were not "
            "measured here."
        )
    columns = [f"{k} classes" for k in classes]
    block = RowBlock("MFLOPs of one penalty", rows)
    return [Table(experiment.name, experiment.title, columns, [block], notes)]
