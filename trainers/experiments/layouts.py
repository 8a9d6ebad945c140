"""Tables in the paper's layout, one function for each way of arranging results."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...datasets.base import dataset_label, dataset_rank
from ..calibration import selective
from ..registry import is_trained, method_rank
from ..report import published as paper
from ..report.gallery import pair_errors_of
from ..report.grid import Row
from ..report.measure import METRICS, Measured
from ..report.reading import text_similarity
from ..report.tables import Block, Entry, Table, TableRow, fewer_images, paper_table
from ..report.usual import show_setting
from .arrange import Material, in_percent, mean
from .beside import block_beside, source_of, with_gaps
from .definition import Experiment
from .plan import PlannedRun

# What a column of averages is called, as the published tables call it.
COLUMNS = {
    "shots": {0: "Baseline", 2: "2-shots", 4: "4-shots"},
    "TRAINER.SOC.NORM": {"minmax": "(S - min) / (max - min)", "max": "S / max", "shift": "S - min"},
}
THRESHOLDS = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def results(material: Material, key: str = "") -> list[Table]:
    """Methods by data sets, for each backbone; with `key`, a row for each of its values."""
    experiment, tables = material.experiment, []
    for backbone in material.backbones:
        comparison = material.comparison(backbone, key)
        usual = not key or key == "TTA.STEPS"  # the only swept setting of which the paper prints every cell
        table = paper_table(
            comparison, experiment.name, f"{experiment.title}, {backbone}", experiment.metrics,
            with_published=material.compared and usual,
        )
        if material.compared and not usual:
            table = published_at_usual(material, table, backbone, key)
        tables.append(with_gaps(table))
    return tables


def published_at_usual(material: Material, table: Table, backbone: str, key: str) -> Table:
    """In a table of a swept setting, the paper's rows after those that have its usual value."""
    usual = material.where(lambda run: run.usual).comparison(backbone, key)
    source = paper_table(usual, table.name, table.title, material.experiment.metrics, with_published=True)
    blocks = []
    for block, other in zip(table.blocks, source.blocks, strict=True):
        printed = {
            own.label: row for own, row in zip(other.rows, other.rows[1:], strict=False) if row.published
        }
        rows = []
        for row in block.rows:
            rows.append(row)
            if theirs := printed.get(row.label):
                at = dict(zip(source.columns, theirs.entries, strict=True))
                rows.append(replace(theirs, entries=[at.get(column) for column in table.columns]))
        blocks.append(Block(block.label, rows))
    return replace(table, blocks=blocks, notes=[*table.notes, *source.notes[-1:]])


def averages(material: Material) -> list[Table]:
    """Averages over data sets: methods, and settings that they vary in, by backbones, shots or values of a setting."""
    experiment, across = material.experiment, material.experiment.across
    cells: dict[tuple, dict[str, list[Measured]]] = {}
    values: dict[object, str] = {}
    for run, measured in material.found.items():
        if is_trained(run.method):
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
    rows = sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: method_rank(row.method))
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
    images = ", ".join(f"{dataset_label(name)} {sizes[name]:,}" for name in sorted(sizes, key=dataset_rank))
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


def listed(names) -> str:
    return ", ".join(dataset_label(name) for name in sorted(names, key=dataset_rank))


def deviations(material: Material) -> list[Table]:
    """The standard deviation over seeds: methods by data sets, and its average."""
    experiment, tables = material.experiment, []
    for backbone in material.backbones:
        comparison = material.comparison(backbone)
        common = comparison.common_columns()
        names = [column.dataset for column in comparison.columns]
        average = [paper.AVERAGE] if len(common) > 1 else []
        blocks = []
        for metric in experiment.metrics:
            grid = {}
            for row in comparison.rows:
                cells = [comparison.cells.get((row, column), []) for column in comparison.columns]
                grid[row] = [deviation(cell, metric) for cell in cells]
                if average:
                    own = [deviation(comparison.cells[row, column], metric) for column in common]
                    grid[row].append(None if None in own else Entry(float(np.mean([entry.value for entry in own])), 2))
            whole = sorted(names) == sorted(c for c in paper.tables()["std_analysis"]["columns"] if c != paper.AVERAGE)
            columns = [*names, *(average if whole else ["–"] * len(average))]
            blocks.append(block_beside(
                # Marked as errors are, whatever the metric: the smallest deviation is best.
                f"{METRICS[metric].label}: standard deviation (points)", grid, "ece", columns,
                "std_analysis" if material.compared else "", f"{metric}_std",
            ))
        notes = [f"Standard deviation (n − 1) over seeds {', '.join(map(str, experiment.seeds))} of the views.",
                 comparison.images(), *comparison.notes]
        if material.compared:
            notes += fewer_images({column.dataset: column.n for column in comparison.columns})
        labels = [*map(comparison.column_label, comparison.columns), *average]
        title = f"{experiment.title}, {backbone}"
        tables.append(with_gaps(Table(experiment.name, title, labels, blocks, notes)))
    return tables


def deviation(cell: list[Measured], metric: str) -> Entry | None:
    if len(cell) < 2:
        return None
    return Entry(float(np.std(in_percent(cell, metric), ddof=1)), 2, seeds=len(cell))


