"""Swept settings without the test labels of a data set.

A value is chosen on validation images of the data set, or on the other data sets, and is shown next
to the best one in hindsight.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import ConfigError, DataError, first_five
from ...datasets.utils.registry import nearest
from ..functional.arrays import Array
from ..registry import method_info
from ..runs.record import RunRecord, canonical_json, group_records
from .arrange import by_backbone, sort_key, swept_keys
from .grid import (
    Column,
    largest_of_each_family,
    layers_of_cell,
    make_columns,
    make_row,
    record_of,
    value_of,
)
from .load import FinishedRun
from .measure import Measured, make_samples, mean_over_seeds, measure_metric
from .metrics import METRICS, ranking_metrics
from .predictions import Predictions
from .sentences import difference_words
from .table_model import Entry, RowBlock, Table, TableRow, text_entry
from .validation import MOST_SHARED, ImageSet, ValidationRuns, image_set

SHORT_NAMES = {"λ": "LAMBDA", "δ": "DELTA"}
RULES = {  # how a value is chosen: row label, note
    "validation": (
        "validation images",
        "the value with the {best} {metric} on validation images of the "
        "same data set, with their labels; no test image is used",
    ),
    "others": (
        "other data sets",
        "the value with the {best} mean {metric} on the test images of all "
        "other data sets of the table that share no images with it (leave one data set out); no "
        "label of the data set itself is used",
    ),
    "default": ("default", "the value that the data set had by default"),
    "hindsight": (
        "best in hindsight",
        "the value with the {best} {metric} on the test images "
        "themselves; it uses the test labels, so it is a bound and not a result",
    ),
}
Cell = dict[str, list[Measured]]  # value as JSON text -> test runs, one per seed


@dataclass(frozen=True)
class Sweep:
    """The runs of one method that differ in one setting.

    Attributes:
        method: Its name.
        key: The setting.
        label: The method, and its other settings that are not defaults.
        cells: For each data set the test runs by value.
        shown: The values by their JSON text.
        defaults: For each data set the default value, as JSON text.
        notes: On runs that do not count.
    """

    method: str
    key: str
    label: str
    cells: dict[Column, Cell]
    shown: dict[str, Any]
    defaults: dict[Column, str]
    notes: list[str]


def refers_to(name: str, key: str) -> bool:
    """Whether a user's name means a setting: its key, the last part of it, λ or δ, in any case."""
    wanted = SHORT_NAMES.get(name, name).upper()
    return wanted in (key.upper(), key.upper().rpartition(".")[2])


def check_choice(names: Sequence[str], swept: Iterable[str], criterion: str) -> None:
    """Refuses settings that are not swept, and criteria that rank nothing."""
    keys = sorted(set(swept))
    short = sorted({key.rpartition(".")[2] for key in keys})
    for name in names:
        if not any(refers_to(name, key) for key in keys):
            raise ConfigError(f"--choose {name}: no such setting is swept here."
                              f"{nearest(name.upper(), short)} Swept: {', '.join(keys) or 'none'}.")
    ranking = ranking_metrics()
    if names and criterion not in ranking:
        raise ConfigError(f"--choose-by {criterion}: no such metric.{nearest(criterion, ranking)} "
                          f"Known: {', '.join(ranking)}.")


def choice_tables(
    measured: Sequence[Measured], validation: ValidationRuns, names: Sequence[str], criterion: str,
) -> list[Table]:
    """A table for each backbone and swept setting: chosen values and the test results they lead to.

    Args:
        measured: The test runs.
        validation: Their validation runs.
        names: Settings as a user names them; see `refers_to`.
        criterion: The metric by which values are chosen.
    """
    tables_of_runs = by_backbone(measured)
    all_keys: set[str] = set()
    for table in tables_of_runs:
        all_keys |= set(swept_keys(table.runs))
    check_choice(names, all_keys, criterion)
    tables = []
    for table in tables_of_runs:
        keys = swept_keys(table.runs)
        for number, name in enumerate(dict.fromkeys(names), start=1):
            sweeps = []
            for key in keys:
                if refers_to(name, key):
                    sweeps += find_sweeps(table.runs, key)
            if sweeps:
                slug = f"choice_{table.label}_{number}".replace("/", "-").replace(" ", "-")
                title = f"{setting_name(sweeps[0].key)} chosen without test labels, {table.label}"
                tables.append(
                    choice_table(
                        sweeps, Chooser(validation, criterion, measured[0].bins), slug, title
                    )
                )
    return tables


