"""From finished runs to a report: measure, arrange, make tables and figures, judge, write.

`report`, `reproduce`, the demo and `verify` all go through `report` below. What differs between
them is the layout.
"""
from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...datasets.base import DATASET_REGISTRY, dataset_info
from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import ConfigError, DataError, UserError, one_line
from ...datasets.utils.files import read_json, write_json, write_text
from ...datasets.utils.progress import show_progress
from ..registry import TRAINER_REGISTRY, method_info
from .arrange import arrange, by_backbone
from .cells import baseline_of, is_named
from .choices import choice_tables
from .figures import style
from .figures.select import layout_figures, report_figures
from .figures.style import NamedFigure, stamped
from .grid import Grid, Row, grid_of
from .grid_notes import grid_notes
from .layout import Differences, Layout
from .layout_tables import spec_tables
from .load import FinishedRun, find_runs
from .measure import Measured, MeasureOptions, MeasuringCache, measure_run
from .metrics import POSTHOC
from .page import PageContent, Thumbnails, render_page
from .pairs import Pair, PairTests, pairs_table
from .published import bibliography
from .report_tables import further_tables, main_tables, results_table
from .table import (
    LATEX_HEAD,
    LATEX_SOURCES,
    NOTES_HEAD,
    Table,
    latex,
    latex_notes,
    markdown,
    to_csv,
)
from .validation import ValidationRuns
from .verdict import Verdict, judge
from .words import column_words, joined_with_or

STAMP = "Demo: drawn tiles and the small CLIP, not the paper's data."  # fits the narrowest figure
MODULE = re.compile(r"[\w.]+")  # what `--plugin` takes
logger = logging.getLogger(__name__)
# Files that the last report wrote into figures/, which the next one may remove
LIST = "figures.json"
NOT_SAFE = re.compile(r"[^\w.-]+", re.ASCII)  # in the name of a table


@dataclass(frozen=True)
class Report:
    """The content of a report that was written.

    Attributes:
        tables: Tables, in the order of the page.
        verdicts: A verdict for each table whose methods are ranked.
        notes: Notes on the runs and on figures that could not be drawn.
        figures: Names of the figures.
        page: Path of report.html.
    """

    tables: list[Table]
    verdicts: list[Verdict]
    notes: list[str]
    figures: list[str]
    page: Path


@dataclass(frozen=True)
class MeasuredRuns:
    """The measured runs of a report.

    Attributes:
        test: Runs on test images, in the order of papers.
        validation: Runs on validation images, by the test runs that they belong to.
        notes: Notes on runs that were left out.
    """

    test: list[Measured]
    validation: ValidationRuns
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Additions:
    """What a command adds to a report.

    Attributes:
        notes: Notes to show before all others.
        figures: Figures to show before all others.
        tables: Tables to show before all others.
        verdict: Shown in place of the verdicts of the tests; None keeps these.
        thumbnails: Where images of mistakes are looked for; None shows none.
    """

    notes: Sequence[str] = ()
    figures: Sequence[NamedFigure] = ()
    tables: Sequence[Table] = ()
    verdict: Verdict | None = None
    thumbnails: Path | None = None


def report(
    runs: Sequence[FinishedRun], layout: Layout, out: Path, additions: Additions | None = None,
    measured: MeasuredRuns | None = None,
) -> Report:
    """Writes tables.{md,tex,csv}, figures/ and report.html into `out`.

    Args:
        runs: Finished runs.
        layout: Which tables and figures are made of them.
        out: A folder.
        additions: What a command adds.
        measured: The runs, if they were measured before.
    """
    additions = additions or Additions()
    if measured is None:
        measured = measure(runs, layout)
    if layout.tables:
        grids = layout_grids(measured.test, layout)
    else:
        grids = arrange(measured.test)
    check_names(grids, layout.differences)
    tests = make_tests(grids, layout)
    leading, others = make_tables(measured.test, grids, tests, layout)
    leading = [*additions.tables, *leading]
    if layout.choose:
        leading += choice_tables(
            measured.test, measured.validation, layout.choose, layout.choose_by
        )
    tables = with_distinct_names([*leading, *others])
    tables = [finished_table(table, layout) for table in tables]
    write_tables(out, tables)
    figures, figure_notes = write_figures(out, all_figures(measured.test, grids, layout, additions))
    if additions.verdict is not None:
        verdicts = [additions.verdict]
    else:
        verdicts = [test.verdict for test in tests if test.verdict is not None]
    notes = [*additions.notes, *measured.notes, *figure_notes]
    shown_runs = measured.test if layout.with_runs else []
    content = PageContent(layout.title, verdicts, tables, figures, notes, shown_runs, len(leading),
                          Thumbnails(additions.thumbnails))
    write_text(out / "report.html", render_page(content))
    return Report(tables, verdicts, notes, [figure.name for figure in figures], out / "report.html")