def selective_table(material: Material) -> list[Table]:
    """How many of the predictions above a threshold are right, all data sets together, and how many remain."""
    experiment, tables = material.experiment, []
    for backbone in material.backbones:
        comparison = material.comparison(backbone)
        columns = comparison.common_columns()
        accuracy, coverage = [], []
        for row in comparison.rows:
            first = [comparison.cells[row, column][0].tuned for column in columns]
            confidence, correct = (np.concatenate([getattr(o, name) for o in first]) for name in
                                   ("confidence", "correct"))
            kept = selective(confidence, correct, THRESHOLDS)
            for rows, values in zip((accuracy, coverage), kept, strict=True):
                rows.append(TableRow(row.label, row.method, [Entry(100 * float(value)) for value in values]))
        labels = [f"> {threshold:g}" for threshold in THRESHOLDS]
        blocks = [Block("Accuracy of those kept (%)", accuracy), Block("Share kept (%)", coverage)]
        images = sum(column.n for column in columns)
        notes = [f"{images:,} test images of {listed(c.dataset for c in columns)} together.", *comparison.notes]
        tables.append(Table(experiment.name, f"{experiment.title}, {backbone}", labels, blocks, notes))
    return tables


def prompt_summary(material: Material) -> list[Table]:
    """Over all initial prompts: mean and worst ECE of each method, and how often it is the lowest."""
    key, tables = "PROMPT.CTX_INIT", []
    for backbone in material.backbones:
        comparison = material.comparison(backbone, key)
        methods = sorted({row.method for row in comparison.rows}, key=method_rank)
        prompts = list(dict.fromkeys(row.variant for row in comparison.rows))
        rows: dict[str, list[Entry]] = {method: [] for method in methods}
        labels = []
        for column in comparison.columns:
            ece = {
                (method, prompt): mean(comparison.cells[Row(method, prompt), column], "ece")
                for method in methods for prompt in prompts if (Row(method, prompt), column) in comparison.cells
            }
            both = [prompt for prompt in prompts if all((method, prompt) in ece for method in methods)]
            if not both:
                continue
            name = comparison.column_label(column)
            labels += [f"{name}: mean", f"{name}: worst", f"{name}: lowest of {len(both)}"]
            for method in methods:
                own = [ece[method, prompt] for prompt in both]
                rivals = [other for other in methods if other != method]
                wins = sum(all(ece[method, prompt] < ece[other, prompt] for other in rivals) for prompt in both)
                rows[method] += [Entry(float(np.mean(own))), Entry(max(own)), Entry(wins, 0)]
        if labels:
            block = Block("ECE (%)", [TableRow(Row(m).label, m, entries) for m, entries in rows.items()])
            tables.append(Table(f"{material.experiment.name}_summary", f"ECE over initial prompts, {backbone}", labels,
                                [block], [f"{len(prompts)} initial prompts. {comparison.images()}"]))
    return tables


def class_pairs(material: Material) -> list[Table]:
    """How sure the model is of its mistakes, by how alike the two classes are."""
    experiment, tables = material.experiment, []
    for backbone in material.backbones:
        comparison = material.comparison(backbone)
        blocks, thirds = [], ["least alike third", "middle third", "most alike third", "all"]
        for column in comparison.columns:
            rows = []
            for row in comparison.rows:
                cell = comparison.cells.get((row, column))
                data = pair_errors_of(cell, text_similarity) if cell else None
                if data is None:
                    continue
                order = np.argsort(data.similarity, kind="stable")
                # Thirds of the mistakes, not of the pairs.
                third = np.minimum(3 * (np.cumsum(data.count[order]) - 1) // max(data.count.sum(), 1), 2)
                parts = [order[third == part] for part in range(3)]
                values = [
                    100 * float(np.average(data.error[part], weights=data.count[part])) if len(part) else float("nan")
                    for part in (*parts, order)
                ]
                rows.append(TableRow(row.label, row.method, [Entry(value) for value in values]))
            if rows:
                blocks.append(Block(f"{comparison.column_label(column)}: mean confidence of the mistakes (%)", rows))
        if blocks:
            notes = ["Mistakes sorted by the zero-shot similarity of predicted and true class. Accuracy among mistakes "
                     "is 0, so their mean confidence is their ECE.", comparison.images(), *comparison.notes]
            tables.append(Table(experiment.name, f"{experiment.title}, {backbone}", thirds, blocks, notes))
    return tables


def swept_key(experiment: Experiment) -> str:
    """The setting whose values an experiment compares."""
    return next((key for group in experiment.runs for key in group.sweep), "")


def by_setting(material: Material) -> list[Table]:
    return results(material, swept_key(material.experiment))


LAYOUTS: dict[str, Callable[[Material], list[Table]]] = {
    "results": results, "sals": results, "reliability": results, "averages": averages, "deviations": deviations,
    "steps": by_setting, "lambda": by_setting, "setting": by_setting, "scaling": by_setting,
    "prompts": lambda material: [*prompt_summary(material), *by_setting(material)],
    "selective": selective_table, "class_pairs": class_pairs,
}
