"""The end of an experiment: its tables and figures, the paper's beside them, on one page."""
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
from ...datasets.utils.files import make_folder, write_text
from ..report.figures.style import stamped
from ..report.gallery import NamedFigure, attempted
from ..report.load import read_run
from ..report.measure import Measured, measure
from ..report.metrics import POSTHOC
from ..report.page import Page, render, render_page
from ..report.table_model import Table
from ..report.thumbnails import thumbnails
from ..report.verdict import judge
from ..report.write import write_figures, write_tables
from .definition import Experiment
from .finished_runs import Material, swept_key
from .layouts import find_layout
from .plan import Place, PlannedRun
from .vs_published import slip_notes

logger = logging.getLogger(__name__)

DEMO = "Demo: tiles drawn by code and the embedded small CLIP. Not the paper's data, backbone or figures."
STAMP = "Demo: drawn tiles and the small CLIP, not the paper's data."  # fits the narrowest figure
REPEATS = 200  # of the bootstrap behind a verdict
MOST_RUNS = 12  # shown one by one on a page; more, and runs of a sweep, are the report's business


@dataclass(frozen=True)
class Outcome:
    tables: Sequence[Table]
    pictures: Sequence[str]  # names
    page: Path


def write_outcome(
    experiment: Experiment, place: Place, runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str],
    known: dict[PlannedRun, Measured],
) -> Outcome:
    """Writes tables.{md,tex,csv}, figures/ and report.html. `known` keeps what was measured, for the next one."""
    notes = [f"Of the SoC paper: {experiment.makes}."]
    repeats = REPEATS if ranks_methods(experiment) else 0
    posthoc = not {*POSTHOC, "seconds"}.isdisjoint(experiment.metrics)
    material = Material(experiment, place, measured_runs(runs, failed, known, notes, repeats, posthoc))
    if runs and not material.found:
        raise DataError(f"none of its {counted(len(runs), 'run')} is finished, so there is nothing to show")
    if material.stands_in:
        left_out = ["The paper's figures are left out: they are of other data."] if experiment.published else []
        notes = [DEMO, *left_out, *notes]
    elif experiment.published and material.other_settings:
        odd = ", ".join(f"{key} {value}" for key, value in material.other_settings.items())
        notes.append(f"The paper's figures are left out: these runs have other settings ({odd}).")
    else:
        notes += slip_notes(experiment.published)
    out = place.outcome(experiment.name)
    make_folder(out)
    tables, pictures = make(material)
    tables, pictures = labelled(tables, pictures, material.stands_in)
    write_tables(out, tables)
    pictures, problems = write_figures(out, pictures)
    notes += problems
    write_text(out / "report.html", render_page(make_page(material, tables, pictures, notes)))
    return Outcome(tables, [picture.name for picture in pictures], out / "report.html")


def measured_runs(
    runs: Sequence[PlannedRun], failed: Mapping[PlannedRun, str], known: dict[PlannedRun, Measured], notes: list[str],
    repeats: int, posthoc: bool = False,
) -> dict[PlannedRun, Measured]:
    """The finished runs, with bootstrap intervals where `repeats` asks for them; a note on each that is missing."""
    found = {}
    for run in tqdm(runs, desc="measuring", unit="run", leave=False, disable=len(runs) < 3):
        if run in failed or not run.finished:
            notes.append(f"Missing: {run.described} ({failed.get(run, 'not finished')}).")
            continue
        try:
            there = known[run].metrics if run in known else {}
            if not there or (repeats and np.isnan(there["ece"].low)) or (posthoc and "ece_fixed" not in there):
                known[run] = measure(read_run(run.folder), repeats=repeats, posthoc=posthoc)
            found[run] = known[run]
        except (DataError, ValueError) as error:
            notes.append(f"Missing: {run.described} ({error}).")
    return found


def make(material: Material) -> tuple[list[Table], list[NamedFigure]]:
    """What the experiment's layout makes of its runs. A picture that cannot be drawn costs none of the tables."""
    tables, pictures = find_layout(material.experiment.layout).show(material)
    if material.experiment.note:
        tables = [replace(table, notes=[*table.notes, material.experiment.note]) for table in tables]
    return tables, list(attempted(lambda: pictures))


def ranks_methods(experiment: Experiment) -> bool:
    return getattr(find_layout(experiment.layout), "RANKS_METHODS", False)


def labelled(
    tables: Sequence[Table], pictures: Sequence[NamedFigure], demo: bool,
) -> tuple[list[Table], list[NamedFigure]]:
    """In a demo every table and figure says so, wherever it is copied to."""
    if not demo:
        return list(tables), list(pictures)
    tables = [replace(table, title=f"Demo: {table.title}", notes=[DEMO, *table.notes]) for table in tables]
    return tables, [
        replace(picture, caption=f"{picture.caption} {DEMO}", figure=stamped(picture.figure, STAMP))
        for picture in pictures
    ]


def make_page(material: Material, tables: Sequence[Table], pictures: Sequence[NamedFigure], notes: list[str]) -> Page:
    verdicts = []
    if ranks_methods(material.experiment):
        verdicts = [v for comparison in material.comparisons() if (v := judge(comparison, REPEATS))]
    shown = list(material.found.values())
    if shown and (len(shown) > MOST_RUNS or swept_key(material.experiment)):
        folder = os.path.commonpath([m.run.folder for m in shown])
        notes = [*notes, f"Its {counted(len(shown), 'run')} one by one: {tool('report')} {folder}"]
        shown = []
    pictured = {str(m.run.folder): thumbnails(m.run, m.mistakes) for m in shown}
    title = f"Demo: {material.experiment.title}" if material.stands_in else material.experiment.title
    return Page(verdicts, tables, pictures, shown, pictured, notes, title)


def write_index(place: Place, experiments: Sequence[Experiment]) -> Path:
    """One page that leads to all outcomes written so far."""
    path = place.outcome("index.html")
    written = [e for e in experiments if (place.outcome(e.name) / "report.html").is_file()]
    write_text(path, render("experiments.html", "Experiments", experiments=written, note=DEMO if place.demo else ""))
    return path
