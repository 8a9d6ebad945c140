"""The model of a comparison: rows of methods and settings, columns of test sets, cells of measured runs."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from ...datasets.base import dataset_info, parse_run_name
from ..config.build import build_cfg, dataset_file_of
from ..config.defaults import get_cfg_default
from ..config.fingerprint import prompt_name
from ..config.roles import leaves
from ..registry import TRAINER_REGISTRY, ZERO_SHOT, backbone_label, branch_of, method_info, reset_words
from .comparability_notes import column_notes
from .load import Run
from .measure import Measured

LEARNT = "CoOp prompt, untuned"  # a model that starts from a learnt prompt is not zero-shot CLIP


@dataclass(frozen=True)
class Column:
    """One set of test images. Runs on other images of the same data set have a column of their own."""

    dataset: str
    data_hash: str
    n: int


@dataclass(frozen=True)
class Row:
    """A method and, where settings are compared, their values."""

    method: str
    variant: str = ""
    name: str = ""  # replaces the method's label where that would mislead

    @property
    def label(self) -> str:
        name = self.name or method_info(self.method).label
        return f"{name}, {self.variant}" if self.variant else name


@dataclass
class Comparison:
    """Runs of one backbone as rows × columns. A cell that is missing has no run."""

    title: str
    backbone: str
    columns: list[Column]
    rows: list[Row]
    cells: dict[tuple[Row, Column], list[Measured]]
    swept: str = ""  # the setting whose values the rows compare; "" in the main table
    notes: list[str] = field(default_factory=list)
    elsewhere: frozenset[Column] = frozenset()  # columns of the other tables of the same report

    @property
    def backbone_label(self) -> str:
        return backbone_label(self.backbone)

    @property
    def bins(self) -> int:
        return next(iter(self.cells.values()))[0].bins

    def column_label(self, column: Column, with_count: bool = False) -> str:
        """The data set; with the number of images if asked for or if it was run on several sets of images."""
        label = dataset_info(column.dataset).label
        several = len({c for c in (*self.columns, *self.elsewhere) if c.dataset == column.dataset}) > 1
        if several or with_count:
            label += f", {column.n:,} images"
        twins = [other for other in self.columns_of(column.dataset) if other.n == column.n]
        return label if len(twins) == 1 else f"{label} ({column.data_hash[:6] or twins.index(column) + 1})"

    def columns_of(self, dataset: str) -> list[Column]:
        """The columns of one data set. Their images may overlap."""
        return [column for column in self.columns if column.dataset == dataset]

    def images(self, columns: Sequence[Column] = ()) -> str:
        """The test images of some columns, or of all, in words."""
        shown = [f"{dataset_info(column.dataset).label} {column.n:,}" for column in columns or self.columns]
        return f"Test images: {', '.join(shown)}."

    def common_columns(self) -> list[Column]:
        """The columns that every row has; only these may be averaged. Of each data set the one with most images, since
        the others may share images with it. Methods that are trained on single data sets need not have them. If no
        column is common to all rows, those of the rows that share the most frequent column: one stray run does not
        prevent a comparison of the others."""
        rows = [row for row in self.rows if not method_info(row.method).trained] or self.rows
        common = self._columns_with(rows)
        if not common:
            frequent = max(self.columns, key=lambda column: (len(self.rows_on([column])), column.n))
            sharing = [row for row in self.rows_on([frequent]) if row in rows]
            if sum(not method_info(row.method).zero_shot for row in sharing) > 1:
                common = self._columns_with(sharing)
        return _one_per_dataset(common, sorted(common, key=lambda column: column.n))

    def main_columns(self) -> list[Column]:
        """One column per data set: the common one, otherwise that of most rows."""
        common = self.common_columns()
        order = sorted(self.columns, key=lambda one: (one in common, len(self.rows_on([one])), one.n))
        return _one_per_dataset(self.columns, order)

    def _columns_with(self, rows: Sequence[Row]) -> list[Column]:
        return [column for column in self.columns if all((row, column) in self.cells for row in rows)]

    def rows_on(self, columns: Sequence[Column]) -> list[Row]:
        """The rows that have all of these columns."""
        return [row for row in self.rows if all((row, column) in self.cells for column in columns)]

    def cells_on(self, column: Column) -> list[tuple[Row, list[Measured]]]:
        """The rows that have runs on a column, with these."""
        return [(row, self.cells[row, column]) for row in self.rows if (row, column) in self.cells]

    def mean(self, row: Row, columns: Sequence[Column], metric: str) -> float:
        """In fractions: over seeds, then over columns."""
        cells = [self.cells[row, column] for column in columns]
        return float(np.mean([np.mean([m.value(metric) for m in cell]) for cell in cells]))


def _one_per_dataset(columns: Sequence[Column], order: Sequence[Column]) -> list[Column]:
    """Of each data set the column that comes last in `order`."""
    chosen = {column.dataset: column for column in order}
    return [column for column in columns if chosen[column.dataset] == column]


def row_of(measured: Measured, variant: str = "") -> Row:
    """The row that a run belongs to."""
    run = measured.run
    learnt = method_info(run.trainer).zero_shot and bool(run.settings.get("MODEL.INIT_WEIGHTS"))
    carried = run.reset_words if run.reset_words not in variant else ""
    name = f"{method_info(run.trainer).label}, {carried}" if carried else ""
    return Row(run.trainer, variant, LEARNT if learnt else name)


def column_of(measured: Measured) -> Column:
    """The set of images that a run was measured on."""
    return Column(measured.run.dataset, measured.run.data_hash, measured.run.results["n"])


def arrange(
    runs: Iterable[tuple[Row, Measured]], backbone: str, title: str, swept: str = "", elsewhere: Iterable[Column] = (),
) -> Comparison:
    """Runs in their cells. Methods are in the order of papers; rows of one method in the order in which they come."""
    cells: dict[tuple[Row, Column], list[Measured]] = defaultdict(list)
    for row, measured in runs:
        cells[row, column_of(measured)].append(measured)
    for group in cells.values():
        group.sort(key=lambda m: m.run.seed)
    rows = sorted(dict.fromkeys(row for row, _ in cells), key=lambda row: method_info(row.method).order)
    columns = sorted({column for _, column in cells}, key=lambda c: (*dataset_info(c.dataset).order, -c.n, c.data_hash))
    comparison = Comparison(title, backbone, columns, rows, dict(cells), swept, elsewhere=frozenset(elsewhere))
    comparison.notes = _notes(comparison)
    return comparison


def _notes(comparison: Comparison) -> list[str]:
    """One sentence for each way in which the cells of a table are not comparable."""
    notes, common = [], comparison.common_columns()
    for dataset in dict.fromkeys(column.dataset for column in comparison.columns):
        columns = comparison.columns_of(dataset)
        if len(columns) > 1:
            main = [comparison.column_label(column) for column in columns if column in common]
            use = (f"averages and verdict use the largest that all compared methods have, {main[0]}" if main
                   else "none of them is common to all methods, so no average or verdict uses them")
            notes.append(f"{dataset_info(dataset).label} was run on several sets of test images "
                         f"({', '.join(f'{column.n:,}' for column in columns)}), which may overlap: each has a column "
                         f"of its own, and {use}.")
    for column in comparison.columns:
        rows = {row.label: cell for row, cell in comparison.cells_on(column)}
        notes += column_notes(comparison.column_label(column), rows, comparison.swept, comparison.backbone_label)
    bins = {m.run.results["bins"] for group in comparison.cells.values() for m in group} - {comparison.bins}
    if bins:
        notes.append(f"Runs made with {' and '.join(map(str, sorted(bins)))} bins are computed again with "
                     f"{comparison.bins}.")
    averaged = {column.dataset for column in common}
    left_out = [comparison.column_label(column) for column in comparison.columns if column.dataset not in averaged]
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


def compare(measured: Sequence[Measured]) -> list[Comparison]:
    """For each backbone a main table, with every method at its default settings, and a table for each swept setting."""
    found = []
    for backbone in sorted({m.run.backbone for m in measured}):
        runs = [m for m in measured if m.run.backbone == backbone]
        columns = frozenset(map(column_of, runs))
        swept = swept_keys([m.run for m in runs])
        shown = {key: _main_values([m.run for m in runs], key) for key in swept}
        # The swept settings in which a run differs from the main table.
        differing = [(m, {key for key in swept if key in m.run.compared
                          and m.run.compared[key] != shown[key][m.run.trainer, m.run.dataset]}) for m in runs]
        main = [m for m, keys in differing if not keys]
        rows = [(row_of(m), m) for m in (*main, *_zero_shot_runs(main))]
        found.append(arrange(rows, backbone, backbone_label(backbone), elsewhere=columns))
        for key in swept:
            methods = {m.run.trainer for m, keys in differing if keys == {key}}
            part = [m for m, keys in differing if keys <= {key} and m.run.trainer in methods and key in m.run.compared]
            if part:
                found.append(_sweep(part, key, backbone, columns))
    return found


def _main_values(runs: Sequence[Run], key: str) -> dict[tuple[str, str], object]:
    """For each method and data set the value of a swept setting in the main table: the default one if it occurs,
    otherwise the most frequent."""
    seen: dict[tuple[str, str], list[object]] = defaultdict(list)
    for run in runs:
        if key in run.compared:
            seen[run.trainer, run.dataset].append(run.compared[key])
    defaults = {where: default_settings(*where).get(key) for where in seen}
    return {where: defaults[where] if defaults[where] in values else max(values, key=values.count)
            for where, values in seen.items()}


def _sweep(measured: Sequence[Measured], key: str, backbone: str, columns: frozenset[Column]) -> Comparison:
    """A row for each method and value, on the data sets that have several values of one method."""
    measured = sorted(measured, key=lambda m: _sort_key(m.run.settings.get(key)))
    rows = [(row_of(m, show_setting(key, m.run.settings[key])), m) for m in measured]
    variants: dict[tuple[Column, str], set[str]] = defaultdict(set)
    for row, m in rows:
        variants[column_of(m), row.method].add(row.variant)
    shown = {column for (column, _), values in variants.items() if len(values) > 1}
    methods = " and ".join(dict.fromkeys(method_info(m.run.trainer).label for m in measured))
    names = {"TTA.STEPS": "number of steps", "PROMPT.CTX_INIT": "initial prompt", "TEST.ORDER": "order of the images",
             "TTA.RESET": "when the context is reset"}
    title = f"{backbone_label(backbone)}: {f'λ of {methods}' if key.endswith('.LAMBDA') else names.get(key, key)}"
    return arrange([(row, m) for row, m in rows if column_of(m) in shown], backbone, title, key, columns)


def _sort_key(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _zero_shot_runs(measured: Sequence[Measured]) -> list[Measured]:
    """Zero-shot runs made of the tuned runs' own zero-shot logits, for the images that no zero-shot run covers."""
    covered = {(m.run.dataset, m.run.data_hash) for m in measured if method_info(m.run.trainer).zero_shot}
    made = []
    for m in measured:
        if m.run.has_zero_shot and (m.run.dataset, m.run.data_hash) not in covered:
            covered.add((m.run.dataset, m.run.data_hash))
            run = replace(m.run, results={**m.run.results, "trainer": ZERO_SHOT})
            made.append(replace(m, run=run, tuned=m.zero_shot, metrics=m.zero_shot_metrics, derived=True))
    return made


