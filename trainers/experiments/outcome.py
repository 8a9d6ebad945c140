"""An experiment's outcome: its tables and figures, next to the published ones, on one page."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import DataError
from ...datasets.utils.files import make_folder, write_json, write_text
from ..report.core import Additions, MeasuredRuns, measure, report
from ..report.layout import Layout
from ..report.load import FinishedRun, name_below, read_run
from ..report.measure import Measured
from ..report.page import render
from ..report.table import Table
from .definition import Experiment
from .finished_runs import FinishedRuns
from .layouts import layout_fields
from .layouts.build import DEMO, build_layout
from .layouts.penalties import complexity
from .layouts.theory import theory_tables
from .layouts.verify import Verification
from .planned_run import PlannedRun
from .workspace import Workspace

VERIFY = "verify.json"  # which the experiment of that name writes


@dataclass(frozen=True)
class Outcome:
    """What was written of an experiment.

    Attributes:
        tables: Tables, in the order of the page.
        figures: Names of the figures.
        page: The file report.html.
    """

    tables: Sequence[Table]
    figures: Sequence[str]
    page: Path


def write_outcome(
    experiment: Experiment, workspace: Workspace, runs: Sequence[PlannedRun],
    failed: Mapping[PlannedRun, str], known: dict[Any, Measured],
) -> Outcome:
    """Writes tables.{md,tex,csv}, figures/ and report.html.

    Args:
        experiment: What to show.
        workspace: Where runs and outcome lie.
        runs: The planned runs of the experiment.
        failed: Why some of them failed.
        known: Keeps measured runs for the next experiment.
    """
    layout = build_layout(experiment, workspace)
    notes = []
    if experiment.makes and not experiment.makes.startswith("none"):
        notes.append(f"Of the SoC paper: {experiment.makes}.")
    if layout.stamp:
        notes.insert(0, DEMO)
        if experiment.published:
            notes.insert(1, "The paper's figures are left out: they are of other data.")
    finished, measured = measure_runs(experiment, workspace, runs, failed, layout, known)
    if runs and not finished.measured:
        raise DataError(
            f"none of its {counted(len(runs), 'run')} is finished, so there is nothing to show"
        )
    out = workspace.outcome_dir(experiment.name)
    make_folder(out)
    if finished.measured:
        count = counted(len(finished.measured), "run")
        notes.append(f"Its {count} one by one: {tool('report')} {workspace.runs_dir.name}")
    study = layout_fields(experiment.layout).get("study", "")
    if study == "verify":
        additions = verify_additions(finished, out, notes)
    elif study == "complexity":
        additions = Additions(notes, tables=complexity(finished))
    elif study == "theory":
        additions = Additions(notes, tables=list(theory_tables(finished)))
    else:
        additions = Additions(notes)
    written = report([], layout, out, additions, measured)
    return Outcome(written.tables, written.figures, written.page)


def verify_additions(finished: FinishedRuns, out: Path, notes: Sequence[str]) -> Additions:
    """Writes verify.json; its tables and its verdict are added to the page.

    Args:
        finished: The runs that are compared with published values.
        out: The folder of the page.
        notes: Notes that the page has in any case.
    """
    verification = Verification(finished)
    write_json(out / VERIFY, verification.record())
    note = f"{VERIFY} holds these results with versions and hardware, and no paths"
    if finished.is_demo:
        note += "."
    else:
        note += ": send it to the authors, or commit it (trainers/README.md)."
    return Additions(
        [*notes, note], tables=verification.tables(), verdict=verification.verdict())


def measure_runs(
    experiment: Experiment, workspace: Workspace, runs: Sequence[PlannedRun],
    failed: Mapping[PlannedRun, str], layout: Layout, known: dict[Any, Measured],
) -> tuple[FinishedRuns, MeasuredRuns]:
    """The finished runs, measured once; a note on each run that is missing.

    Args:
        experiment: What is shown.
        workspace: Where its runs lie.
        runs: Planned runs of the experiment.
        failed: Why some of them failed.
        layout: Says what is measured.
        known: Keeps measured runs for the next experiment.
    """
    notes = []
    planned: dict[FinishedRun, PlannedRun] = {}
    read: list[FinishedRun] = []
    for run in runs:
        if run in failed:  # whether a folder holds this run was decided by records, before
            notes.append(f"Missing: {run.described} ({failed[run]}).")
            continue
        try:
            finished = read_run(run.folder, name_below(run.folder, workspace.runs_dir))
        except (DataError, ValueError) as error:
            notes.append(f"Missing: {run.described} ({error}).")
            continue
        planned[finished] = run
        read.append(finished)
    measured = measure(read, layout, known, must_have_runs=False)
    measured.notes[:0] = notes
    by_plan = {}
    for measured_run in measured.test:
        by_plan[planned[measured_run.run]] = measured_run
    validation = [run for run in planned.values() if run.split == "val"]
    return FinishedRuns(experiment, workspace, by_plan, validation), measured


def write_index(workspace: Workspace, experiments: Sequence[Experiment]) -> Path:
    """One page with links to all outcomes so far."""
    path = workspace.outcome_dir("index.html")
    written = []
    for experiment in experiments:
        if (workspace.outcome_dir(experiment.name) / "report.html").is_file():
            written.append(experiment)
    note = DEMO if workspace.demo else ""
    write_text(path, render("experiments.html", "Experiments", experiments=written, note=note))
    return path
