"""The model of a comparison: rows of methods and settings, columns of test sets, cells of measured runs."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from ...datasets.base import dataset_info, parse_run_name
from ..config.build import build_cfg, dataset_file_of
from ..config.roles import leaves
from ..config.settings import get_cfg_default
from ..registry import TRAINER_REGISTRY, ZERO_SHOT, backbone_label, method_info, reset_words
from .comparability_notes import column_notes
from .load import Run, with_augmix
from .measure import Measured, mean_over_seeds

LEARNT = "CoOp prompt, untuned"  # a model that starts from a learnt prompt is not zero-shot CLIP


@dataclass(frozen=True)
class Column:
    """One set of test images. Runs on other images of the same data set have a column of their own."""

    dataset: str
    data_hash: str
    n: int
    part: str = ""  # see Run.part

    @property
    def label(self) -> str:
        return dataset_info(self.dataset).label + (f" ({self.part})" if self.part else "")


@dataclass(frozen=True)
class Row:
    """A method with its settings. Runs that differ in one that influences predictions are in different rows."""

    method: str
    variant: str = ""  # values of the settings that a table compares
    name: str = ""  # replaces the method's label where that would mislead
    settings: str = ""  # other settings that are not the method's defaults

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.name or method_info(self.method).label, self.variant, self.settings)))


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
        label = column.label
        several = len({c for c in (*self.columns, *self.elsewhere) if c.dataset == column.dataset}) > 1
        if several or with_count:
            label += f", {column.n:,} images"
        twins = [other for other in self.columns_of(column.dataset) if (other.n, other.part) == (column.n, column.part)]
        return label if len(twins) == 1 else f"{label} ({column.data_hash[:6] or twins.index(column) + 1})"

    def columns_of(self, dataset: str) -> list[Column]:
        """The columns of one data set. Their images may overlap."""
        return [column for column in self.columns if column.dataset == dataset]

    def images(self, columns: Sequence[Column] = ()) -> str:
        """The test images of some columns, or of all, in words."""
        shown = [f"{column.label} {column.n:,}" for column in columns or self.columns]
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
        return float(np.mean([mean_over_seeds(self.cells[row, column], metric) for column in columns]))


def _one_per_dataset(columns: Sequence[Column], order: Sequence[Column]) -> list[Column]:
    """Of each data set the column that comes last in `order`."""
    chosen = {column.dataset: column for column in order}
    return [column for column in columns if chosen[column.dataset] == column]


def row_of(
    measured: Measured, compared: Collection[str] = (), hidden: Collection[str] = (), stated: Collection[str] = (),
) -> Row:
    """The row of a run. Its label states the `compared` settings, the `stated` ones, and all that are not defaults,
    except the `hidden` ones, which the table states elsewhere."""
    run = measured.run
    changed = {key: value for key, value in run.compared.items() if key in stated} | non_default_settings(run)
    values = {**default_settings(run.trainer, run.dataset), **run.settings, **run.compared}
    learnt = method_info(run.trainer).zero_shot and bool(run.settings.get("MODEL.INIT_WEIGHTS"))
    variant = ", ".join(show_setting(key, values.get(key)) for key in compared)
    others = ", ".join(show_setting(key, value) for key, value in changed.items() if key not in {*compared, *hidden})
    return Row(run.trainer, variant, LEARNT if learnt else "", others)


def column_of(measured: Measured) -> Column:
    """The set of images that a run was measured on."""
    return Column((run := measured.run).dataset, run.data_hash, run.results["n"], run.part)


def arrange(
    runs: Iterable[tuple[Measured, Collection[str]]], backbone: str, title: str, swept: str = "",
    elsewhere: Iterable[Column] = (),
) -> Comparison:
    """Runs, each with the settings that the table compares, in their cells. Methods are in the order of papers; of one
    method the default settings are first, the others in the order in which they come."""
    runs = list(runs)
    cells: dict[tuple[Row, Column], list[Measured]] = defaultdict(list)
    foreign: dict[str, list[dict[str, object]]] = defaultdict(list)
    for measured, _ in runs:
        if not has_defaults(measured.run):
            foreign[measured.run.trainer].append(measured.run.compared)
    for measured, compared in runs:
        stated = differing_keys(foreign[measured.run.trainer]) if not has_defaults(measured.run) else ()
        cells[row_of(measured, compared, stated=stated), column_of(measured)].append(measured)
    for group in cells.values():
        group.sort(key=lambda m: m.run.seed)
    rows = sorted(dict.fromkeys(row for row, _ in cells), key=lambda r: (method_info(r.method).order, bool(r.settings)))
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
        notes += column_notes(comparison.column_label(column), rows, comparison.backbone_label)
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
    """For each backbone a main table, with every method at its default settings if it was run with them, and a table
    for each swept setting. Runs that no sweep shows are in the main table, under a label that states their settings."""
    measured, found = _separate_prompts(measured), []
    for backbone in sorted({m.run.backbone for m in measured}):
        runs = [m for m in measured if m.run.backbone == backbone]
        columns = frozenset(map(column_of, runs))
        swept = swept_keys(runs)
        main_values = {key: _main_values(runs, key) for key in swept}
        # The swept settings in which a run differs from the main table.
        differing = [(m, {key for key in swept if key in m.run.compared
                          and m.run.compared[key] != main_values[key][m.run.trainer, column_of(m)]}) for m in runs]
        sweeps = []
        for key in swept:
            methods = {m.run.trainer for m, keys in differing if keys == {key}}
            part = [m for m, keys in differing if keys <= {key} and m.run.trainer in methods and key in m.run.compared]
            sweeps += _sweep(part, key, backbone, columns)
        shown = {m.run.folder for sweep in sweeps for cell in sweep.cells.values() for m in cell}
        main = [m for m, keys in differing if not keys or m.run.folder not in shown]
        rows = [(m, ()) for m in (*main, *_zero_shot_runs(main))]
        found += [arrange(rows, backbone, backbone_label(backbone), elsewhere=columns), *sweeps]
    return found


def _separate_prompts(measured: Sequence[Measured]) -> list[Measured]:
    """Prompts of one protocol, one per seed, have one name (`Run.prompt`). If a seed has two of that name, because they
    were trained again in the same folder, all of that name are distinguished by their content."""
    contents: dict[tuple, set[str]] = defaultdict(set)
    for run in (m.run for m in measured):
        contents[run.prompt, run.dataset, run.backbone, run.seed].add(run.prompt_hash)
    mixed = {prompt for (prompt, *_), hashes in contents.items() if len(hashes) > 1}
    return [replace(m, run=replace(m.run, pools_prompts=False)) if m.run.prompt in mixed else m for m in measured]


def _main_values(runs: Sequence[Measured], key: str) -> dict[tuple[str, Column], object]:
    """For each method and column the value of a swept setting in the main table: the default one if it occurs there,
    otherwise the one that most runs of the method have."""
    seen: dict[tuple[str, Column], list[object]] = defaultdict(list)
    every: dict[str, list[object]] = defaultdict(list)
    for m in runs:
        if key in m.run.compared:
            seen[m.run.trainer, column_of(m)].append(m.run.compared[key])
            every[m.run.trainer].append(m.run.compared[key])
    chosen = {}
    for (trainer, column), values in seen.items():
        default = default_settings(trainer, column.dataset).get(key)
        chosen[trainer, column] = default if default in values else max(values, key=every[trainer].count)
    return chosen


def _sweep(measured: Sequence[Measured], key: str, backbone: str, elsewhere: frozenset[Column]) -> list[Comparison]:
    """A row for each method and value, on the images that have several values of one method; [] if there are none."""
    values: dict[tuple[Column, str], set[str]] = defaultdict(set)
    for m in measured:
        values[column_of(m), m.run.trainer].add(repr(m.run.compared[key]))
    columns = {column for (column, _), found in values.items() if len(found) > 1}
    runs = sorted((m for m in measured if column_of(m) in columns), key=lambda m: _sort_key(m.run.compared[key]))
    methods = " and ".join(dict.fromkeys(method_info(m.run.trainer).label for m in runs))
    names = {"TTA.STEPS": "number of steps", "PROMPT.CTX_INIT": "initial prompt", "MODEL.INIT_WEIGHTS": "prompt",
             "TTA.RESET": "when the context is reset", "TEST.ORDER": "order of the images"}
    title = f"{backbone_label(backbone)}: {f'λ of {methods}' if key.endswith('.LAMBDA') else names.get(key, key)}"
    return [arrange([(m, [key]) for m in runs], backbone, title, key, elsewhere)] if runs else []


def _sort_key(value: object) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _zero_shot_runs(measured: Sequence[Measured]) -> list[Measured]:
    """Zero-shot runs made of the other runs' own zero-shot logits, for prompts and images that no zero-shot run has."""
    def key(m: Measured) -> tuple:
        return row_of(m), column_of(m), m.run.settings.get("MODEL.INIT_WEIGHTS") or ""

    covered = {key(m) for m in measured if method_info(m.run.trainer).zero_shot}
    made = []
    for m in measured:
        settings = dict(m.run.settings)
        if method_info(m.run.trainer).trained:  # whose zero-shot predictions are those of the hand-written prompt
            settings.pop("MODEL.INIT_WEIGHTS", None)
        run = replace(m.run, results={**m.run.results, "trainer": ZERO_SHOT}, settings=settings)
        zero_shot = replace(m, run=run, tuned=m.zero_shot, metrics=m.zero_shot_metrics, derived=True)
        if m.run.has_zero_shot and key(zero_shot) not in covered:
            covered.add(key(zero_shot))
            made.append(zero_shot)
    return made