@cache
def default_settings(trainer: str, dataset: str) -> Mapping[str, object]:
    """Every setting of a method on a data set by its full name, from the files in configs/."""
    if trainer not in TRAINER_REGISTRY:
        return {}
    name, corruption, severity = parse_run_name(dataset)
    cfg = build_cfg(trainer, str(dataset_file_of(name) or ""),
                    opts=["DATASET.CORRUPTION", corruption, "DATASET.SEVERITY", severity])
    return {**leaves(get_cfg_default()), **leaves(cfg)}


def default_pairs(trainer: str, dataset: str) -> list[object]:
    """The method's own settings (λ …) on a data set, as KEY VALUE pairs."""
    branch = f"TRAINER.{branch_of(trainer)}."
    return [item for pair in default_settings(trainer, dataset).items() if pair[0].startswith(branch) for item in pair]


def non_default_settings(run: Run) -> dict[str, object]:
    """The settings in which a run differs from the method's defaults on its data set."""
    defaults = default_settings(run.trainer, run.dataset)
    return {key: value for key, value in run.compared.items() if key in defaults and defaults[key] != value}


def show_setting(key: str, value: object) -> str:
    """A setting as a row, a title or a legend names it."""
    if key.endswith(".LAMBDA") and isinstance(value, int | float):
        return f"λ {value:g}"
    if key == "TEST.CORRELATION":
        return f"γ {value}"
    if key.endswith(".DELTA") and isinstance(value, int | float):
        return f"δ at {value:g} %"
    if key == "TTA.STEPS":
        return "1 step" if value == 1 else f"{value} steps"
    if key == "TTA.RESET":
        return reset_words(value) or "reset for each image"
    if key == "PROMPT.CTX_INIT":
        return f"“{value}”" if value else "no initial words"
    if key == "MODEL.INIT_WEIGHTS":
        return f"prompt {prompt_name(str(value))}" if value else "hand-written prompt"
    if key.endswith(".VALUES"):
        return "values tuned per set on test labels" if value == "paper" else "one value for all sets"
    if key == "PROMPT.DESCRIPTIONS" and "{dataset}" in str(value):  # a file for each data set of an experiment
        return "descriptions"
    if key == "PROMPT.DESCRIPTIONS":
        return f"descriptions {prompt_name(str(value))}" if value else "no descriptions"
    if key == "PROMPT.TEMPLATE":
        return f"templates “{value}”" if value else "no templates"
    if key == "PROMPT.ENSEMBLE":
        return "mean feature" if value == "mean" else "mean of cosines"
    if isinstance(value, str) and value:
        return value
    return f"{key.rsplit('.', 1)[-1]} {'none' if value in ('', None) else value}"


def swept_keys(runs: Sequence[Run]) -> list[str]:
    """Settings in which two runs of one method on the same images differ."""
    groups: dict[tuple, list[dict[str, object]]] = defaultdict(list)
    for run in runs:
        groups[run.trainer, run.dataset, run.data_hash, run.results["n"]].append(run.compared)
    return sorted({
        key for group in groups.values() for key in set().union(*group)
        if len({repr(settings[key]) for settings in group if key in settings}) > 1
    })


def setting_labels(runs: Sequence[Run]) -> dict[Path, str]:
    """By folder, the settings in which a run differs from other runs or from the defaults."""
    swept = swept_keys(runs)
    return {
        run.folder: ", ".join(show_setting(key, value) for key, value in run.compared.items()
                              if key in swept or key in non_default_settings(run))
        for run in runs
    }
