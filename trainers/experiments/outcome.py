"""An experiment's outcome: its tables and figures, next to the published ones, on one page."""
from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import DataError
from ...datasets.utils.files import make_folder, write_json, write_text
from ..functional.calibration import BINS
from ..report.choose import choice_tables, means
from ..report.comparison import swept_keys
from ..report.figures.style import stamped
from ..report.gallery import NamedFigure, attempted
from ..report.load import read_run
from ..report.measure import Measured, measure
from ..report.metrics import POSTHOC
from ..report.page import render, render_page
from ..report.paired import pair_tests
from ..report.table_model import Table
from ..report.verdict import judge
from ..report.write import write_figures, write_tables
from .definition import Experiment
from .finished_runs import FinishedRuns
from .layouts import RANKS_METHODS, find_layout
from .layouts.verify import verification
from .plan import PlannedRun, Workspace
from .vs_published import slip_notes

logger = logging.getLogger(__name__)

DEMO = "Demo: tiles drawn by code and the embedded small CLIP. Not the paper's data, backbone or figures."
STAMP = "Demo: drawn tiles and the small CLIP, not the paper's data."  # short enough for the narrowest figure
REPEATS = 200  # of the bootstrap behind a verdict
VERIFY = "verify.json"  # made by the experiment of that name


@dataclass(frozen=True)
class Outcome:
    tables: Sequence[Table]
    figures: Sequence[str]  # names
    page: Path


def write_outcome(
    experiment: Experiment, workspace: Workspace, runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str],
    known: dict[PlannedRun, Measured],
) -> Outcome:
    """Writes tables.{md,tex,csv}, figures/ and report.html. `known` keeps measured runs for the next experiment."""
    in_paper = experiment.makes and not experiment.makes.startswith("none")
    notes = [f"Of the SoC paper: {experiment.makes}."] if in_paper else []
    found = measure_runs(experiment, runs, failed, known, notes)
    finished = FinishedRuns(experiment, workspace, {run: m for run, m in found.items() if run.split == "test"},
                            [m for run, m in found.items() if run.split == "val"])
    if runs and not finished.measured:
        raise DataError(f"none of its {counted(len(runs), 'run')} is finished, so there is nothing to show")
    if finished.is_demo:
        omitted = ["The paper's figures are left out: they are of other data."] if experiment.published else []
        notes = [DEMO, *omitted, *notes]
    elif experiment.published and finished.other_settings:
        settings = ", ".join(f"{key} {value}" for key, value in finished.other_settings.items())
        notes.append(f"The paper's figures are left out: these runs have other settings ({settings}).")
    else:
        notes += slip_notes(experiment.published)
    out = workspace.outcome_dir(experiment.name)
    make_folder(out)
    tables, figures = make_layout(finished)
    write_tables(out, tables)
    figures, problems = write_figures(out, figures)
    notes += problems
    if finished.measured:
        folder = os.path.commonpath([measured.run.folder for measured in finished.measured.values()])
        notes.append(f"Its {counted(len(finished.measured), 'run')} one by one: {tool('report')} {folder}")
    verdicts = []
    if experiment.layout in RANKS_METHODS:
        verdicts = [verdict for comparison in finished.comparisons()
                    if (verdict := judge(comparison, pair_tests(comparison, REPEATS)))]
    if experiment.layout == "verify":
        verdict, record = verification(finished)
        verdicts = [verdict]
        write_json(out / VERIFY, record)
        notes.append(f"{out / VERIFY} holds these results with versions and hardware, and no paths"
                     + ("." if finished.is_demo else ": send it to the authors, or commit it (trainers/README.md)."))
    title = f"Demo: {experiment.title}" if finished.is_demo else experiment.title
    write_text(out / "report.html", render_page(verdicts, tables, figures, notes, title=title))
    return Outcome(tables, [figure.name for figure in figures], out / "report.html")


def measure_runs(
    experiment: Experiment, runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str],
    known: dict[PlannedRun, Measured], notes: list[str],
) -> dict[PlannedRun, Measured]:
    """The finished runs, with bootstrap intervals where methods are ranked; a note on each run that is missing."""
    repeats = REPEATS if experiment.layout in RANKS_METHODS else 0
    posthoc = not {*POSTHOC, "seconds"}.isdisjoint(experiment.metrics)
    found = {}
    for run in tqdm(runs, desc="measuring", unit="run", leave=False, disable=len(runs) < 3):
        if run in failed:  # whether a folder holds this run is decided by records, before
            notes.append(f"Missing: {run.described} ({failed[run]}).")
            continue
        try:
            metrics = known[run].metrics if run in known else {}
            no_interval = metrics and np.isnan(metrics["accuracy"].low)
            if not metrics or (repeats and no_interval) or (posthoc and "ece_fixed" not in metrics):
                known[run] = measure(read_run(run.folder), BINS, repeats, posthoc=posthoc)
            found[run] = known[run]
        except (DataError, ValueError) as error:
            notes.append(f"Missing: {run.described} ({error}).")
    return found


def make_layout(finished: FinishedRuns) -> tuple[list[Table], list[NamedFigure]]:
    """The tables and figures of the experiment's layout. A figure that cannot be drawn does not lose the tables. Every
    table and figure of a demo says so, wherever it is copied to."""
    make_tables, draw_figures = find_layout(finished.experiment.layout)
    note = [finished.experiment.note] if finished.experiment.note else []
    tables = [replace(table, notes=[*table.notes, *note]) for table in make_tables(finished)]
    measured, workspace = list(finished.measured.values()), finished.workspace
    swept = swept_keys(measured)
    if names := [name for name in workspace.choose if any(means(name, key) for key in swept)]:
        tables += choice_tables(measured, finished.validation, names, workspace.choose_by)
    figures = list(attempted(lambda: draw_figures(finished)))
    if finished.is_demo:
        tables = [replace(table, title=f"Demo: {table.title}", notes=[DEMO, *table.notes]) for table in tables]
        figures = [replace(figure, caption=f"{figure.caption} {DEMO}", figure=stamped(figure.figure, STAMP))
                   for figure in figures]
    return tables, figures


def write_index(workspace: Workspace, experiments: Sequence[Experiment]) -> Path:
    """One page with links to all outcomes so far."""
    path = workspace.outcome_dir("index.html")
    written = [e for e in experiments if (workspace.outcome_dir(e.name) / "report.html").is_file()]
    note = DEMO if workspace.demo else ""
    write_text(path, render("experiments.html", "Experiments", experiments=written, note=note))
    return path