def check_names(grids: Sequence[Grid], differences: Differences) -> None:
    """Refuses a baseline, or a method given by --ours, that no row is named after.

    Args:
        differences: The names, as the user gave them.
    """
    options = [("--ours", name) for name in differences.ours]
    if not differences.is_default:
        options.append(("--baseline", differences.baseline))
    rows: list[Row] = []
    for grid in grids:
        rows += grid.rows
    known = list(dict.fromkeys(row.name for row in rows))
    for option, name in options:
        if rows and not any(is_named(row, name) for row in rows):
            raise ConfigError(f"{option} {name}: none of these runs is of that method. They are of "
                              f"{', '.join(known)}.")


def write_report(
    paths: Sequence[str | Path], out: Path, layout: Layout, demo: bool = False,
    additions: Additions | None = None,
) -> Report:
    """The report on all finished runs at or below some folders.

    Args:
        paths: Run folders, or folders that contain them.
        out: Folder in which the report is written.
        layout: Which tables and figures are made.
        demo: Whether runs on embedded data are shown if there are others.
        additions: What a command adds.
    """
    runs, notes = find_runs(paths)
    if not runs:
        hint = f" ({notes[0]})" if notes else ""
        names = ", ".join(str(path) for path in paths)
        raise DataError(f"no finished run below {names}{hint}; make one with {tool('train')}")
    real = [run for run in runs if not is_embedded(run)]
    left_out = ""
    if not demo and real and len(real) < len(runs):
        left_out = (
            f"{counted(len(runs) - len(real), 'run')} on embedded demo data left out; --demo "
            "shows them too."
        )
        notes.append(left_out)
        runs = real
    notes += missing_plugins(runs)
    measured = measure(runs, layout)
    measured.notes[:0] = notes
    try:
        return report(runs, layout, out, additions, measured)
    except ConfigError as error:  # a method or a swept setting that only runs left out may have
        if not left_out:
            raise
        raise ConfigError(f"{error} {left_out}") from error


def is_embedded(run: FinishedRun) -> bool:
    """Whether a run is on data that is drawn by code."""
    return dataset_info(str(run.record.data["dataset"])).embedded


def missing_plugins(runs: Sequence[FinishedRun]) -> list[str]:
    """A note on the methods and data sets of plugins that this command was not given."""
    modules: dict[str, str] = {}
    for run in runs:
        for name, module in (run.results.get("plugins") or {}).items():
            if name not in TRAINER_REGISTRY and name not in DATASET_REGISTRY:
                modules[name] = module
    if not modules:
        return []
    # Names come from files of others: only what can be a module is suggested.
    flags = []
    for module in dict.fromkeys(modules.values()):
        if MODULE.fullmatch(module):
            flags.append(f"--plugin {module}")
    hint = ""
    if flags:
        hint = f": add {' '.join(flags)} to the command"
    return [f"Without their plugins, {', '.join(modules)} have no colour and are not ranked{hint}."]


def measure(
    runs: Sequence[FinishedRun], layout: Layout, known: dict[Any, Measured] | None = None,
    must_have_runs: bool = True,
) -> MeasuredRuns:
    """Measures the runs on test images, each once; validation runs fit their temperatures.

    Args:
        runs: Finished runs.
        layout: Says what is measured.
        known: Keeps measured runs for further reports on the same runs.
        must_have_runs: Whether it is an error if no run could be measured.
    """
    if known is None:
        known = {}
    notes: list[str] = []
    test = []
    validation_runs = []
    for run in runs:
        if run.split == "test":
            test.append(run)
        elif run.split == "val":
            validation_runs.append(run)
        else:
            notes.append(
                f"{run.name} is left out: its split '{run.split}' is neither test nor val."
            )
    validation = ValidationRuns(test, validation_runs)
    notes += validation.notes
    options = MeasureOptions(
        bins=layout.bins,
        posthoc=needs_posthoc(layout),
        sets=not layout.tables,
        details=layout.with_runs,
    )
    cache = MeasuringCache()
    measured = []
    for run in show_progress(test, "measuring", "run", total=len(test), shown=len(test) >= 3):
        validation_folders = [held_out.folder for held_out in validation.of(run)]
        key = (run.folder.resolve(), run.record.id, options, tuple(validation_folders))
        if key not in known:
            try:
                data = run.load_predictions()
                usable = validation.held_out(run, data)
                of_run = measure_run(run, data, options, usable.predictions, cache)
            except ValueError as error:  # DataError is one
                notes.append(f"{run.name} is left out: {error}.")
                continue
            known[key] = replace(of_run, notes=tuple(usable.notes))
        # An earlier report read the run as another object, perhaps under another name.
        measured.append(replace(known[key], run=run, record=run.record))
        for note in known[key].notes:
            if note not in notes:
                notes.append(note)
    without_logits = sum(not each.has_logits for each in measured)
    if without_logits:
        notes.append(
            f"{counted(without_logits, 'run')} exported without logits: metrics that need them are "
            "–."
        )
    if must_have_runs and not measured:
        reason = notes[-1] if notes else "all are on the validation split"
        raise DataError(f"no run could be measured: {reason}")
    measured.sort(key=paper_order)
    return MeasuredRuns(measured, validation, notes)