def find_sweeps(runs: Sequence[Measured], key: str) -> list[Sweep]:
    """The runs that differ in one setting only, where a data set has several values."""
    _, column_of = make_columns(runs)
    sweeps = []
    for group in group_records(runs, "row", record_of, without=key):
        by_column: dict[Column, dict[str, list[Measured]]] = {}
        shown: dict[str, Any] = {}
        defaults: dict[Column, str] = {}
        for measured in group:
            value = value_of(key, measured.record, group)
            if value is None:
                continue
            text = value_text(value)
            shown[text] = value
            column = column_of[id(measured)]
            by_column.setdefault(column, {}).setdefault(text, []).append(measured)
            if key in measured.record.changed:
                defaults[column] = value_text(measured.record.changed[key][0])
            else:
                defaults[column] = text
        notes: list[str] = []
        comparable = {}
        for column, by_value in by_column.items():
            comparable[column] = comparable_values(by_value, key, notes)
        cells = cells_by_dataset(comparable, shown)
        if cells:
            row = make_row(group[0].record, (), [key], group)
            sweeps.append(Sweep(row.method, key, row.label, cells, shown, defaults, notes))
    return sorted(sweeps, key=lambda sweep: method_info(sweep.method).order)


def comparable_values(
    by_value: Mapping[str, Sequence[Measured]], key: str, notes: list[str],
) -> dict[str, dict[int, Measured]]:
    """The runs of a method on one set of images that differ in one setting and in the seed alone.

    Rows are equal if their settings are the defaults. A default may have been edited between two
    runs, or a run repeated with other code: of such runs the largest group that agrees counts.

    Args:
        by_value: The runs by the value of the setting.
        key: The setting.
        notes: Gets a note on each run that does not count.

    Returns:
        For each value the runs by seed.
    """
    layers: list[tuple[str, list[Measured]]] = []
    for text, runs in by_value.items():
        # The same run in two folders is told below the main table.
        layers += [(text, layer) for layer in layers_of_cell(runs, [])]
    layers.sort(key=lambda item: -len(item[1]))
    groups: list[dict[str, list[Measured]]] = []
    for text, layer in layers:
        for group in groups:
            first = next(iter(group.values()))[0]
            if text not in group and differ_in_key_alone(first.record, layer[0].record, key):
                group[text] = layer
                break
        else:
            groups.append({text: layer})
    groups.sort(key=lambda group: -len(group))
    chosen = groups[0]
    first = next(iter(chosen.values()))[0]
    for group in groups[1:]:
        for layer in group.values():
            difference = first.record.difference(layer[0].record, "choice", without=key)
            differing = ", ".join(difference_words(difference, second=True))
            for measured in layer:
                words = f" ({differing})" if differing else ""
                notes.append(
                    f"{measured.run.name} is left out of the choice: it differs from the other "
                    f"runs in more than {setting_name(key)}{words}."
                )
    by_seed = {}
    for text, layer in chosen.items():
        by_seed[text] = {measured.seed: measured for measured in layer}
    return by_seed


def differ_in_key_alone(first: RunRecord, second: RunRecord, key: str) -> bool:
    """Whether two runs of one row may be candidates for the value of a setting.

    A value may make other settings effective, which only one of the two then has.
    """
    difference = first.difference(second, "choice", without=key)
    return all(None in values for values in difference.values())


def cells_by_dataset(
    by_column: Mapping[Column, Mapping[str, Mapping[int, Measured]]], shown: Mapping[str, Any],
) -> dict[Column, Cell]:
    """For each data set the column with most values, and its runs at the seeds that all values
    have.
    """
    chosen: dict[str, tuple[Column, Cell]] = {}
    for column, values in sorted(by_column.items(), key=lambda item: (len(item[1]), item[0].n)):
        seeds = set.intersection(*(set(by_seed) for by_seed in values.values()))
        if len(values) < 2 or not seeds:
            continue
        cell: Cell = {}
        for text in sorted(values, key=lambda text: sort_key(shown[text])):
            cell[text] = [values[text][seed] for seed in sorted(seeds)]
        chosen[column.dataset] = (column, cell)
    return dict(sorted(chosen.values(), key=lambda item: item[0].order))


