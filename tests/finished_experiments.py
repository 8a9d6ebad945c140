"""Experiments whose runs are random numbers, in folders that the report reads like real ones."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from promptcal.trainers.experiments.definition import Experiment, read_experiment
from promptcal.trainers.experiments.outcome import Outcome, build_layout, measure_runs, write_outcome
from promptcal.trainers.experiments.plan import Workspace, expand
from promptcal.trainers.experiments.planned_run import PlannedRun
from promptcal.trainers.experiments.verify import Verification
from promptcal.trainers.registry import method_info
from promptcal.trainers.report import published
from promptcal.trainers.report.measure import Measured

from made_runs import make_run, numbered


def make_planned(tmp_path: Path, run: PlannedRun, n: int, **settings: object) -> None:
    """The folder of a planned run."""
    changes: dict[str, object] = {}
    if run.shots and not method_info(run.method).trained:
        changes["model.prompt"] = {
            "kind": "learnt",
            "protocol": f"CoOp {run.shots} shots",
            "position": "end",
            "hash": f"{run.dataset} {run.seed}",
        }
        changes["names.prompt"] = f"CoOp {run.shots} shots"
    sweep = dict(run.variant)
    if "DATASET.CORRUPTION" in sweep:
        changes["data.corruption"] = sweep.pop("DATASET.CORRUPTION")
    if "DATASET.SEVERITY" in sweep:
        changes["data.severity"] = sweep.pop("DATASET.SEVERITY")
    if run.cfg.TEST.LIMIT:
        changes["data.subset"] = f"{n} of 10,000 images"
    corruption = f"{changes.get('data.corruption', '')} {changes.get('data.severity', '')}".strip()
    images = f"{run.dataset_name} {corruption}"
    make_run(
        tmp_path, run.method, run.dataset_name, run.seed, run.backbone, n=n,
        settings={**sweep, **settings}, folder=str(run.folder.relative_to(tmp_path)),
        changes=changes, images=images, names=numbered(images, n),
        clusters=numbered(run.dataset_name, n))


def plan_of(
    tmp_path: Path, name: str, workspace: Workspace | None = None,
    keep: Callable[[PlannedRun], bool] = lambda run: True, whole: bool = False, **settings: object,
) -> tuple[Experiment, Workspace, list[PlannedRun]]:
    """The plan of an experiment with a folder for each run.

    `whole`: on as many images as the data set has in papers, so that published cells are shown.
    """
    workspace = workspace or Workspace(output=tmp_path)
    experiment = read_experiment(name)
    plan = [run for run in expand(experiment, workspace) if keep(run)]
    for run in plan:
        n = 120
        if whole:
            n = int(published.find("datasets", "images", "", run.dataset_name).value)
        make_planned(tmp_path, run, n, **settings)
    return experiment, workspace, plan


def outcome_of(tmp_path: Path, name: str, *args: object, **kwargs: object) -> Outcome:
    """The outcome of an experiment of made-up runs; arguments as for `plan_of`."""
    experiment, workspace, plan = plan_of(tmp_path, name, *args, **kwargs)
    return write_outcome(experiment, workspace, plan, {}, {})


class FinishedRuns(NamedTuple):
    """An experiment with made-up runs, which are measured."""

    experiment: Experiment
    workspace: Workspace
    plan: list[PlannedRun]
    runs: list[Measured]

    @property
    def verification(self) -> Verification:
        return Verification(self.experiment, self.runs, self.workspace.demo)


def finished_runs(tmp_path: Path, name: str, *args: object, **kwargs: object) -> FinishedRuns:
    """The measured runs of an experiment; arguments as for `plan_of`."""
    experiment, workspace, plan = plan_of(tmp_path, name, *args, **kwargs)
    layout = build_layout(experiment, workspace)
    measured = measure_runs(workspace, plan, {}, layout, {})
    return FinishedRuns(experiment, workspace, plan, measured.test)
