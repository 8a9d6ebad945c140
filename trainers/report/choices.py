"""Values of swept settings that are chosen without the test labels of a data set.

The candidates are the runs of one method that differ in one setting and in the seed alone. A value
is chosen on validation images of the data set, or on the other data sets, and is shown next to the
best one in hindsight.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..config.table import AVERAGE
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
    twin_words,
    value_of,
)
from .measure import MOST_FAILURES, Measured, mean_over_seeds
from .metrics import METRICS, ranking_metrics
from .table import UNEQUAL_SEEDS, Entry, RowBlock, Table, TableRow, text_entry
from .validation import ValidationRuns, ValidationScores, images_of
from .words import difference_words, listed

SHORT_NAMES = {"λ": "LAMBDA", "δ": "DELTA"}
Cell = dict[str, list[Measured]]  # value as JSON text -> test runs, one per seed
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


@dataclass(frozen=True)
class Candidates:
    """The runs of one method that differ in one setting.

    Attributes:
        method: Name of the method.
        key: The setting.
        label: The method, and its other settings that are not defaults.
        cells: For each data set the test runs by value.
        values: The values by their JSON text.
        defaults: For each data set the default value, as JSON text.
        notes: On runs that do not count.
    """

    method: str
    key: str
    label: str
    cells: dict[Column, Cell]
    values: dict[str, Any]
    defaults: dict[Column, str]
    notes: list[str]


def refers_to(name: str, key: str) -> bool:
    """Whether a user's name means a setting: its key, the last part of it, λ or δ, in any case.

    Args:
        name: The setting as the user writes it, such as `lambda` or `TRAINER.SOC.LAMBDA`.
    """
    wanted = SHORT_NAMES.get(name, name).upper()
    return wanted in (key.upper(), key.upper().rpartition(".")[2])


def check_choice(names: Sequence[str], swept: Iterable[str], criterion: str) -> None:
    """Refuses settings that are not swept, and criteria that rank nothing.

    Args:
        names: Settings whose value is chosen, by key or the last part of it.
        swept: Keys of the settings that the runs sweep.
    """
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


def find_candidates(
    runs: Sequence[Measured], key: str, column_of: Mapping[Measured, Column],
) -> list[Candidates]:
    """The runs that differ in one setting only, where a data set has several values.

    Args:
        column_of: The set of images of each run. All candidates of a table share these columns.
    """
    candidates = []
    for group in group_records(runs, "row", record_of, without=key):
        by_column: dict[Column, dict[str, list[Measured]]] = {}
        values: dict[str, Any] = {}
        all_defaults: dict[Column, dict[str, None]] = {}
        for measured in group:
            value = value_of(key, measured.record, group)
            if value is None:
                continue
            text = value_text(value)
            values[text] = value
            column = column_of[measured]
            by_column.setdefault(column, {}).setdefault(text, []).append(measured)
            default = text
            if key in measured.record.changed:
                default = value_text(measured.record.changed[key][0])
            all_defaults.setdefault(column, {})[default] = None
        notes: list[str] = []
        defaults = {}
        for column, of_column in all_defaults.items():
            if len(of_column) == 1:
                defaults[column] = next(iter(of_column))
            else:
                edited = [show_value(json.loads(default)) for default in of_column]
                notes.append(
                    f"{method_info(group[0].run.trainer).label} on {column.label}: the default of "
                    f"{setting_name(key)} was edited between the runs ({', '.join(edited)}), so "
                    "none is shown as the default."
                )
        comparable = {}
        for column, by_value in by_column.items():
            alike = comparable_values(by_value, key, notes)
            where = f"{method_info(group[0].run.trainer).label} on {column.label}"
            comparable[column] = without_failed(alike, key, where, notes)
        cells = cells_by_dataset(comparable, values, notes)
        if cells:
            row = make_row(group[0].record, (), [key], group)
            candidates.append(
                Candidates(row.method, key, row.label, cells, values, defaults, notes)
            )
    return sorted(candidates, key=lambda each: method_info(each.method).order)


def comparable_values(
    by_value: Mapping[str, Sequence[Measured]], key: str, notes: list[str],
) -> dict[str, dict[int, Measured]]:
    """The runs of a method on one set of images that differ in one setting and in the seed alone.

    Rows are equal if their settings are the defaults. A default may have been edited between two
    runs, or a run repeated with other code: of such runs the largest group that agrees counts.

    Args:
        by_value: The runs by the value of the setting.
        notes: Gets a note on each run that does not count.

    Returns:
        For each value the runs by seed.
    """
    layers: list[tuple[str, list[Measured]]] = []
    for text, runs in by_value.items():
        # The same run in two folders is told below the main table.
        layers += [(text, layer) for layer in layers_of_cell(runs, [])]
    layers.sort(key=lambda item: -len(item[1]))
    # Each layer joins the first group that it agrees with and that lacks its value.
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


def without_failed(
    by_value: Mapping[str, dict[int, Measured]], key: str, where: str, notes: list[str],
) -> dict[str, dict[int, Measured]]:
    """The values whose runs may be ranked: predictions that are not the method's choose nothing.

    Args:
        by_value: For each value its runs, by seed.
        notes: Gets a note on the values that are left out.
    """
    ranked = {}
    failed = []
    for text, by_seed in by_value.items():
        if all(measured.is_ranked for measured in by_seed.values()):
            ranked[text] = by_seed
        else:
            failed.append(show_value(json.loads(text)))
    if failed:
        notes.append(
            f"{where}: {setting_name(key)} {', '.join(failed)} cannot be chosen, because more than "
            f"{100 * MOST_FAILURES:g} % of the images failed."
        )
    return ranked


def differ_in_key_alone(first: RunRecord, second: RunRecord, key: str) -> bool:
    """Whether two runs of one row may be candidates for the value of a setting.

    A value may make other settings effective, which only one of the two then has.
    """
    difference = first.difference(second, "choice", without=key)
    return all(None in values for values in difference.values())


def cells_by_dataset(
    by_column: Mapping[Column, Mapping[str, Mapping[int, Measured]]], values: Mapping[str, Any],
    notes: list[str],
) -> dict[Column, Cell]:
    """For each data set the column with most values, and its runs at the seeds that all values
    have.

    Args:
        by_column: For each column and value the runs by seed.
        values: The values by their JSON text.
        notes: Gets a note on what is left out.

    Returns:
        The runs by column. Data sets with a single value, or without a common seed, are left out.
    """
    chosen: dict[str, tuple[Column, Cell]] = {}
    # In ascending order, so that the column with most values replaces the others of its data set.
    for column, by_value in sorted(by_column.items(), key=lambda item: (len(item[1]), item[0].n)):
        if len(by_value) < 2:
            continue
        # A value with more seeds than another would be compared on other runs.
        seeds = set.intersection(*(set(by_seed) for by_seed in by_value.values()))
        if not seeds:
            notes.append(
                f"{column.label} is left out of the choice: its values have no common seed."
            )
            continue
        cell: Cell = {}
        for text in sorted(by_value, key=lambda text: sort_key(values[text])):
            cell[text] = [by_value[text][seed] for seed in sorted(seeds)]
        if column.dataset in chosen:
            smaller, _ = chosen[column.dataset]
            used = f"{column.n:,} images{twin_words(column, list(by_column))}"
            unused = f"{smaller.n:,}{twin_words(smaller, list(by_column))}"
            notes.append(
                f"{column.dataset} was run on several sets of test images: the choice is made on "
                f"{used}, not on {unused}."
            )
        chosen[column.dataset] = (column, cell)
    return dict(sorted(chosen.values(), key=lambda item: item[0].order))


def value_text(value: Any) -> str:
    """A value as JSON text, equal for 30 and 30.0."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    return canonical_json(value)


