"""Notes on runs in one column of a table that are not comparable: other seeds, settings or weights."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..config.roles import is_zero_shot
from .measure import Measured


def column_notes(label: str, rows: Mapping[str, Sequence[Measured]], backbone: str) -> list[str]:
    """One sentence for each way in which the runs of a column differ; `rows` are by their labels."""
    notes = []
    for row, group in rows.items():
        seeds = [m.run.seed for m in group]
        if repeated := [seed for seed in seeds if seeds.count(seed) > 1]:
            folders = " and ".join(str(m.run.folder) for m in group if m.run.seed == repeated[0])
            notes.append(f"{label}, {row}: seed {repeated[0]} counts more than once ({folders}).")
    # Without the zero-shot rows that are made of tuned runs.
    own = {row: group for row, group in rows.items() if not any(m.derived for m in group)}
    notes += _differing(f"{label}: view seeds differ between the rows",
                        {row: [m.run.seed for m in group] for row, group in own.items()})
    # Zero-shot predictions depend on images, weights and prompt alone: if they differ, so does one of these.
    zero_shot: dict[tuple[str, ...], dict[str, list[str]]] = defaultdict(dict)
    for row, m in ((row, m) for row, group in rows.items() for m in group if m.run.has_zero_shot):
        before = tuple(str(value) for key, value in sorted(m.run.settings.items())
                       if is_zero_shot(key))
        zero_shot[before][row] = [f"{100 * float(m.zero_shot_metrics['accuracy'].value):.1f} %"]
    for accuracies in zero_shot.values():
        notes += _differing(f"{label}: zero-shot accuracy differs between the rows", accuracies, ", though images, "
                            "weights and prompt are recorded as the same: run them again with one version of the code.")
    weights = {row: [str(m.run.results.get("weights_hash", "")) for m in group] for row, group in rows.items()}
    return [*notes, *_differing(f"{label}: the weights behind '{backbone}' differ", weights)]


def _differing(words: str, values: Mapping[str, Iterable], end: str = ".") -> list[str]:
    """A note if the values of the rows differ, as in `… (TPT, C-TPT: 0, 1; SoC: 0)`."""
    rows: dict[tuple, list[str]] = defaultdict(list)
    for row, several in values.items():
        rows[tuple(sorted(set(several)))].append(row)
    if len(rows.keys() - {()}) < 2:
        return []
    between = " / " if any("," in row for row in values) else ", "
    listed = (f"{between.join(labels)}: {', '.join(map(str, value))}" for value, labels in rows.items())
    return [f"{words} ({'; '.join(listed)}){end}"]
