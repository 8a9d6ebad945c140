"""Swept settings without the test labels of a data set: their value is chosen on its validation images, or on the other
data sets, and is shown next to the best one in hindsight."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...datasets.base import dataset_info
from ...datasets.utils.cli import counted
from ...datasets.utils.errors import ConfigError, first_five
from ...datasets.utils.registry import nearest
from ..registry import backbone_label, method_info
from .comparison import Column, column_of, default_settings, non_default_settings, show_setting, swept_keys
from .measure import Measured, mean_over_seeds
from .metrics import METRICS
from .table_model import Entry, RowBlock, Table, TableRow, text_entry

SHORT = {"λ": "LAMBDA", "δ": "DELTA"}
RULES = {  # how a value is chosen: row label, note
    "validation": ("validation images", "the value with the {best} {metric} on the validation split of the same data "
                   "set, with its labels; the test split is not used"),
    "others": ("other data sets", "the value with the {best} mean {metric} on the test splits of all other data sets "
               "of the table (leave one data set out); no label of the data set itself is used"),
    "default": ("default", "the value in configs/"),
    "hindsight": ("best in hindsight", "the value with the {best} {metric} on the test split itself; it uses the test "
                  "labels, so it is a bound and not a result"),
}
Cell = dict[object, list[Measured]]  # value -> runs, one per seed


class Sweep(NamedTuple):
    """The runs of one method that differ in one setting."""

    method: str
    key: str
    label: str  # the method, and its other settings that differ from the defaults
    tested: dict[str, Cell]  # by data set


def means(name: str, key: str) -> bool:
    """Whether a user's name means a setting: its key, the last part of its key, λ or δ, in any case."""
    return SHORT.get(name, name).upper() in (key.upper(), key.upper().rpartition(".")[2])


def check_choice(names: Sequence[str], swept: Iterable[str], criterion: str) -> None:
    """Refuses settings that are not swept, and criteria that rank nothing."""
    swept = sorted(set(swept))
    short = sorted({key.rpartition(".")[2] for key in swept})
    for name in names:
        if not any(means(name, key) for key in swept):
            raise ConfigError(f"--choose {name}: no such setting is swept here.{nearest(name.upper(), short)} "
                              f"Swept: {', '.join(swept) or 'none'}.")
    ranking = [key for key, metric in METRICS.items() if metric.of and metric.higher_is_better is not None]
    if names and criterion not in ranking:
        raise ConfigError(f"--choose-by {criterion}: no such metric.{nearest(criterion, ranking)} "
                          f"Known: {', '.join(ranking)}.")


def choice_tables(
    measured: Sequence[Measured], validation: Sequence[Measured], names: Sequence[str], criterion: str,
) -> list[Table]:
    """A table for each backbone and swept setting: the chosen values, and the test results that they lead to."""
    check_choice(names, swept_keys(measured), criterion)
    held_out = {m.run.split_key(): m for m in validation}
    tables = []
    for backbone in sorted({m.run.backbone for m in measured}):
        runs = [m for m in measured if m.run.backbone == backbone]
        for number, name in enumerate(dict.fromkeys(names), start=1):
            sweeps = find_sweeps(runs, [key for key in swept_keys(runs) if means(name, key)])
            if sweeps:
                table = f"choice_{backbone_label(backbone)}_{number}".replace("/", "-").replace(" ", "-")
                title = f"{setting_name(sweeps[0].key)} chosen without test labels, {backbone_label(backbone)}"
                tables.append(choice_table(sweeps, held_out, criterion, table, title))
    return tables


def find_sweeps(measured: Sequence[Measured], keys: Sequence[str]) -> list[Sweep]:
    """The runs by method, swept setting and other settings, where at least one data set has several values."""
    found: dict[tuple, dict[Column, dict[object, dict[int, Measured]]]] = defaultdict(lambda: defaultdict(dict))
    for m in measured:
        other = non_default_settings(m.run)
        for key in (key for key in keys if key in m.run.compared):
            shown = [show_setting(name, value) for name, value in other.items() if name != key]
            value = m.run.compared[key]
            hashable = tuple(value) if isinstance(value, list) else value
            label = ", ".join([method_info(m.run.trainer).label, *shown])
            found[m.run.trainer, key, label][column_of(m)].setdefault(hashable, {})[m.run.seed] = m
    sweeps = [Sweep(method, key, label, tested) for (method, key, label), cells in found.items()
              if (tested := by_dataset(cells))]
    return sorted(sweeps, key=lambda sweep: method_info(sweep.method).order)


def by_dataset(cells: Mapping[Column, Mapping[object, Mapping[int, Measured]]]) -> dict[str, Cell]:
    """For each data set the test images with most values, and the runs at these values with the seeds that all of them
    have."""
    found: dict[str, Cell] = {}
    for column, values in sorted(cells.items(), key=lambda item: (len(item[1]), item[0].n)):
        seeds = set.intersection(*map(set, values.values()))
        if len(values) > 1 and seeds:
            order = sorted(values, key=lambda value: (isinstance(value, str), value))
            found[column.dataset] = {value: [values[value][seed] for seed in sorted(seeds)] for value in order}
    return dict(sorted(found.items(), key=lambda item: dataset_info(item[0]).order))