def setting_name(key: str) -> str:
    """A setting as notes and titles call it: λ, δ, or its key."""
    last = key.rpartition(".")[2]
    for sign, name in SHORT_NAMES.items():
        if name == last:
            return sign
    return key


def show_value(value: Any) -> str:
    """A value as a table states it; `none` for an empty text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}"
    return str(value) or "none"


def choice_tables(
    measured: Sequence[Measured], validation: ValidationRuns, names: Sequence[str], criterion: str,
) -> list[Table]:
    """A table for each backbone and swept setting: chosen values and the test results they lead to.

    Args:
        names: Settings as a user names them; see `refers_to`.
    """
    backbones = by_backbone(measured)
    all_keys: set[str] = set()
    for backbone in backbones:
        all_keys |= set(swept_keys(backbone.runs))
    check_choice(names, all_keys, criterion)
    tables = []
    for backbone in backbones:
        keys = swept_keys(backbone.runs)
        _, column_of = make_columns(backbone.runs)
        for number, name in enumerate(dict.fromkeys(names), start=1):
            methods: list[Candidates] = []
            for key in keys:
                if refers_to(name, key):
                    methods += find_candidates(backbone.runs, key, column_of)
            if methods:
                slug = f"choice_{backbone.label}_{number}".replace("/", "-").replace(" ", "-")
                setting = setting_name(methods[0].key)
                title = f"{setting} chosen without test labels, {backbone.label}"
                chooser = Chooser(validation, criterion, measured[0].bins)
                tables.append(choice_table(methods, chooser, slug, title))
    return tables


class Chooser:
    """Chooses values by each rule, and collects notes on what it could not do."""

    def __init__(self, validation: ValidationRuns, criterion: str, bins: int) -> None:
        """
        Args:
            validation: The runs on validation images.
            criterion: The metric by which values are chosen.
            bins: Number of bins of ECE, ACE and MCE.
        """
        self.criterion = criterion
        self.sign = -1 if METRICS[criterion].higher_is_better else 1
        self.notes: list[str] = []
        self.bins = bins
        self.validation_scores = ValidationScores(validation, criterion, bins, self.notes)

    def choose(self, candidates: Candidates) -> dict[str, dict[Column, str]]:
        """For each rule the chosen value of each data set, as JSON text."""
        chosen: dict[str, dict[Column, str]] = {rule: {} for rule in RULES}
        lacking = self.runs_without_criterion(candidates)
        if lacking:
            self.notes.append(
                f"No choice for {candidates.label}: {METRICS[self.criterion].label} was not "
                f"measured of {listed(lacking)}. Copies have it if they were exported with "
                "--logits."
            )
            return chosen
        for column, cell in candidates.cells.items():
            hindsight = {}
            for value, runs in cell.items():
                hindsight[value] = mean_over_seeds(runs, self.criterion)
            scores = {
                "hindsight": hindsight,
                "others": self.scores_on_others(candidates, column),
                "validation": self.validation_scores.of(
                    cell, f"{candidates.label} on {column.label}", setting_name(candidates.key),
                    {value: show_value(candidates.values[value]) for value in cell}),
            }
            for rule, all_scores in scores.items():
                by_value = self.numbers(candidates, column, rule, all_scores)
                if by_value:
                    best = min(self.sign * score for score in by_value.values())
                    equal = [value for value in by_value if self.sign * by_value[value] == best]
                    chosen[rule][column] = equal[0]  # of equally good values the first
                    self.note_tie(candidates, column, rule, equal)
            default = candidates.defaults.get(column, "")
            if default in cell:
                chosen["default"][column] = default
        return chosen

    def numbers(
        self, candidates: Candidates, column: Column, rule: str, scores: Mapping[str, float],
    ) -> dict[str, float]:
        """The scores that are numbers. AUROC is none where no prediction is wrong, for instance.

        Args:
            scores: By value as JSON text.
        """
        numbers = {value: score for value, score in scores.items() if not np.isnan(score)}
        missing = [show_value(candidates.values[value]) for value in scores if value not in numbers]
        if missing:
            label, _ = RULES[rule]
            self.notes.append(
                f"{candidates.label} on {column.label}, {label}: {setting_name(candidates.key)} "
                f"{', '.join(missing)} cannot be chosen, because {METRICS[self.criterion].label} "
                "is no number there."
            )
        return numbers

    def runs_without_criterion(self, candidates: Candidates) -> list[str]:
        """Names of the test runs of a method that lack what the criterion is measured from."""
        names = []
        for cell in candidates.cells.values():
            for runs in cell.values():
                names += [run.run.name for run in runs if self.criterion not in run.metrics]
        return names

    def note_tie(
        self, candidates: Candidates, column: Column, rule: str, equal: Sequence[str],
    ) -> None:
        """Says that a rule cannot tell some values from each other.

        Args:
            equal: The values of equal score, as JSON text.
        """
        if len(equal) < 2:
            return
        values = [show_value(candidates.values[value]) for value in equal]
        label, _ = RULES[rule]
        self.notes.append(
            f"{candidates.label} on {column.label}, {label}: {setting_name(candidates.key)} "
            f"{', '.join(values)} are equally good, and the first is taken."
        )

    def scores_on_others(self, candidates: Candidates, column: Column) -> dict[str, float]:
        """The mean criterion of each value on all other data sets, for the choice on one.

        A data set that shares images with it, or groups of images, is no other data set.

        Returns:
            The mean over seeds and data sets for each value, as fractions; empty without others.
        """
        images = images_of(candidates.cells[column])
        others = []
        for other, cell in candidates.cells.items():
            if other is column:
                continue
            other_images = images_of(cell)
            if images is None or other_images is None or images.is_in(other_images).any():
                self.notes.append(
                    f"{candidates.label}: {other.label} shares images with {column.label}, so it "
                    "does not count as another data set there."
                )
            else:
                others.append(cell)
        scores: dict[str, float] = {}
        missing = []
        for value in candidates.cells[column]:
            if others and all(value in cell for cell in others):
                means = [mean_over_seeds(cell[value], self.criterion) for cell in others]
                scores[value] = float(np.mean(means))
            else:
                missing.append(show_value(candidates.values[value]))
        if others and missing:
            self.notes.append(
                f"{candidates.label} on {column.label}, other data sets: "
                f"{setting_name(candidates.key)} {', '.join(missing)} cannot be chosen, because "
                "not all of them have it."
            )
        return scores


def choice_table(
    methods: Sequence[Candidates], chooser: Chooser, name: str, title: str,
) -> Table:
    """Blocks for the chosen values, accuracy, ECE and the criterion; rows for each method and rule.

    Args:
        methods: The candidates of each method, all of one setting.
    """
    columns: list[Column] = []
    for candidates in methods:
        columns += [column for column in candidates.cells if column not in columns]
    columns.sort(key=lambda column: column.order)
    criterion = chooser.criterion
    averaged = largest_of_each_family(columns)
    has_average = len(averaged) > 1
    value_block = RowBlock("chosen value", [])
    blocks = {}
    for metric in ("accuracy", "ece", criterion):
        blocks[metric] = RowBlock(METRICS[metric].heading, [])
    tried: list[str] = []
    for candidates in methods:
        for rule, chosen in chooser.choose(candidates).items():
            if not chosen:
                continue
            label, _ = RULES[rule]
            row_label = f"{candidates.label}: {label}"
            values = value_entries(candidates, chosen, columns)
            if has_average:
                values.append(None)
            value_block.rows.append(TableRow(row_label, candidates.method, values))
            for metric, block in blocks.items():
                entries = result_entries(candidates, chosen, columns, averaged, metric)
                block.rows.append(TableRow(row_label, candidates.method, entries))
        tried += [*tried_notes(candidates), *candidates.notes, *failed_notes(candidates)]
    labels = [column.label for column in columns]
    if has_average:
        labels.append(AVERAGE)
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
        f"Accuracy, ECE ({counted(chooser.bins, 'bin')}) and their averages are those of the test "
        "images at the chosen value."
    )
    chooser_notes = list(dict.fromkeys(chooser.notes))
    all_blocks = [value_block, *blocks.values()]
    return Table(name, title, labels, all_blocks, [*notes, *tried, *chooser_notes])


def value_entries(
    candidates: Candidates, chosen: Mapping[Column, str], columns: Sequence[Column],
) -> list[Entry | None]:
    """The chosen values, one for each column; None without a value."""
    entries: list[Entry | None] = []
    for column in columns:
        if column in chosen:
            value = candidates.values[chosen[column]]
            entries.append(text_entry(show_value(value)))
        else:
            entries.append(None)
    return entries


def result_entries(
    candidates: Candidates, chosen: Mapping[Column, str], columns: Sequence[Column],
    averaged: Sequence[Column], metric: str,
) -> list[Entry | None]:
    """The test results at the chosen values, and their average.

    Args:
        averaged: The columns that enter the average; they share no images.

    Returns:
        An entry per column, None without a value. If several columns are averaged, their average is
        the last entry, or None if one of them lacks a value.
    """
    about = METRICS[metric]
    results: dict[Column, Entry] = {}
    for column in columns:
        if column in chosen:
            runs = candidates.cells[column][chosen[column]]
            value = about.scale * mean_over_seeds(runs, metric)
            results[column] = Entry(value, about.decimals, seeds=len(runs))
    entries: list[Entry | None] = [results.get(column) for column in columns]
    if len(averaged) > 1:
        if all(column in results for column in averaged):
            mean = float(np.mean([results[column].value for column in averaged]))
            numbers = {results[column].seeds for column in averaged}
            seeds = numbers.pop() if len(numbers) == 1 else UNEQUAL_SEEDS
            entries.append(Entry(mean, about.decimals, seeds=seeds))
        else:
            entries.append(None)
    return entries


def rule_notes(criterion: str) -> list[str]:
    """What each rule means, with the metric by which values are chosen."""
    best = "highest" if METRICS[criterion].higher_is_better else "lowest"
    notes = []
    for label, words in RULES.values():
        rule = words.format(best=best, metric=METRICS[criterion].label)
        notes.append(f"{label[0].upper()}{label[1:]}: {rule}.")
    return notes


def failed_notes(candidates: Candidates) -> list[str]:
    """A note on images that have no prediction of the method, in runs that may be chosen."""
    failed = []
    for column, cell in candidates.cells.items():
        for value, runs in cell.items():
            for run in runs:
                if run.flagged or run.skipped:
                    value_words = show_value(candidates.values[value])
                    failed.append(
                        f"{value_words} on {column.label}, seed {run.seed}: {run.flagged:,} with "
                        f"their zero-shot prediction, {run.skipped:,} unreadable"
                    )
    if not failed:
        return []
    setting = setting_name(candidates.key)
    return [f"{candidates.label}: images that failed at {setting} {listed(failed)}."]


def tried_notes(candidates: Candidates) -> list[str]:
    """Notes on the values, seeds and test images that the choices of a method are made from."""
    images: dict[str, list[str]] = {}
    for column, cell in candidates.cells.items():
        runs = next(iter(cell.values()))
        values = ", ".join(show_value(candidates.values[value]) for value in cell)
        seeds = ", ".join(str(run.seed) for run in runs)
        noun = "seed" if len(runs) == 1 else "seeds"
        words = f"{values}; {noun} {seeds}"
        images.setdefault(words, []).append(f"{column.label} {column.n:,}")
    notes = []
    for words, sets in images.items():
        notes.append(f"{candidates.label}: values {words}; test images: {', '.join(sets)}.")
    return notes