def needs_posthoc(layout: Layout) -> bool:
    """Whether a table shows scaling without labels."""
    if layout.posthoc:
        return True
    for spec in layout.tables:
        if set(spec.metrics) & set(POSTHOC):
            return True
    return False


def paper_order(measured: Measured) -> tuple:
    """Sorts runs as the tables of papers do; of one method in the order in which they are given."""
    record = measured.record
    return (dataset_info(str(record.data["dataset"])).order, column_words(record),
            method_info(measured.run.trainer).order, measured.seed)


def layout_grids(measured: Sequence[Measured], layout: Layout) -> list[Grid]:
    """A table for each backbone with all runs, whose labels state the settings of the layout."""
    grids = []
    for table in by_backbone(measured):
        grid = grid_of(table.runs, table.label, table.label, layout.rows)
        grid.notes += grid_notes(grid)
        grids.append(grid)
    return grids


@dataclass(frozen=True)
class GridTests:
    """The tests of one table.

    Attributes:
        grid: The table.
        pairs: All pairs of methods.
        against_baseline: Everything against the baseline.
        baseline: Labels of the rows that others are tested against; "" if there are none.
        verdict: What the page says first; None if methods are not ranked.
    """

    grid: Grid
    pairs: list[Pair]
    against_baseline: list[Pair]
    baseline: str
    verdict: Verdict | None


def make_tests(grids: Sequence[Grid], layout: Layout) -> list[GridTests]:
    """Tests the methods of each main table.

    Args:
        grids: Main tables and tables of swept settings. The latter are tested only where a layout
            has its own tables.
        layout: Names the baseline, and says whether methods are ranked.
    """
    tests = []
    for grid in grids:
        if not layout.verdict or (grid.stated and not layout.tables):
            continue
        pair_tests = PairTests(grid)
        pairs = pair_tests.all_pairs()
        against: list[Pair] = []
        baselines = baselines_of(grid, pair_tests.rows, layout)
        labels = [baseline.label for baseline in baselines.values()]
        label = joined_with_or(list(dict.fromkeys(labels)))
        if len(pair_tests.rows) > 2:  # the one pair of two rows is in the table of all pairs
            against = pair_tests.against(baselines)
        tests.append(GridTests(grid, pairs, against, label, judge(grid, pairs, against)))
    return tests


def baselines_of(grid: Grid, rows: Sequence[Row], layout: Layout) -> dict[Row, Row]:
    """The row that each row is tested against, of those that may be tested.

    Args:
        rows: The rows of the grid that are compared.
    """
    options = Differences(layout.baseline, is_default=layout.differences.is_default)
    baselines = {}
    for row in rows:
        baseline = baseline_of(row, grid.rows, options)
        if baseline is not None and baseline in rows and not is_named(row, layout.baseline):
            baselines[row] = baseline
    return baselines


def make_tables(
    measured: Sequence[Measured], grids: Sequence[Grid], tests: Sequence[GridTests], layout: Layout,
) -> tuple[list[Table], list[Table]]:
    """The tables that stand before the figures, and those after them."""
    if layout.tables:
        leading = []
        for spec in layout.tables:
            leading += spec_tables(measured, spec, layout)
        others = []
        for number, test in enumerate(tests, start=1):
            others += tables_of_tests(test, f"pairs_{number}")
        return leading, others
    leading = []
    others = []
    main = [grid for grid in grids if not grid.stated]
    for number, grid in enumerate(main, start=1):
        name = f"results_{number}"
        leading += main_tables(grid, name, layout)
        for test in tests:
            if test.grid is grid:
                others += tables_of_tests(test, f"{name}_paired")
        others += further_tables(grid, name, layout)
    sweeps = [grid for grid in grids if grid.stated]
    for number, grid in enumerate(sweeps, start=1):
        # The number of steps is the only sweep of which a paper prints every cell.
        shown = layout
        if grid.stated != ("TTA.STEPS",):
            shown = replace(layout, published="")
        title = f"{grid.title}{grid.shared_words}"
        others.append(
            results_table(grid, f"sweep_{number}", title, ["accuracy", "ece"], shown))
    return leading, others


