"""Counted operations of the penalties: no run is needed."""
from __future__ import annotations

from ...functional.flop_counts import REGULARISERS
from ...report.comparison import Row
from ...report.table_model import Entry, Table
from ..finished_runs import Material
from ..vs_published import block_beside, source_of, with_gaps
from . import Shown


def show(material: Material) -> Shown:
    return complexity(material), []


def complexity(material: Material) -> list[Table]:
    """Operations of O-TPT's and SoC's penalties by number of classes."""
    experiment = material.experiment
    classes, features = experiment.study["classes"], experiment.study["features"]
    cases = {
        Row("OTPT"): "O-TPT, cubic", Row("OTPT", "closed form (used here)"): "O-TPT, closed form", Row("SoC"): "SoC",
    }
    grid = {row: [Entry(REGULARISERS[case].total(k, features) / 1e6) for k in classes] for row, case in cases.items()}
    table = experiment.published[0] if material.compared else ""
    block = block_beside("MFLOPs of one penalty", grid, "ece", [str(k) for k in classes], table, "mflops")
    notes = [
        f"Forward only, text features of width {features}; the sorting behind δ is not counted.",
        "O-TPT reflects each row of the K×K similarities by a K×K matrix, as its public code does. The closed form has "
        "the same value and gradient without the reflectors.",
    ]
    if material.compared:
        notes.append(f"Rows marked published are the paper's ({source_of(table)}).")
    columns = [f"{k} classes" for k in classes]
    return [with_gaps(Table(experiment.name, experiment.title, columns, [block], notes))]
