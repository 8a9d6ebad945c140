"""Writes a report: from run folders to tables, figures and one page."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from ...datasets.base import DATASET_REGISTRY, dataset_info
from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import DataError, UserError, one_line
from ...datasets.utils.files import read_json, write_json, write_text
from ..functional import BINS
from ..registry import TRAINER_REGISTRY, method_info
from . import render
from .choose import choice_tables
from .comparison import Comparison, compare
from .figures import style
from .gallery import NamedFigure, make_figures
from .load import Run, find_runs, text_similarity
from .measure import Measured, measure
from .metrics import POSTHOC
from .page import render_page
from .paired import Pair, pair_tests, paired_table
from .published import bibliography
from .table_model import Table
from .tables import conformal_tables, metrics_table, paper_table
from .verdict import Verdict, judge

logger = logging.getLogger(__name__)

LIST = "figures.json"  # files that the last report wrote into figures/, which the next one may remove


@dataclass(frozen=True)
class Report:
    """What was found and where it was written."""

    tables: list[Table]
    verdicts: list[Verdict]
    notes: list[str]
    page: Path


def write_report(
    paths: Sequence[str | Path], out: Path, bins: int = BINS, repeats: int = 300, published: bool = False,
    with_figures: bool = True, first: Sequence[NamedFigure] = (), remarks: Sequence[str] = (), posthoc: bool = False,
    demo: bool = False, choose: Sequence[str] = (), choose_by: str = "ece",
) -> Report:
    """Reads all finished runs below `paths` and writes tables.{md,tex,csv}, figures/ and report.html into `out`.

    `first` are figures to show before all others, `remarks` notes to show before all others. Runs on embedded data are
    left out if there are others, unless `demo`. `posthoc` adds label-free post-hoc scaling and conformal sets. `choose`
    adds tables of swept settings, chosen by the metric `choose_by`.
    """
    runs, notes = find_runs(paths)
    if not runs:
        hint = f" ({notes[0]})" if notes else ""
        raise DataError(f"no finished run below {', '.join(map(str, paths))}{hint}; make one with {tool('train')}")
    real = [run for run in runs if not dataset_info(run.dataset).embedded]
    if not demo and real and len(real) < len(runs):
        notes.append(f"{counted(len(runs) - len(real), 'run')} on embedded demo data left out; --demo shows them too.")
        runs = real
    notes += _missing_plugins(runs)
    measured = _measure_all(runs, notes, bins, repeats, posthoc)
    comparisons = compare(measured)
    main = [c for c in comparisons if not c.swept]
    tests = [pair_tests(c, repeats) for c in main]
    tables = make_tables(comparisons, tests, bins, published, posthoc)
    leading = len(main)
    if choose:
        validation = [m for run in runs if run.split == "val" for m in _measure(run, notes, bins)]
        tables[leading:leading] = chosen = choice_tables(measured, validation, choose, choose_by)
        leading += len(chosen)
    verdicts = [verdict for c, pairs in zip(main, tests, strict=True) if (verdict := judge(c, pairs))]
    write_tables(out, tables)
    figures = (*first, *make_figures(comparisons, text_similarity)) if with_figures else ()
    drawn, problems = write_figures(out, figures)
    notes = [*remarks, *notes, *problems]
    write_text(out / "report.html", render_page(verdicts, tables, drawn, notes, measured, leading=leading))
    return Report(tables, verdicts, notes, out / "report.html")


def _missing_plugins(runs: Sequence[Run]) -> list[str]:
    """A note on the methods and data sets of plugins that this command was not given."""
    modules = {name: module for run in runs for name, module in (run.results.get("plugins") or {}).items()
               if name not in TRAINER_REGISTRY and name not in DATASET_REGISTRY}
    flags = " ".join(f"--plugin {module}" for module in dict.fromkeys(modules.values()))
    return [f"Without their plugins, {', '.join(modules)} have no label, colour and defaults, and are not ranked: add "
            f"{flags} to the command."] if modules else []


def _measure_all(runs: Sequence[Run], notes: list[str], bins: int, repeats: int, posthoc: bool) -> list[Measured]:
    """The runs on test splits, measured; those on validation splits fit their temperatures."""
    validation: dict[tuple, Run] = {}
    measured: list[Measured] = []
    for run in (run for run in runs if run.split == "val"):
        try:
            run.load_predictions()
            validation[run.split_key()] = run
        except DataError as error:
            notes.append(f"{error}; temperatures are fitted without it")
    runs = [run for run in runs if run.split == "test"]
    for run in tqdm(runs, desc="measuring", unit="run", disable=len(runs) < 3):
        measured += _measure(run, notes, bins, repeats, validation.get(run.split_key()), posthoc)
    if not measured:
        raise DataError(f"no run could be measured: {notes[-1] if notes else 'all are on the validation split'}")
    measured.sort(key=lambda m: (*dataset_info(m.run.dataset).order, *method_info(m.run.trainer).order, m.run.seed))
    return measured


def _measure(
    run: Run, notes: list[str], bins: int, repeats: int = 0, validation: Run | None = None, posthoc: bool = False,
) -> list[Measured]:
    """The measured run, or nothing and a note."""
    try:
        return [measure(run, bins, repeats, validation, posthoc)]
    except ValueError as error:  # DataError is one
        notes.append(f"{run.folder} is left out: {error}")
        return []


def make_tables(
    comparisons: Sequence[Comparison], tests: Sequence[Sequence[Pair]], bins: int, published: bool,
    posthoc: bool = False,
) -> list[Table]:
    """The main table of each backbone; then for each backbone pairs of methods, post-hoc scaling, ACE and all metrics;
    then a table for each sweep."""
    main: list[Table] = []
    tables: list[Table | None] = []
    unswept = (c for c in comparisons if not c.swept)
    for number, (c, pairs) in enumerate(zip(unswept, tests, strict=True), start=1):
        name, backbone = f"results_{number}", c.backbone_label
        bare = replace(c, notes=[])  # the notes on its runs are under the main table
        main.append(paper_table(c, name, f"Accuracy and ECE, {backbone}", ["accuracy", "ece"], published))
        tables += [
            paired_table(c, f"{name}_paired", f"Pairs of methods on the same images, {backbone}", pairs),
            paper_table(bare, f"{name}_posthoc", f"ECE after post-hoc scaling, {backbone}",
                        ["ece_sals", "ece_temperature", *(POSTHOC if posthoc else ())], published),
            paper_table(bare, f"{name}_ace", f"Adaptive calibration error, {backbone}", ["ace"], published),
            metrics_table(c, f"{name}_metrics", f"All metrics, {backbone}", bins),
        ]
        if posthoc:
            tables += conformal_tables(c, f"{name}_sets")
    for number, c in enumerate((c for c in comparisons if c.swept), start=1):
        same = published and c.swept == "TTA.STEPS"  # the only sweep of which the paper prints every cell
        tables.append(paper_table(c, f"sweep_{number}", c.title, ["accuracy", "ece"], same))
    return [*main, *(table for table in tables if table is not None)]


def write_tables(out: Path, tables: Sequence[Table]) -> None:
    """tables.md, tables.tex and tables.csv; and tables.bib with the sources of published rows, if there are any."""
    write_text(out / "tables.md", "\n".join(map(render.markdown, tables)))
    write_text(out / "tables.tex", render.LATEX_HEAD + "\n".join(map(render.latex, tables)))
    write_text(out / "tables.csv", render.to_csv(tables))
    if entries := bibliography(row.cite for table in tables for block in table.blocks for row in block.rows):
        write_text(out / "tables.bib", entries)
    else:
        (out / "tables.bib").unlink(missing_ok=True)  # of an earlier report


def write_figures(out: Path, figures: Iterable[NamedFigure]) -> tuple[list[NamedFigure], list[str]]:
    """Writes PNG and PDF of each figure into figures/ and removes those of an earlier report.

    Returns the figures that were written, and a note on each that could not be drawn.
    """
    folder = out / "figures"
    drawn: list[NamedFigure] = []
    notes: list[str] = []
    written: list[str] = []
    for figure in figures:
        try:
            written += [path.name for path in style.save(figure.figure, folder / figure.name)]
            drawn.append(figure)
        except (UserError, OSError):  # a full disk, for instance
            raise
        except Exception as error:
            notes.append(f"Figure {figure.name} is left out: {one_line(error, 200)}.")
            logger.warning("%s", notes[-1])
    before = read_json(folder / LIST)
    for name in before if isinstance(before, list) else ():
        if isinstance(name, str) and name not in written and Path(name).name == name:
            (folder / name).unlink(missing_ok=True)
    if written or before:
        write_json(folder / LIST, written)
    return drawn, notes