def tables_of_tests(test: GridTests, name: str) -> list[Table]:
    """Two tables of tests: every method against the baseline, and all pairs.

    Args:
        test: The tests of a grid. A table without any is left out.
        name: Name of the table of pairs, to which that of the other adds a word.
    """
    backbone = test.grid.heading
    tables = []
    title = f"Everything against {test.baseline} on the same images, {backbone}"
    against = pairs_table(test.grid, f"{name}_baseline", title, test.against_baseline)
    if against is not None:
        tables.append(against)
    title = f"Pairs of methods on the same images, {backbone}"
    pairs = pairs_table(test.grid, name, title, test.pairs)
    if pairs is not None:
        tables.append(pairs)
    return tables


def finished_table(table: Table, layout: Layout) -> Table:
    """The table with the layout's note; a demo is named in title and notes, which copies keep."""
    notes = list(table.notes)
    if layout.note:
        notes.append(layout.note)
    if layout.stamp:
        return replace(table, title=f"Demo: {table.title}", notes=[layout.stamp, *notes])
    return replace(table, notes=notes)


def all_figures(
    measured: Sequence[Measured], grids: Sequence[Grid], layout: Layout, additions: Additions,
) -> Iterator[NamedFigure]:
    """The figures of a report, each drawn when it is asked for."""
    yield from additions.figures
    if not layout.with_figures:
        return
    if layout.tables:
        for figure in layout_figures(measured, layout):
            yield stamped_figure(figure, layout)
    else:
        yield from report_figures(grids)


def stamped_figure(figure: NamedFigure, layout: Layout) -> NamedFigure:
    """The figure; that of a demo says so in its caption and in the picture."""
    if not layout.stamp:
        return figure
    return NamedFigure(
        figure.name, f"{figure.caption} {layout.stamp}", stamped(figure.figure, STAMP)
    )


def write_tables(out: Path, tables: Sequence[Table]) -> None:
    """Writes tables.md, tables.tex, tables_notes.tex, tables.csv, and tables.bib.

    The last one has the sources of published rows. Without any it is not written.
    """
    write_text(out / "tables.md", "\n".join(markdown(table) for table in tables))
    write_text(out / "tables.csv", to_csv(tables))
    cited = []
    for table in tables:
        for block in table.blocks:
            cited += [row.cite for row in block.rows]
    sources = bibliography(cited)
    head = LATEX_HEAD
    if sources:
        head += LATEX_SOURCES
        write_text(out / "tables.bib", sources)
    else:
        (out / "tables.bib").unlink(missing_ok=True)  # of an earlier report
    write_text(out / "tables.tex", head + "\n".join(latex(table) for table in tables))
    notes = [latex_notes(table) for table in tables if table.notes]
    write_text(out / "tables_notes.tex", NOTES_HEAD + "\n".join(notes))


def write_figures(out: Path, figures: Iterable[NamedFigure]) -> tuple[list[NamedFigure], list[str]]:
    """Writes PNG and PDF of each figure into figures/ and removes those of an earlier report.

    Returns:
        The figures that were written, and a note on each that could not be drawn.
    """
    folder = out / "figures"
    drawn: list[NamedFigure] = []
    notes: list[str] = []
    written: list[str] = []
    for figure in figures:
        # Figures of an experiment with several backbones have equal names.
        name = free_name(figure.name, [other.name for other in drawn])
        figure = replace(figure, name=name)
        try:
            paths = style.save(figure.figure, folder / figure.name)
        except (UserError, OSError):  # a full disk, for instance
            raise
        except Exception as error:
            notes.append(f"Figure {figure.name} is left out: {one_line(error, 200)}.")
            logger.warning("%s", notes[-1])
            continue
        written += [path.name for path in paths]
        drawn.append(figure)
    before = read_json(folder / LIST)
    if isinstance(before, list):
        for name in before:
            if isinstance(name, str) and name not in written and Path(name).name == name:
                (folder / name).unlink(missing_ok=True)
    if written or before:
        write_json(folder / LIST, written)
    return drawn, notes


def with_distinct_names(tables: Sequence[Table]) -> list[Table]:
    """The tables with names that are safe in LaTeX and HTML, which do not escape them.

    Those of an experiment with several backbones get a number after their name.
    """
    named: list[Table] = []
    for table in tables:
        names = [other.name for other in named]
        safe_name = NOT_SAFE.sub("_", table.name)
        named.append(replace(table, name=free_name(safe_name, names)))
    return named


def free_name(name: str, taken: Sequence[str]) -> str:
    """A name; with the first number after it that makes it another one, if it is taken."""
    free = name
    number = 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    return free