@cache
def default_settings(trainer: str, dataset: str) -> Mapping[str, object]:
    """Every setting of a method on a data set by its full name, from the files in configs/."""
    if trainer not in TRAINER_REGISTRY:
        return {}
    name, corruption, severity = parse_run_name(dataset)
    cfg = build_cfg(trainer, str(dataset_file_of(name) or ""),
                    opts=["DATASET.CORRUPTION", corruption, "DATASET.SEVERITY", severity])
    return with_augmix({**leaves(get_cfg_default()), **leaves(cfg)}, dataset)


def non_default_settings(run: Run) -> dict[str, object]:
    """The settings that influence a run's predictions and differ from the method's defaults on its data set, which come
    from the method's and the data set's yaml (λ is lower on shifted sets)."""
    dataset = run.dataset if parse_run_name(run.dataset)[1] else run.registered_dataset
    defaults = default_settings(run.trainer, dataset) if has_defaults(run) else {}
    return {key: value for key, value in run.compared.items() if key in defaults and defaults[key] != value}


def has_defaults(run: Run) -> bool:
    """Whether the defaults of its settings are known: not those of other toolboxes and of methods not registered here,
    whose rows state the settings in which their runs differ."""
    return run.trainer in TRAINER_REGISTRY and run.has_zero_shot


