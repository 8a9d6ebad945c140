"""What a reader must know before two cells of a table are compared: other images, other seeds, other settings."""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from ...datasets.base import dataset_info
from ..config.roles import Role, setting_of
from ..registry import method_info
from .grid import Comparison, Row
from .measure import Measured


def caveats(comparison: Comparison) -> list[str]:
    """One sentence for each way in which the cells of a table are not alike."""
    notes = _subset_notes(comparison)
    for column in comparison.columns:
        label = comparison.column_label(column)
        rows = {row: comparison.cells[row, column] for row in comparison.rows if (row, column) in comparison.cells}
        notes += _seed_notes(label, rows)
        notes += _setting_notes(label, rows, comparison.swept)
        notes += _zero_shot_notes(label, rows)
        weights = {row: tuple(sorted({str(m.run.results.get("weights_hash", "")) for m in rows[row]})) for row in rows}
        if len(set(weights.values())) > 1:
            notes.append(f"{label}: the weights behind '{comparison.backbone}' differ ({_listed(weights)}).")
    notes += _bin_notes(m for group in comparison.cells.values() for m in group)
    common = comparison.common_columns()
    used = {column.dataset for column in common}
    left_out = [comparison.column_label(column) for column in comparison.columns if column.dataset not in used]
    compared = comparison.rows_on(common)
    absent = [row.label for row in comparison.rows if row not in compared and not method_info(row.method).trained]
    if absent:
        notes.append(f"Averages, pairs and verdict are without {', '.join(absent)}: no run on all of the images that "
                     "most methods have.")
    if left_out and len(common) > 1:
        notes.append(f"The average leaves out {', '.join(left_out)}, which not every row has.")
    elif left_out:
        notes.append("There is no average: no two data sets are common to all rows.")
    return notes


def _subset_notes(comparison: Comparison) -> list[str]:
    """Said once for each data set that was run on several sets of images."""
    notes, common = [], comparison.common_columns()
    for column in comparison.columns:
        alike = comparison.alike(column)
        if len(alike) > 1 and column == alike[0]:
            counts = ", ".join(f"{other.n:,}" for other in alike)
            main = [other for other in alike if other in common]
            use = (f"averages and verdict use the largest that all compared have, {comparison.column_label(main[0])}"
                   if main else "none of them is common to all methods, so no average or verdict uses them")
            notes.append(f"{dataset_info(column.dataset).label} was run on several sets of test images ({counts}), which "
                         f"may overlap: each has a column of its own, and {use}.")
    return notes


def _seed_notes(label: str, rows: Mapping[Row, list[Measured]]) -> list[str]:
    notes, seeds = [], {}
    for row, group in rows.items():
        count = Counter(m.run.seed for m in group)
        if repeated := [seed for seed, times in count.items() if times > 1]:
            folders = " and ".join(str(m.run.folder) for m in group if m.run.seed == repeated[0])
            notes.append(f"{label}, {row.label}: seed {repeated[0]} counts more than once ({folders}).")
        if not any(m.derived for m in group):
            seeds[row] = tuple(sorted(count))
    if len(set(seeds.values())) > 1:
        notes.append(f"{label}: view seeds differ between the rows ({_listed(seeds)}).")
    return notes


def _zero_shot_notes(label: str, rows: Mapping[Row, list[Measured]]) -> list[str]:
    """Zero-shot predictions depend on images, weights and prompt alone: where they differ, so did one of these."""
    accuracy = defaultdict(dict)
    for row, group in rows.items():
        for m in group:
            if not m.run.has_zero_shot:
                continue
            settings = sorted(m.run.settings.items())
            setting = tuple(str(value) for key, value in settings if role_of(key) is Role.ZERO_SHOT)
            accuracy[setting][row] = (f"{100 * m.zero_shot_metrics['accuracy'].value:.1f} %",)
    return [
        f"{label}: zero-shot accuracy differs between the rows ({_listed(values)}), though images, weights and prompt "
        "are said to be the same: run them again with one version of the code."
        for values in accuracy.values() if len(set(values.values())) > 1
    ]


def _setting_notes(label: str, rows: Mapping[Row, list[Measured]], swept: str) -> list[str]:
    """Where rows differ in a setting that every method has, the difference is not the method's alone."""
    notes = []
    for key in shared_settings(rows):
        values = {
            row: tuple(sorted({str(m.run.settings[key]) or "none" for m in group if key in m.run.settings}))
            for row, group in rows.items()
            if not any(m.derived for m in group) and (role_of(key) is Role.ZERO_SHOT or method_info(row.method).tuned)
        }
        if key != swept and len({value for value in values.values() if value}) > 1:
            notes.append(f"{label}: {key} differs between the rows ({_listed(values)}).")
    return notes


def shared_settings(rows: Mapping[Row, list[Measured]]) -> list[str]:
    """What the runs were set to before and while tuning, methods' own settings and the backbone aside."""
    keys = {key for group in rows.values() for m in group for key in m.run.settings if not key.startswith("TRAINER.")}
    return sorted(key for key in keys if role_of(key) in (Role.ZERO_SHOT, Role.METHOD) and not setting_of(key).in_path)


def role_of(key: str) -> Role:
    return setting_of(key).role


def _bin_notes(measured: Iterable[Measured]) -> list[str]:
    measured = list(measured)
    other = sorted({m.run.results["bins"] for m in measured if m.run.results["bins"] != m.bins})
    if not other:
        return []
    return [f"Runs made with {' and '.join(map(str, other))} bins are computed again with {measured[0].bins}."]


def _listed(values: Mapping[Row, tuple]) -> str:
    """`TPT, C-TPT: 0, 1; SoC: 0`."""
    rows = defaultdict(list)
    for row, value in values.items():
        rows[value].append(row.label)
    between = " / " if any("," in label for labels in rows.values() for label in labels) else ", "
    return "; ".join(f"{between.join(labels)}: {', '.join(map(str, value))}" for value, labels in rows.items())