def choice_table(
    sweeps: Sequence[Sweep], held_out: Mapping[tuple, Measured], criterion: str, name: str, title: str,
) -> Table:
    """Blocks for the chosen values, accuracy, ECE and the criterion; rows for each method and rule."""
    datasets = sorted({dataset for sweep in sweeps for dataset in sweep.tested}, key=lambda d: dataset_info(d).order)
    values = RowBlock("chosen value", [])
    blocks = {metric: RowBlock(METRICS[metric].heading, []) for metric in ("accuracy", "ece", criterion)}
    several = len(datasets) > 1
    notes: list[str] = []
    missing: list[str] = []
    for sweep in sweeps:
        chosen = choose(sweep, held_out, criterion, missing)
        for rule, (label, _) in RULES.items():
            if not (row := chosen[rule]):
                continue
            shown = [text_entry(show_value(row[d])) if d in row else None for d in datasets]
            values.rows.append(TableRow(f"{sweep.label}: {label}", sweep.method, [*shown, *[None] * several]))
            for metric, block in blocks.items():
                scale, decimals = METRICS[metric].scale, METRICS[metric].decimals
                results = {d: scale * mean_over_seeds(sweep.tested[d][row[d]], metric) for d in datasets if d in row}
                entries = [Entry(results[d], decimals) if d in results else None for d in datasets]
                if several:
                    whole = len(results) == len(datasets)
                    entries.append(Entry(float(np.mean(list(results.values()))), decimals) if whole else None)
                block.rows.append(TableRow(f"{sweep.label}: {label}", sweep.method, entries))
        notes += tried(sweep, held_out)
    best = "highest" if METRICS[criterion].higher_is_better else "lowest"
    rules = [f"{label[0].upper()}{label[1:]}: {words.format(best=best, metric=METRICS[criterion].label)}."
             for label, words in RULES.values()]
    if not several:
        rules.append("Other data sets: at least two data sets are needed.")
    labels = [*(dataset_info(dataset).label for dataset in datasets), *["Average"] * several]
    rules.append("Accuracy, ECE and their averages are those of the test split at the chosen value.")
    return Table(name, title, labels, [values, *blocks.values()], [*rules, *notes, *missing])


def tried(sweep: Sweep, held_out: Mapping[tuple, Measured]) -> list[str]:
    """Notes on the values and images that the choices of a method are made from."""
    images = defaultdict(list)
    for dataset, cell in sweep.tested.items():
        runs = next(iter(cell.values()))
        validation = held_out.get(runs[0].run.split_key())
        counts = [f"{m.run.results['n']:,}" for m in (runs[0], validation) if m]
        values = f"{', '.join(map(show_value, cell))}; {counted(len(runs), 'seed')}"
        images[values].append(f"{dataset_info(dataset).label} {' / '.join(counts)}")
    return [f"{sweep.label}: values {values}; test / validation images: {', '.join(sets)}."
            for values, sets in images.items()]


def choose(
    sweep: Sweep, held_out: Mapping[tuple, Measured], criterion: str, missing: list[str],
) -> dict[str, dict[str, object]]:
    """For each rule the chosen value by data set. `missing` gets a note on each choice that needs further runs."""
    chosen: dict[str, dict[str, object]] = {rule: {} for rule in RULES}
    sign = -1 if METRICS[criterion].higher_is_better else 1
    for dataset, cell in sweep.tested.items():
        others = [other for name, other in sweep.tested.items() if name != dataset]
        shared = [value for value in cell if others and all(value in other for other in others)]
        scores = {  # by rule and value
            "hindsight": {value: mean_over_seeds(runs, criterion) for value, runs in cell.items()},
            "others": {value: float(np.mean([mean_over_seeds(other[value], criterion) for other in others]))
                       for value in shared},
        }
        default = default_settings(sweep.method, dataset).get(sweep.key)
        if default in cell:
            chosen["default"][dataset] = default
        pairs = {value: [(m, held_out.get(m.run.split_key())) for m in runs] for value, runs in cell.items()}
        lacking = [show_value(value) for value, runs in pairs.items() if any(val is None for _, val in runs)]
        where = f"No choice on validation images for {sweep.label} on {dataset_info(dataset).label}"
        if lacking:
            missing.append(f"{where}: no run with TEST.SPLIT val at {setting_name(sweep.key)} {first_five(lacking)}.")
        elif any(val and val.run.data_hash == m.run.data_hash for runs in pairs.values() for m, val in runs):
            missing.append(f"{where}: its validation images are its test images.")
        else:
            scores["validation"] = {value: mean_over_seeds([val for _, val in runs if val], criterion)
                                    for value, runs in pairs.items()}
        for rule, found in scores.items():
            if found:  # of equal ones the first
                chosen[rule][dataset] = min(found, key=lambda value, found=found: sign * found[value])  # type: ignore[misc]
    return chosen


def setting_name(key: str) -> str:
    last = key.rpartition(".")[2]
    return next((sign for sign, name in SHORT.items() if name == last), key)


def show_value(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value) or "none"
