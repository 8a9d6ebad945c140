"""Arranges measured runs as tables: one main table for each backbone, one for each swept setting.

Zero-shot rows are made of the zero-shot predictions that tuned runs have.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config.settings import setting_title
from ..registry import ZERO_SHOT, method_info
from ..runs.record import RunRecord, canonical_json, group_records
from .grid import (
    OF_ZERO_SHOT,
    Column,
    Grid,
    conditions,
    grid_of,
    is_learnt_and_trained,
    make_columns,
    record_of,
    value_of,
)
from .grid_notes import grid_notes
from .measure import Measured
from .words import PROMPT, backbone_words, is_untuned_prompt, joined_with_and, starts_from_prompt

DESCRIPTIONS = "PROMPT.DESCRIPTIONS"
# Settings that the field `method.stream` of a record states too
STREAM_SETTINGS = ("TEST.ORDER", "TEST.CORRELATION", "TTA.RESET")
# Method, protocol of a learnt prompt, and images: what runs with several values of a swept setting
# have in common.
Setup = tuple[str, str, Column]
DEFAULT = "the default"  # stands for a setting that a record does not list as changed


@dataclass(frozen=True)
class BackboneRuns:
    """The runs with the same weights.

    Attributes:
        label: Name of the backbone in tables.
        runs: Measured runs, in the order of papers.
    """

    label: str
    runs: list[Measured]


def by_backbone(measured: Sequence[Measured]) -> list[BackboneRuns]:
    """Runs by their weights. The name of a backbone is only a label."""
    groups = group_records(with_common_descriptions(measured), "table", record_of)
    names = []
    for group in groups:
        of_group = dict.fromkeys(backbone_words(run.record) for run in group)
        names.append(" = ".join(of_group))  # several names of the same weights
    tables = []
    for name, group in zip(names, groups, strict=True):
        if names.count(name) > 1:
            name = f"{name} (weights {str(group[0].record.model['weights'])[:6]})"
        tables.append(BackboneRuns(name, group))
    return sorted(tables, key=lambda table: table.label)


def with_common_descriptions(measured: Sequence[Measured]) -> list[Measured]:
    """The runs, where those from descriptions of one kind state the same setting.

    Each data set has a file of descriptions of its own, for its classes. Files of one label, on
    several data sets, make one row. If a data set has several such files, it is not known which
    belong together, and each stays a setting of its own.
    """
    files: dict[str, dict[str, set[str]]] = {}  # label -> data set -> files
    for run in measured:
        if DESCRIPTIONS in run.record.changed:
            by_dataset = files.setdefault(descriptions_label(run.record), {})
            value = canonical_json(run.record.changed[DESCRIPTIONS][1])
            by_dataset.setdefault(str(run.record.data["dataset"]), set()).add(value)
    runs = []
    for run in measured:
        if DESCRIPTIONS in run.record.changed:
            label = descriptions_label(run.record)
            by_dataset = files[label]
            if len(by_dataset) > 1 and all(len(values) == 1 for values in by_dataset.values()):
                value = label or "of each data set"
                changed = {
                    **run.record.changed,
                    DESCRIPTIONS: [run.record.changed[DESCRIPTIONS][0], value],
                }
                run = replace(run, record=replace(run.record, changed=changed))
        runs.append(run)
    return runs


def descriptions_label(record: RunRecord) -> str:
    """What tables call the descriptions of a run; "" if PROMPT.LABEL does not say."""
    return str(record.names.get("prompt") or "")


def arrange(measured: Sequence[Measured]) -> list[Grid]:
    """For each backbone a main table, then a table for each swept setting.

    The main table has every method at its default settings if it was run with them. Runs that no
    sweep shows are in the main table, under a label that states their settings. A table with runs
    from a learnt prompt has a row of this prompt without tuning.
    """
    grids = []
    all_columns, _ = make_columns(measured)
    for table in by_backbone(measured):
        sweeps = find_sweeps(table.runs)
        in_sweeps: set[Measured] = set()
        sweep_grids = []
        for sweep in sweeps:
            title = f"{table.label}: {sweep_words(sweep)}"
            swept_runs = [*sweep.runs, *untuned_prompts(sweep.runs, table.runs)]
            grid = grid_of(swept_runs, table.label, title, [sweep.key], all_columns)
            grid.notes += grid_notes(grid)
            sweep_grids.append(grid)
            in_sweeps |= sweep.shown_only_here
        main_runs = [run for run in table.runs if run not in in_sweeps]
        runs = [*main_runs, *zero_shot_parts(main_runs)]
        main = grid_of(runs, table.label, table.label, other_columns=all_columns)
        main.notes += grid_notes(main)
        grids += [main, *sweep_grids]
    return grids


@dataclass(frozen=True)
class Sweep:
    """The runs of methods that were run with several values of one setting.

    Attributes:
        key: The setting.
        runs: Sorted by value.
        shown_only_here: The runs that the main table does not show.
    """

    key: str
    runs: list[Measured]
    shown_only_here: set[Measured]


def find_sweeps(runs: Sequence[Measured]) -> list[Sweep]:
    """The swept settings of runs with the same weights."""
    keys = swept_keys(runs)
    _, column_of = make_columns(runs)
    differing = differences_from_main(runs, keys, column_of)
    sweeps = []
    for key in keys:
        methods = set()
        for run in runs:
            if differing[run] == {key}:
                methods.add(run.run.trainer)
        members = []
        for run in runs:
            if run.run.trainer in methods and differing[run] <= {key}:
                members.append(run)
        members = on_swept_columns(key, members, column_of)
        if members:
            members.sort(key=lambda run: sort_key(value_of(key, run.record, members)))
            only_here = set()
            for run in members:
                if differing[run] == {key}:
                    only_here.add(run)
            sweeps.append(Sweep(key, members, only_here))
    return sweeps


def differences_from_main(
    runs: Sequence[Measured], keys: Sequence[str], column_of: Mapping[Measured, Column],
) -> dict[Measured, set[str]]:
    """The swept settings in which each run differs from the main table.

    Returns:
        The keys of these settings, by run.
    """
    main_values = {key: main_values_of(key, runs, column_of) for key in keys}
    differing: dict[Measured, set[str]] = {}
    for measured in runs:
        setup = setup_of(measured, column_of)
        of_run = set()
        for key in keys:
            if value_text(key, measured) != main_values[key][setup]:
                of_run.add(key)
        if "TEST.ORDER" in of_run:
            # Only a correlated order has a correlation: it does not differ in a second setting.
            of_run.discard("TEST.CORRELATION")
        differing[measured] = of_run
    return differing


def swept_keys(runs: Sequence[Measured]) -> list[str]:
    """The settings that were swept: two runs of one method on the same images differ in them alone.
    """
    _, column_of = make_columns(runs)
    by_setup: dict[Setup, list[Measured]] = {}
    for measured in runs:
        by_setup.setdefault(setup_of(measured, column_of), []).append(measured)
    keys: set[str] = set()
    for members in by_setup.values():
        # One run of each row: its seeds have the same settings.
        firsts = [group[0] for group in group_records(members, "row", record_of)]
        for number, first in enumerate(firsts):
            for second in firsts[number + 1 :]:
                keys |= differing_settings(first, second)
    return sorted(keys)


def differing_settings(first: Measured, second: Measured) -> set[str]:
    """The settings in which two runs differ; none if prompt, code or numerics differ too."""
    difference = first.record.difference(second.record, "row")
    settings = set()
    for name in difference:
        if name in first.record.changed or name in second.record.changed:
            settings.add(name)
    others = set(difference) - settings
    if settings & set(STREAM_SETTINGS):
        others = {name for name in others if not name.startswith("method.stream.")}
    return set() if others else settings


def value_text(key: str, measured: Measured) -> str:
    """The value of a setting in a run, as text.

    Returns:
        JSON if the run changed the setting, otherwise `DEFAULT`.
    """
    record = measured.record
    if key in record.changed:
        return canonical_json(record.changed[key][1])
    return DEFAULT


def setup_of(measured: Measured, column_of: Mapping[Measured, Column]) -> Setup:
    """Method, prompt and images of a run."""
    return measured.run.trainer, str(measured.record.get(PROMPT)), column_of[measured]


def main_values_of(
    key: str, runs: Sequence[Measured], column_of: Mapping[Measured, Column],
) -> dict[Setup, str]:
    """For each setup the value of a swept setting that the main table shows.

    It is the default one if a run has it, otherwise the one that most runs of the method have.

    Returns:
        Values as JSON text, or `DEFAULT`.
    """
    by_setup: dict[Setup, list[str]] = {}
    by_method: dict[str, Counter[str]] = {}
    for measured in runs:
        value = value_text(key, measured)
        by_setup.setdefault(setup_of(measured, column_of), []).append(value)
        by_method.setdefault(measured.run.trainer, Counter())[value] += 1
    chosen = {}
    for setup, values in by_setup.items():
        if DEFAULT in values:
            chosen[setup] = DEFAULT
        else:
            method, _, _ = setup
            frequency = by_method[method]
            chosen[setup] = max(values, key=lambda value: frequency[value])
    return chosen


def on_swept_columns(
    key: str, runs: Sequence[Measured], column_of: Mapping[Measured, Column],
) -> list[Measured]:
    """The runs whose prompt and images occur with several values of the setting in one method.

    Args:
        key: Key of a swept setting.
    """
    values: dict[Setup, set[str]] = {}
    for measured in runs:
        values.setdefault(setup_of(measured, column_of), set()).add(value_text(key, measured))
    swept = set()
    for (_, protocol, column), setup_values in values.items():
        if len(setup_values) > 1:
            swept.add((protocol, column))
    on_swept = []
    for measured in runs:
        _, protocol, column = setup_of(measured, column_of)
        if (protocol, column) in swept:
            on_swept.append(measured)
    return on_swept


def sweep_words(sweep: Sweep) -> str:
    """The title of a sweep."""
    methods = dict.fromkeys(method_info(run.run.trainer).label for run in sweep.runs)
    return setting_title(sweep.key, joined_with_and(list(methods)))


def sort_key(value: Any) -> tuple[int, float, str]:
    """Sorts values of a setting: numbers by size, then texts."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def zero_shot_parts(runs: Sequence[Measured]) -> list[Measured]:
    """Zero-shot runs made of other runs, for prompts and images that no zero-shot run has."""
    source: Any = None
    covered = set()
    for measured in runs:
        if method_info(measured.run.trainer).zero_shot:
            covered.add(conditions(measured.record))
            source = measured.record.method.get("source")
    parts = []
    # Runs with logits first: a part that is made of one has all metrics. Then those with most
    # images.
    for measured in sorted(runs, key=lambda run: (not run.has_logits, run.skipped)):
        if (
            not measured.run.has_zero_shot
            or measured.from_tuned_run
            or is_learnt_and_trained(measured)
        ):
            continue
        record = zero_shot_record(measured.record, source)
        if conditions(record) not in covered:
            covered.add(conditions(record))
            parts.append(zero_shot_part(measured, record))
    return parts


