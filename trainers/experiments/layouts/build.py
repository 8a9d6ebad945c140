"""The layout of an experiment, from its yaml file's fields."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....datasets.utils.files import read_yaml
from ...config import CONFIGS
from ...report import published as paper
from ...report.choices import refers_to
from ...report.layout import BASELINE, Differences, Layout, TableSpec
from ..definition import Experiment
from ..workspace import Workspace
from . import layout_fields

DEMO = (
    "Demo: tiles drawn by code and the embedded small CLIP. Not the paper's data, backbone or "
    "figures."
)


def build_layout(experiment: Experiment, workspace: Workspace) -> Layout:
    """The layout of an experiment: which tables and figures are made of its runs.

    Args:
        experiment: The experiment with its yaml file's layout.
        workspace: What the command adds: the demo, a choice of values, the baseline.
    """
    fields = layout_fields(experiment.layout)
    demo = is_demo(experiment, workspace)
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
        source = paper.source_of(experiment.published[0])
    rows: list[str] = []
    for spec in tables:
        for key in spec.rows:
            if key not in rows:
                rows.append(key)
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
    return Differences(paper.BASELINE, workspace.ours, only_newer=True)


def is_demo(experiment: Experiment, workspace: Workspace) -> bool:
    """Whether embedded data replaces that of the experiment.

    Experiments without data, such as the count of operations, are the same in a demo.
    """
    return workspace.demo and bool(experiment.datasets)


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

    Args:
        experiment: Name of the experiment.
        table: The table in the yaml file, by field.
        names: Names of the tables before it.
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
        study["main"] = [registered_name(name) for name in study["main"]]
    return study


def registered_name(name: str) -> str:
    """The registered name of a data set that an experiment names by its file in configs/datasets.
    """
    file = CONFIGS / "datasets" / f"{name}.yaml"
    if not file.is_file():
        return name
    return str(read_yaml(file)["DATASET"]["NAME"])