@dataclass(frozen=True)
class ValidationPredictions:
    """The predictions of a validation run, and the images that they are on."""

    predictions: Predictions
    images: ImageSet


class Chooser:
    """Chooses values by each rule, and collects notes on what it could not do."""

    def __init__(self, validation: ValidationRuns, criterion: str, bins: int) -> None:
        self.validation = validation
        self.criterion = criterion
        self.bins = bins
        self.sign = -1 if METRICS[criterion].higher_is_better else 1
        self.loaded: dict[int, ValidationPredictions | None] = {}
        self.notes: list[str] = []

    def choose(self, sweep: Sweep) -> dict[str, dict[Column, str]]:
        """For each rule the chosen value of each data set, as JSON text."""
        chosen: dict[str, dict[Column, str]] = {rule: {} for rule in RULES}
        for column, cell in sweep.cells.items():
            hindsight = {}
            for value, runs in cell.items():
                hindsight[value] = mean_over_seeds(runs, self.criterion)
            scores = {
                "hindsight": hindsight,
                "others": self.scores_on_others(sweep, column),
                "validation": self.scores_on_validation(sweep, column),
            }
            for rule, by_value in scores.items():
                if by_value:  # of equal ones the first
                    chosen[rule][column] = min(
                        by_value, key=lambda value: self.sign * by_value[value]
                    )
            default = sweep.defaults.get(column, "")
            if default in cell:
                chosen["default"][column] = default
        return chosen

    def scores_on_others(self, sweep: Sweep, column: Column) -> dict[str, float]:
        """The mean criterion of each value on the other data sets that share no cluster with one.
        """
        own_images = images_of(sweep.cells[column])
        others = []
        for other, cell in sweep.cells.items():
            if other is column:
                continue
            other_images = images_of(cell)
            if own_images is None or other_images is None or own_images.is_in(other_images).any():
                self.notes.append(
                    f"{sweep.label}: {other.label} shares images with {column.label}, so it "
                    "does not count as another data set there."
                )
            else:
                others.append(cell)
        scores: dict[str, float] = {}
        for value in sweep.cells[column]:
            if others and all(value in cell for cell in others):
                means = [mean_over_seeds(cell[value], self.criterion) for cell in others]
                scores[value] = float(np.mean(means))
        return scores

    def scores_on_validation(self, sweep: Sweep, column: Column) -> dict[str, float]:
        """The criterion of each value on the validation images that all values share."""
        cell = sweep.cells[column]
        where = f"{sweep.label} on {column.label}"
        candidates: dict[tuple[str, int], list[ValidationPredictions]] = {}
        lacking = []
        for value, runs in cell.items():
            for run in runs:
                predictions = self.validation_of(run.run)
                candidates[value, run.seed] = predictions
                if not predictions and show_value(sweep.shown[value]) not in lacking:
                    lacking.append(show_value(sweep.shown[value]))
        if lacking:
            self.notes.append(
                f"No choice on validation images for {where}: no run with TEST.SPLIT val at "
                f"{setting_name(sweep.key)} {first_five(lacking)}."
            )
            return {}
        shared = largest_shared_set(list(candidates.values()))
        if len(shared) == 0:
            self.notes.append(f"No choice on validation images for {where}: its values share none.")
            return {}
        usable, note = self.without_test_images(shared, candidates, cell, where)
        if note:
            self.notes.append(note)
        if usable is None:
            return {}
        scores: dict[str, list[float]] = {}
        for (value, _), predictions in candidates.items():
            scores.setdefault(value, []).append(self.criterion_on(predictions, usable))
        total = len(usable)
        self.notes.append(
            f"{where}: all values are judged on the same {counted(total, 'validation image')}."
        )
        return {value: float(np.mean(by_seed)) for value, by_seed in scores.items()}

    def validation_of(self, test: FinishedRun) -> list[ValidationPredictions]:
        """The predictions of all validation runs of a test run whose images are known."""
        predictions = []
        for run in self.validation.of(test):
            if id(run) not in self.loaded:
                self.loaded[id(run)] = load_quietly(run)
            data = self.loaded[id(run)]
            if data is not None:
                predictions.append(data)
        return predictions

    def without_test_images(
        self,
        shared: Array,
        candidates: Mapping[tuple[str, int], Sequence[ValidationPredictions]],
        cell: Cell,
        where: str,
    ) -> tuple[Array | None, str]:
        """The shared validation images that are no test images.

        Args:
            shared: Identities of the validation images that all values have, (N,).
            candidates: The validation runs by value and seed.
            cell: The test runs by value.
            where: Method and data set, for the note.

        Returns:
            Identities, or None if too many are test images; and a note, "" if there is none.
        """
        test_sets = []
        for runs in cell.values():
            for run in runs:
                if run.image is None or run.cluster is None:
                    return None, (
                        f"No choice on validation images for {where}: nothing says whether they "
                        "are test images."
                    )
                test_sets.append(ImageSet(run.image, run.cluster))
        first = next(iter(candidates.values()))
        clusters = clusters_of_images(shared, first)
        overlap = np.zeros(len(shared), dtype=bool)
        for test in test_sets:
            overlap |= ImageSet(shared, clusters).is_in(test)
        count = int(overlap.sum())
        if count > MOST_SHARED * len(shared):
            return None, (
                f"No choice on validation images for {where}: refused, because {count:,} of "
                f"{len(shared):,} validation images are test images."
            )
        note = ""
        if count:
            note = (
                f"{where}: {count:,} of {len(shared):,} validation images are test images and are "
                "left out of validation."
            )
        return shared[~overlap], note

    def criterion_on(self, runs: Sequence[ValidationPredictions], images: Array) -> float:
        """The criterion on some validation images, from a run that has all of them.

        Args:
            runs: The validation runs of one test run.
            images: Identities, (N,).
        """
        for run in runs:
            inside = np.isin(run.images.image, images)
            if int(inside.sum()) == len(images):
                part = run.predictions.take(inside)
                samples = make_samples(part.logits, part, self.bins)
                value = measure_metric(self.criterion, samples)
                if value is None:
                    raise DataError(
                        f"{self.criterion} cannot be measured on validation runs that were "
                        "exported without --logits: choose by another metric"
                    )
                return float(value.value)
        raise AssertionError("the shared images are those of a run")


