"""From run folders to tables, figures and one page."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from ...datasets.base import dataset_info
from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import DataError
from ...datasets.utils.files import write_text
from ..registry import method_info
from .boards import link_boards
from .compare import compare
from .conformal_tables import sets_tables
from .gallery import Picture, pictures
from .grid import Comparison
from .measure import measure
from .output import write_figures, write_tables
from .page.page import Page, render_page
from .paired import paired_table
from .posthoc_metrics import POSTHOC
from .reading import find_runs, text_similarity
from .table_model import Table
from .tables import metrics_table, paper_table
from .thumbnails import read_picture, thumbnails
from .verdict import Verdict, judge

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Report:
    """What was found and where it was written."""

    tables: list[Table]
    verdicts: list[Verdict]
    notes: list[str]
    page: Path


def write_report(
    paths: Sequence[str | Path], out: Path, bins: int = 20, repeats: int = 300, published: bool = False,
    with_figures: bool = True, first: Sequence[Picture] = (), remarks: Sequence[str] = (), posthoc: bool = False,
    demo: bool = False,
) -> Report:
    """Reads all finished runs below `paths` and writes tables.{md,tex,csv}, figures/ and report.html into `out`.

    The caller's own pictures stand `first` among the figures, its `remarks` first among the notes.
    Runs on embedded tiles are left out where there are others, unless `demo` asks for them.
    `posthoc` adds label-free post-hoc scaling and sets of predictions.
    """
    runs, notes = find_runs(paths)
    if not runs:
        hint = f" ({notes[0]})" if notes else ""
        raise DataError(f"no finished run below {', '.join(map(str, paths))}{hint}; make one with {tool('train')}")
    if not demo and (own := [run for run in runs if not dataset_info(run.dataset).embedded]) and len(own) < len(runs):
        notes.append(f"{counted(len(runs) - len(own), 'run')} on embedded demo data left out; --demo shows them too.")
        runs = own
    validation = {run.same_but_split(): run for run in runs if run.split == "val"}
    runs = [run for run in runs if run.split == "test"]
    measured = []
    for run in tqdm(runs, desc="measuring", unit="run", disable=len(runs) < 3):
        held_out = validation.get(run.same_but_split())
        try:
            if held_out:
                held_out.load_predictions()
        except DataError as error:
            notes.append(f"{error}; temperatures of {run.folder} are fitted without it")
            held_out = None
        try:
            measured.append(measure(run, bins, repeats, held_out, posthoc))
        except ValueError as error:  # DataError is one
            notes.append(f"{run.folder} is left out: {error}")
    if not measured:
        raise DataError(f"no run could be measured: {notes[-1] if notes else 'all are on the validation split'}")
    measured.sort(key=lambda m: (*dataset_info(m.run.dataset).order, *method_info(m.run.trainer).order, m.run.seed))
    comparisons = compare(measured)
    tables = make_tables(comparisons, bins, published, posthoc, repeats)
    verdicts = [verdict for c in comparisons if not c.swept and (verdict := judge(c, repeats))]
    write_tables(out, tables)
    figures = (*first, *pictures(comparisons, text_similarity, read_picture)) if with_figures else ()
    drawn, problems = write_figures(out, figures)
    notes += problems
    shown = {str(m.run.folder): thumbnails(m.run, m.mistakes) for m in measured}
    notes = [*remarks, *notes]
    board = link_boards(out, measured)
    if board:
        notes.append(f"Curves of these runs, by name: tensorboard --logdir {board}")
    leading = sum(not comparison.swept for comparison in comparisons)
    page = Page(verdicts, tables, drawn, measured, shown, notes, leading=leading)
    write_text(out / "report.html", render_page(page))
    return Report(tables, verdicts, notes, out / "report.html")


def make_tables(
    comparisons: Sequence[Comparison], bins: int, published: bool, posthoc: bool = False, repeats: int = 0,
) -> list[Table]:
    """The main table of each backbone; then for each pairs of methods, post-hoc scaling, ACE and all metrics; then a
    table for each sweep."""
    main, tables = [], []
    for number, c in enumerate((c for c in comparisons if not c.swept), start=1):
        name, bare = f"results_{number}", replace(c, notes=[])  # what must be known of its runs stands once
        main.append(paper_table(c, name, f"Accuracy and ECE, {c.backbone}", ["accuracy", "ece"], published))
        tables += [
            paired_table(c, f"{name}_paired", f"Pairs of methods on the same images, {c.backbone}", repeats),
            paper_table(bare, f"{name}_posthoc", f"ECE after post-hoc scaling, {c.backbone}",
                        ["ece_sals", "ece_temperature", *(POSTHOC if posthoc else ())], published),
            paper_table(bare, f"{name}_ace", f"Adaptive calibration error, {c.backbone}", ["ace"], published),
            metrics_table(c, f"{name}_metrics", f"All metrics, {c.backbone}", bins),
        ]
        if posthoc:
            tables += sets_tables(c, f"{name}_sets")
    for number, c in enumerate((c for c in comparisons if c.swept), start=1):
        same = published and c.swept == "TTA.STEPS"  # the only sweep of which the paper prints every cell
        tables.append(paper_table(c, f"sweep_{number}", c.title, ["accuracy", "ece"], same))
    return [table for table in (*main, *tables) if table is not None]