def untuned_prompts(runs: Sequence[Measured], known: Sequence[Measured]) -> list[Measured]:
    """The learnt prompts that some runs start from, without tuning.

    Args:
        known: All runs with the same weights, which may have tested these prompts without tuning.
    """
    prompts = set()
    for measured in runs:
        if starts_from_prompt(measured.record):
            prompts.add(conditions(zero_shot_record(measured.record, None)))
    present = set(runs)
    untuned = []
    for measured in [*known, *zero_shot_parts(known)]:
        if measured in present or not is_untuned_prompt(measured.record):
            continue
        if conditions(measured.record) in prompts:
            untuned.append(measured)
    return untuned





def zero_shot_record(record: RunRecord, source: Any) -> RunRecord:
    """The record of a run's zero-shot part.

    Args:
        record: Record of a tuned or trained run.
        source: `method.source` of the zero-shot runs of the same table, whose row it joins.
    """
    changed = {}
    for key, values in record.changed.items():
        if key.startswith(OF_ZERO_SHOT):
            changed[key] = values
    names = {**record.names, "method": method_info(ZERO_SHOT).label}
    views = {key: value for key, value in record.views.items() if key not in ("count", "augmix")}
    method = {"trainer": ZERO_SHOT, "settings": {}, "source": source}
    return replace(record, method=method, changed=changed, names=names, views=views)


def zero_shot_part(measured: Measured, record: RunRecord) -> Measured:
    """The zero-shot predictions of a run as a run of their own.

    Args:
        measured: A run of a method that tunes.
        record: The record that a zero-shot run under the same conditions would have.
    """
    return replace(
        measured, record=record, tuned=measured.zero_shot, metrics=measured.zero_shot_metrics,
        sets=measured.zero_shot_sets, flagged=0, from_tuned_run=True,
    )