def load_quietly(run: FinishedRun) -> ValidationPredictions | None:
    """The predictions of a validation run; None if they cannot be read or images are unknown."""
    try:
        data = run.load_predictions()
    except DataError:
        return None
    images = image_set(data)
    if images is None:
        return None
    return ValidationPredictions(data, images)


def largest_shared_set(candidates: Sequence[Sequence[ValidationPredictions]]) -> Array:
    """The largest set of images that each candidate has in one of its validation runs.

    Args:
        candidates: For each value and seed the predictions of its validation runs.

    Returns:
        Identities, (N,); empty if there are none.
    """
    best = np.array([], dtype="S16")
    tried = set()
    for runs in candidates:
        for start in runs:
            content = start.images.image.tobytes()
            if content in tried:
                continue
            tried.add(content)
            shared = np.unique(start.images.image)
            for others in candidates:
                parts = [np.intersect1d(shared, other.images.image) for other in others]
                shared = max(parts, key=len)
            if len(shared) > len(best):
                best = shared
    return best


def images_of(cell: Cell) -> ImageSet | None:
    """A data set's test images with their clusters, which differ if one run had groups and another
    had none; None if they are not known."""
    images = []
    clusters = []
    for runs in cell.values():
        for run in runs:
            if run.image is None or run.cluster is None:
                return None
            images.append(run.image)
            clusters.append(run.cluster)
    return ImageSet(np.concatenate(images), np.concatenate(clusters))


def clusters_of_images(images: Array, runs: Sequence[ValidationPredictions]) -> Array:
    """The cluster of each image, from a run that has all of them.

    Args:
        images: Identities, (N,).
        runs: Validation runs.

    Returns:
        Clusters, (N,); the images themselves if no run has all of them.
    """
    for run in runs:
        known = run.images.image
        order = np.argsort(known, kind="stable")
        positions = np.searchsorted(known[order], images)
        positions = np.minimum(positions, len(order) - 1)
        if (known[order[positions]] == images).all():
            return run.images.cluster[order[positions]]
    return images


