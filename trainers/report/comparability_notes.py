"""Notes on runs in one column of a table that are not comparable: other seeds, settings, weights or bins."""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..config.roles import Role, setting_of
from ..registry import method_info
from .measure import Measured

Rows = Sequence[tuple[str, Sequence[Measured]]]  # labels of a table's rows with their runs


def column_notes(label: str, rows: Rows, swept: str, backbone: str) -> list[str]:
    """One sentence for each way in which the runs of a column differ."""
    notes = [*_seed_notes(label, rows), *_setting_notes(label, rows, swept), *_zero_shot_notes(label, rows)]
    weights = _values(rows, lambda m: str(m.run.results.get("weights_hash", "")))
    if len(set(weights.values())) > 1:
        notes.append(f"{label}: the weights behind '{backbone}' differ ({_listed(weights)}).")
    return notes


def bin_notes(measured: Sequence[Measured]) -> list[str]:
    other = sorted({m.run.results["bins"] for m in measured if m.run.results["bins"] != m.bins})
    if not other:
        return []
    return [f"Runs made with {' and '.join(map(str, other))} bins are computed again with {measured[0].bins}."]


def _seed_notes(label: str, rows: Rows) -> list[str]:
    notes = []
    for row, group in rows:
        count = Counter(m.run.seed for m in group)
        if repeated := [seed for seed, times in count.items() if times > 1]:
            folders = " and ".join(str(m.run.folder) for m in group if m.run.seed == repeated[0])
            notes.append(f"{label}, {row}: seed {repeated[0]} counts more than once ({folders}).")
    seeds = _values(_own_runs(rows), lambda m: m.run.seed)
    if len(set(seeds.values())) > 1:
        notes.append(f"{label}: view seeds differ between the rows ({_listed(seeds)}).")
    return notes


def _setting_notes(label: str, rows: Rows, swept: str) -> list[str]:
    """Settings that all methods have and in which the rows differ: such a difference is not the method's alone."""
    rows = _own_runs(rows)
    # The settings of a method and the backbone have rows and tables of their own.
    keys = {key for _, group in rows for m in group for key in m.run.settings
            if not key.startswith("TRAINER.") and not setting_of(key).in_path} - {swept}
    notes = []
    for key in sorted(keys):
        role = setting_of(key).role
        if role not in (Role.ZERO_SHOT, Role.METHOD):
            continue
        values = {
            row: tuple(sorted({str(m.run.settings[key]) or "none" for m in group if key in m.run.settings}))
            for row, group in rows if role is Role.ZERO_SHOT or method_info(group[0].run.trainer).tuned
        }
        if len({value for value in values.values() if value}) > 1:
            notes.append(f"{label}: {key} differs between the rows ({_listed(values)}).")
    return notes


def _zero_shot_notes(label: str, rows: Rows) -> list[str]:
    """Zero-shot predictions depend on images, weights and prompt alone: if they differ, so does one of these."""
    groups: dict[tuple[str, ...], dict[str, tuple]] = defaultdict(dict)
    for row, group in rows:
        for m in group:
            if m.run.has_zero_shot:
                before = tuple(str(value) for key, value in sorted(m.run.settings.items())
                               if setting_of(key).role is Role.ZERO_SHOT)
                groups[before][row] = (f"{100 * float(m.zero_shot_metrics['accuracy'].value):.1f} %",)
    return [
        f"{label}: zero-shot accuracy differs between the rows ({_listed(values)}), though images, weights and prompt "
        "are recorded as the same: run them again with one version of the code."
        for values in groups.values() if len(set(values.values())) > 1
    ]


def _own_runs(rows: Rows) -> Rows:
    """Without the zero-shot rows that are made of tuned runs."""
    return [(row, group) for row, group in rows if not any(m.derived for m in group)]


def _values(rows: Rows, value: Callable[[Measured], Any]) -> dict[str, tuple]:
    """By row, the distinct values of its runs."""
    return {row: tuple(sorted({value(m) for m in group})) for row, group in rows}


def _listed(values: dict[str, tuple]) -> str:
    """`TPT, C-TPT: 0, 1; SoC: 0`."""
    rows: dict[tuple, list[str]] = defaultdict(list)
    for row, value in values.items():
        rows[value].append(row)
    between = " / " if any("," in row for row in values) else ", "
    return "; ".join(f"{between.join(labels)}: {', '.join(map(str, value))}" for value, labels in rows.items())