def show_setting(key: str, value: object) -> str:
    """A setting as a row, a title or a legend names it. Two settings or values never have the same name."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    shown = f"{value:g}" if number and float(f"{value:g}") == value else str(value)
    leaf = key.rpartition(".")[2]
    words = {  # by the key or its last part; what is empty is shown as KEY value
        "LAMBDA": f"λ {shown}" if number else "",
        "DELTA": f"δ at {shown} %" if number else "",
        "VALUES": "values tuned per set on test labels" if value == "paper" else "one value for all sets",
        "TEST.ORDER": f"{value} order",
        "TEST.CORRELATION": f"γ {shown}",
        "TTA.STEPS": "1 step" if value == 1 else f"{value} steps",
        "TTA.RESET": reset_words(value) or "reset for each image",
        "DATASET.NUM_SHOTS": "" if value == -1 else "1 shot" if value == 1 else f"{value} shots",
        "MODEL.INIT_WEIGHTS": f"prompt {value}" if value else "hand-written prompt",
        "PROMPT.CTX_INIT": f"“{value}”" if value else "no initial words",
        "PROMPT.DESCRIPTIONS": f"descriptions {value}" if value else "no descriptions",
        "PROMPT.TEMPLATE": f"templates “{value}”" if value else "no templates",
        "PROMPT.ENSEMBLE": "mean feature" if value == "mean" else "mean of cosines",
        "TRAINER.REGULARISERS": str(value),
    }
    name = key.removeprefix("TRAINER.") if leaf in _ambiguous() else leaf
    return words.get(key) or words.get(leaf) or f"{name} {shown or 'none'}"


@cache
def _ambiguous() -> frozenset[str]:
    """Last names that several settings have, at least one of them outside TRAINER."""
    groups: dict[str, set[str]] = defaultdict(set)
    for key in leaves(get_cfg_default()):
        group, _, leaf = key.rpartition(".")
        groups[leaf].add("TRAINER" if group.startswith("TRAINER.") else group)
    return frozenset(leaf for leaf, found in groups.items() if len(found) > 1)


def swept_keys(measured: Sequence[Measured]) -> list[str]:
    """Settings in which two runs of one method on the same images differ."""
    groups: dict[tuple, list[dict[str, object]]] = defaultdict(list)
    for m in measured:
        groups[m.run.trainer, column_of(m)].append(m.run.compared)
    return sorted(set().union(*map(differing_keys, groups.values())))


def differing_keys(group: Sequence[Mapping[str, object]]) -> set[str]:
    """The keys of which the group has several values."""
    return {key for key in set().union(*group) if len({repr(one[key]) for one in group if key in one}) > 1}


def setting_labels(measured: Sequence[Measured]) -> dict[Path, str]:
    """By folder, the settings in which a run differs from other runs or from the defaults."""
    swept = swept_keys(measured)
    return {
        run.folder: ", ".join(show_setting(key, value) for key, value in run.compared.items()
                              if key in swept or key in non_default_settings(run))
        for run in (m.run for m in measured)
    }