def choice_table(sweeps: Sequence[Sweep], chooser: Chooser, name: str, title: str) -> Table:
    """Blocks for the chosen values, accuracy, ECE and the criterion; rows for each method and rule.

    Args:
        sweeps: Of one setting, one per method.
        chooser: Chooses the values.
        name: Of the table.
        title: Of the table.
    """
    all_columns: set[Column] = set()
    for sweep in sweeps:
        all_columns |= set(sweep.cells)
    columns = sorted(all_columns, key=lambda column: column.order)
    criterion = chooser.criterion
    averaged = largest_of_each_family(columns)
    has_average = len(averaged) > 1
    values = RowBlock("chosen value", [])
    blocks = {}
    for metric in ("accuracy", "ece", criterion):
        blocks[metric] = RowBlock(METRICS[metric].heading, [])
    tried: list[str] = []
    for sweep in sweeps:
        chosen = chooser.choose(sweep)
        for rule, (label, _) in RULES.items():
            by_column = chosen[rule]
            if not by_column:
                continue
            row_label = f"{sweep.label}: {label}"
            shown: list[Entry | None] = []
            for column in columns:
                if column in by_column:
                    shown.append(text_entry(show_value(sweep.shown[by_column[column]])))
                else:
                    shown.append(None)
            if has_average:
                shown.append(None)
            values.rows.append(TableRow(row_label, sweep.method, shown))
            for metric, block in blocks.items():
                entries = result_entries(sweep, by_column, columns, averaged, metric)
                block.rows.append(TableRow(row_label, sweep.method, entries))
        tried += [*tried_notes(sweep), *sweep.notes]
    labels = [column.label for column in columns]
    if has_average:
        labels.append("Average")
    notes = rule_notes(criterion)
    if len(columns) < 2:
        notes.append("Other data sets: at least two data sets are needed.")
    elif len(averaged) < len(columns):
        labels_of_averaged = [column.label for column in averaged]
        notes.append(
            f"The average is over {', '.join(labels_of_averaged)}: the other columns share images "
            "with these."
        )
    notes.append(
        "Accuracy, ECE and their averages are those of the test images at the chosen value."
    )
    chooser_notes = list(dict.fromkeys(chooser.notes))
    return Table(name, title, labels, [values, *blocks.values()], [*notes, *tried, *chooser_notes])


def result_entries(
    sweep: Sweep, chosen: Mapping[Column, str], columns: Sequence[Column],
    averaged: Sequence[Column], metric: str,
) -> list[Entry | None]:
    """The test results at the chosen values, and their average.

    Args:
        sweep: The test runs.
        chosen: The value of each data set, as JSON text; a data set may lack one.
        columns: Of the table.
        averaged: Those of the columns that share no images with each other.
        metric: By name.

    Returns:
        An entry per column, None without a value. If several columns are averaged, their average is
        the last entry, or None if one of them lacks a value.
    """
    about = METRICS[metric]
    results = {}
    for column in columns:
        if column in chosen:
            runs = sweep.cells[column][chosen[column]]
            results[column] = about.scale * mean_over_seeds(runs, metric)
    entries: list[Entry | None] = []
    for column in columns:
        entries.append(Entry(results[column], about.decimals) if column in results else None)
    if len(averaged) > 1:
        if all(column in results for column in averaged):
            mean = float(np.mean([results[column] for column in averaged]))
            entries.append(Entry(mean, about.decimals))
        else:
            entries.append(None)
    return entries


def rule_notes(criterion: str) -> list[str]:
    best = "highest" if METRICS[criterion].higher_is_better else "lowest"
    notes = []
    for label, words in RULES.values():
        rule = words.format(best=best, metric=METRICS[criterion].label)
        notes.append(f"{label[0].upper()}{label[1:]}: {rule}.")
    return notes


def tried_notes(sweep: Sweep) -> list[str]:
    """Notes on the values, seeds and test images that the choices of a method are made from."""
    images: dict[str, list[str]] = {}
    for column, cell in sweep.cells.items():
        runs = next(iter(cell.values()))
        values = ", ".join(show_value(sweep.shown[value]) for value in cell)
        words = f"{values}; {counted(len(runs), 'seed')}"
        images.setdefault(words, []).append(f"{column.label} {column.n:,}")
    notes = []
    for words, sets in images.items():
        notes.append(f"{sweep.label}: values {words}; test images: {', '.join(sets)}.")
    return notes


def value_text(value: Any) -> str:
    """A value as JSON text, equal for 30 and 30.0."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return canonical_json(value)


def setting_name(key: str) -> str:
    last = key.rpartition(".")[2]
    for sign, name in SHORT_NAMES.items():
        if name == last:
            return sign
    return key


def show_value(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return str(value) or "none"
