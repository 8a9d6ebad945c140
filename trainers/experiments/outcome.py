"""An experiment's outcome: its tables and figures, next to the published ones, on one page.

`write_outcome` makes the layout from the experiment's yaml file, measures the finished runs, and
has `report` write the page.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import DataError
from ...datasets.utils.files import make_folder, write_json, write_text
from ..report import published
from ..report.choices import refers_to
from ..report.core import Additions, MeasuredRuns, measure, report
from ..report.layout import BASELINE, Differences, Layout, TableSpec
from ..report.load import FinishedRun, name_below, read_run
from ..report.measure import Measured
from ..report.page import render
from ..report.table import Table
from .definition import Experiment, dataset_class, find_dataset
from .layouts import layout_fields
from .plan import Workspace
from .planned_run import PlannedRun
from .studies import complexity, theory_tables
from .verify import Verification

VERIFY = "verify.json"  # which the experiment of that name writes
DEMO = (
    "Demo: tiles drawn by code and the embedded small CLIP. Not the paper's data, backbone or "
    "figures."
)


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
    measured = measure_runs(workspace, runs, failed, layout, known)
    if runs and not measured.test:
        raise DataError(
            f"none of its {counted(len(runs), 'run')} is finished, so there is nothing to show"
        )
    out = workspace.outcome_dir(experiment.name)
    make_folder(out)
    if measured.test:
        count = counted(len(measured.test), "run")
        notes.append(f"Its {count} one by one: {tool('report')} {workspace.runs_dir.name}")
    additions = Additions(notes)
    study = layout_fields(experiment.layout).get("study", "")
    if study == "verify":
        verification = Verification(experiment, measured.test, is_demo=bool(layout.stamp))
        additions = verify_additions(verification, out, notes)
    elif study == "complexity":
        additions = Additions(notes, tables=complexity(experiment, is_demo=bool(layout.stamp)))
    elif study == "theory":
        additions = Additions(notes, tables=list(theory_tables(experiment, workspace)))
    written = report([], layout, out, additions, measured)
    return Outcome(written.tables, written.figures, written.page)


def verify_additions(verification: Verification, out: Path, notes: Sequence[str]) -> Additions:
    """Writes verify.json; its tables and its verdict are added to the page."""
    write_json(out / VERIFY, verification.record())
    note = f"{VERIFY} holds these results with versions and hardware, and no paths"
    if verification.is_demo:
        note += "."
    else:
        note += ": send it to the authors, or commit it (trainers/README.md)."
    return Additions(
        [*notes, note], tables=verification.tables(), verdict=verification.verdict())


def measure_runs(
    workspace: Workspace, runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str],
    layout: Layout, known: dict[Any, Measured],
) -> MeasuredRuns:
    """The finished runs, measured once; a note on each run that is missing.

    Args:
        workspace: Where the runs lie.
        runs: Planned runs of an experiment.
        failed: Why some of them failed.
        layout: Says what is measured.
        known: Keeps measured runs for the next experiment.
    """
    notes = []
    finished: list[FinishedRun] = []
    for run in runs:
        if run in failed:  # whether a folder holds this run was decided by records, before
            notes.append(f"Missing: {run.described} ({failed[run]}).")
            continue
        try:
            finished.append(read_run(run.folder, name_below(run.folder, workspace.runs_dir)))
        except (DataError, ValueError) as error:
            notes.append(f"Missing: {run.described} ({error}).")
    measured = measure(finished, layout, known, must_have_runs=False)
    measured.notes[:0] = notes
    return measured


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


def build_layout(experiment: Experiment, workspace: Workspace) -> Layout:
    """The layout of an experiment: which tables and figures are made of its runs."""
    fields = layout_fields(experiment.layout)
    demo = workspace.is_demo_of(experiment)
    title = experiment.title
    stamp = ""
    if demo:
        title = f"Demo: {title}"
        stamp = DEMO
    swept = first_swept_keys(experiment)
    tables = []
    names: list[str] = []
    for table in fields.get("tables") or []:
        name = table_name(experiment.name, table, names)
        names.append(name)
        tables.append(table_spec(experiment, table, name, swept))
    source = ""
    if experiment.published and not demo:
        source = published.source_of(experiment.published[0])
    rows: list[str] = []
    if any(spec.rows for spec in tables):
        rows = swept
    return Layout(
        tables=tables,
        figures=fields.get("figures") or (),
        title=title,
        rows=rows,
        verdict=bool(fields.get("verdict")),
        published=source,
        baseline=workspace.baseline or BASELINE,
        differences=differences_of(workspace),
        from_published=True,
        choose=chosen_settings(experiment, workspace),
        choose_by=workspace.choose_by,
        with_runs=False,
        note=experiment.note,
        stamp=stamp,
        study=study_of(experiment),
    )


def differences_of(workspace: Workspace) -> Differences:
    """Which rows state their difference from which method.

    Without --baseline they are those of the SoC paper: methods newer than O-TPT, compared with it.
    """
    if workspace.baseline:
        return Differences(workspace.baseline, workspace.ours, is_default=False)
    return Differences(published.BASELINE, workspace.ours, only_newer=True)


def first_swept_keys(experiment: Experiment) -> list[str]:
    """The settings whose values labels state: the first swept one of each group of runs."""
    keys: list[str] = []
    for group in experiment.runs:
        for key in group.sweep:
            if key not in keys:
                keys.append(key)
            break
    return keys


def table_name(experiment: str, table: Mapping[str, Any], names: list[str]) -> str:
    """The name of a table: that of the experiment, with `summary` or a number if there are several.
    """
    if table["columns"] in ("metric", "texts", "prompts"):
        return f"{experiment}_summary"
    if experiment in names:
        return f"{experiment}_{len(names) + 1}"
    return experiment


def table_spec(
    experiment: Experiment, table: Mapping[str, Any], name: str, swept: list[str]
) -> TableSpec:
    """The specification of one table of an experiment.

    Args:
        experiment: The experiment whose title, metrics and published tables it has.
        table: The table as the layout's yaml file has it.
        name: Name of the table, for its files and anchors.
        swept: Keys of the swept settings, which the rows may state.
    """
    columns = str(table["columns"])
    if columns == "across":
        columns = {"shots": "prompt"}.get(experiment.across, experiment.across)
    title = experiment.title
    if columns == "prompts":
        title = "ECE over initial prompts"
    rows: list[str] = []
    if table.get("rows") == "swept":
        rows = swept
    return TableSpec(
        name=name, title=title, columns=columns, rows=rows, metrics=experiment.metrics,
        published=experiment.published, per=str(table.get("per") or ""),
        states_texts=bool(table.get("texts")),
    )


def chosen_settings(experiment: Experiment, workspace: Workspace) -> list[str]:
    """The settings of --choose that this experiment sweeps."""
    names = []
    for name in workspace.choose:
        for group in experiment.runs:
            if any(refers_to(name, key) for key in group.sweep) and name not in names:
                names.append(name)
    return names


def study_of(experiment: Experiment) -> dict[str, Any]:
    """The field `study`, with data sets by their registered names."""
    study = dict(experiment.study)
    if "main" in study:
        study["main"] = [dataset_class(find_dataset(name)).__name__ for name in study["main"]]
    return study
