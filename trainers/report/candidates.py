"""Candidates of a choice: the runs of one method that differ in one setting and in the seed alone.
"""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..registry import method_info
from ..runs.record import RunRecord, canonical_json, group_records
from .arrange import sort_key
from .grid import Column, twin_words
from .make_grid import layers_of_cell, make_row, record_of, value_of
from .measure import MOST_FAILURES, Measured
from .metrics import ranking_metrics
from .sentences import difference_words

SHORT_NAMES = {"λ": "LAMBDA", "δ": "DELTA"}
Cell = dict[str, list[Measured]]  # value as JSON text -> test runs, one per seed


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
        key: Key of the setting.
    """
    wanted = SHORT_NAMES.get(name, name).upper()
    return wanted in (key.upper(), key.upper().rpartition(".")[2])


def check_choice(names: Sequence[str], swept: Iterable[str], criterion: str) -> None:
    """Refuses settings that are not swept, and criteria that rank nothing.

    Args:
        names: Settings whose value is chosen, by key or the last part of it.
        swept: Keys of the settings that the runs sweep.
        criterion: Name of the metric that is compared.
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
        runs: Runs with one backbone.
        key: Key of the setting.
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
        key: The setting.
        where: Method and data set, for the note.
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

    Args:
        first: The record of one run.
        second: The record of the other.
        key: Key of the setting.
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
