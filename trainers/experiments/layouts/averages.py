"""Averages over data sets: methods by backbones, shots or values of a setting."""
from __future__ import annotations

import numpy as np

from ....datasets.base import dataset_info, dataset_order
from ...registry import method_info
from ...report.comparison import Row, show_setting
from ...report.measure import Measured
from ...report.metrics import METRICS
from ...report.table_model import Entry, Table
from ...report.tables import fewer_images
from ..finished_runs import Material, listed, mean
from ..plan import PlannedRun
from ..vs_published import block_beside, source_of, with_gaps
from . import Shown

# What a column is called, as the published tables call it.
COLUMNS = {
    "shots": {0: "Baseline", 2: "2-shots", 4: "4-shots"},
    "TRAINER.SOC.NORM": {"minmax": "(S - min) / (max - min)", "max": "S / max", "shift": "S - min"},
}


def show(material: Material) -> Shown:
    return averages(material), []


def averages(material: Material) -> list[Table]:
    """Averages over data sets: methods, and settings that they vary in, by backbones, shots or values of a setting."""
    experiment, across = material.experiment, material.experiment.across
    cells: dict[tuple, dict[str, list[Measured]]] = {}
    values: dict[object, str] = {}
    for run, measured in material.found.items():
        if method_info(run.method).trained:
            continue
        value = across_value(run, across)
        words = show_setting(across, value) if "." in across else str(value)  # of a setting, not of a run's place
        values.setdefault(value, COLUMNS.get(across, {}).get(value, words))
        others = ", ".join(show_setting(key, other) for key, other in run.variant.items() if key != across)
        cells.setdefault((Row(run.method, others), value), {}).setdefault(run.dataset_name, []).append(measured)
    if not cells:
        return []
    common = set.intersection(*(set(cell) for cell in cells.values()))
    order = list(values)  # as the experiment has them
    columns = list(values.values())
    rows = sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: method_info(row.method).order)
    blocks = []
    for metric in experiment.metrics:
        grid = {
            row: [
                Entry(float(np.mean([mean(cells[row, value][name], metric) for name in common])))
                if common and (row, value) in cells else None
                for value in order
            ]
            for row in rows
        }
        table = experiment.published[0] if material.compared else ""
        blocks.append(block_beside(f"{METRICS[metric].label} (%)", grid, metric, columns, table))
    every = {run.dataset_name for run in material.found}
    sizes = {m.run.dataset: m.run.results["n"] for m in material.found.values() if m.run.dataset in common}
    images = ", ".join(f"{dataset_info(name).label} {sizes[name]:,}" for name in sorted(sizes, key=dataset_order))
    notes = [f"{'Average over the data sets. ' if len(common) > 1 else ''}Test images: {images}."]
    if every - common:
        notes.append(f"Left out, because not every cell has them: {listed(every - common)}.")
    if material.compared:
        notes.append(f"Rows marked published are the paper's ({source_of(experiment.published[0])}).")
        if len(common) < len(experiment.datasets):
            notes.append(f"The published averages are over {len(experiment.datasets)} data sets: do not compare.")
        notes += fewer_images(sizes)
    return [with_gaps(Table(experiment.name, experiment.title, columns, blocks, notes))]


def across_value(run: PlannedRun, across: str) -> object:
    return {"backbone": run.backbone, "shots": run.shots}.get(across, run.variant.get(across))
