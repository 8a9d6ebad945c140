"""Which runs may stand in one table: same images in a column, one setting in a row, seeds averaged in a cell."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ..registry import method_info, zero_shot_name
from .arrange import arrange, column_of, row_of
from .grid import Column, Comparison, Row
from .measure import Measured
from .reading import Run
from .settings import settings_of, show_setting, swept_keys, usual_settings


def compare(measured: Sequence[Measured]) -> list[Comparison]:
    """For each backbone a main table (every method at its usual settings), then one table for each setting swept."""
    found = []
    for backbone in sorted({m.run.backbone for m in measured}):
        runs = [m for m in measured if m.run.backbone == backbone]
        swept = swept_keys([m.run for m in runs])
        usual = {key: usual_values([m.run for m in runs], key) for key in swept}

        def odd(m: Measured, key: str, usual=usual) -> bool:
            own = settings_of(m.run)
            return key in own and own[key] != usual[key][m.run.trainer, m.run.dataset]

        main = [m for m in runs if not any(odd(m, key) for key in swept)]
        columns = frozenset(map(column_of, runs))
        found.append(_arrange(main, backbone, backbone, columns))
        for key in swept:
            others = [other for other in swept if other != key]
            part = [m for m in runs if key in settings_of(m.run) and not any(odd(m, other) for other in others)]
            several = {m.run.trainer for m in part if odd(m, key)}
            part = [m for m in part if m.run.trainer in several]
            if part:
                title = f"{backbone}: {sweep_name(key, [m.run for m in part])}"
                found.append(_arrange(part, backbone, title, columns, key))
    return found


def usual_values(runs: Sequence[Run], key: str) -> dict[tuple[str, str], object]:
    """For each method and data set the value of a swept key that the main table shows: the usual one if it occurs, else
    the commonest."""
    seen = defaultdict(list)
    for run in runs:
        if key in (own := settings_of(run)):
            seen[run.trainer, run.dataset].append(own[key])
    values = {}
    for where, found in seen.items():
        usual = usual_settings(*where).get(key)
        values[where] = usual if usual in found else max(found, key=found.count)
    return values


def sweep_name(key: str, runs: Sequence[Run]) -> str:
    """What a table of a sweep is called; λ is a method's own."""
    if key.endswith(".LAMBDA"):
        return f"λ of {' and '.join(dict.fromkeys(method_info(run.trainer).label for run in runs))}"
    return {"TTA.STEPS": "number of steps", "PROMPT.CTX_INIT": "initial prompt"}.get(key, key)


def _arrange(
    measured: Sequence[Measured], backbone: str, title: str, elsewhere: frozenset[Column], key: str = "",
) -> Comparison:
    if not key:
        rows = [(row_of(m), m) for m in (*measured, *_zero_shot_rows(measured))]
        return arrange(rows, backbone, title, elsewhere=elsewhere)
    measured = sorted(measured, key=lambda m: _sortable(m.run.settings.get(key)))
    rows = [(row_of(m, show_setting(key, m.run.settings[key])), m) for m in measured]
    # A data set on which nothing is compared has no place in a table of the setting.
    places = {(row, column_of(m)) for row, m in rows}
    shown = {at for row, at in places if any((other, at) in places for other, _ in places if _rivals(row, other))}
    return arrange([(row, m) for row, m in rows if column_of(m) in shown], backbone, title, key, elsewhere)


def _rivals(row: Row, other: Row) -> bool:
    return row.method == other.method and row.variant != other.variant


def _zero_shot_rows(measured: Sequence[Measured]) -> list[Measured]:
    """A zero-shot row out of the tuned runs' own zero-shot logits, for the images that no zero-shot run covers."""
    covered = {(m.run.dataset, m.run.data_hash) for m in measured if method_info(m.run.trainer).zero_shot}
    made = []
    for m in measured:
        if m.run.has_zero_shot and (m.run.dataset, m.run.data_hash) not in covered:
            covered.add((m.run.dataset, m.run.data_hash))
            run = replace(m.run, results={**m.run.results, "trainer": zero_shot_name()})
            made.append(replace(m, run=run, tuned=m.zero_shot, metrics=m.zero_shot_metrics, derived=True))
    return made


def _sortable(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))
