"""Where an experiment's data is read and its results are written, and settings of all its runs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..vlm.loading import SMALL
from .definition import DatasetPlace, Experiment, RunGroup


@dataclass(frozen=True)
class Workspace:
    """Where data is read and results are written, and the command's settings for all runs.

    Attributes:
        root: Folder of the data sets; "" = the default one.
        output: Folder of the results.
        cache: Folder of view features; None = a folder below `output`.
        demo: Whether embedded data replaces the data sets.
        limit: Number of test images per run; 0 = all.
        opts: KEY VALUE pairs for every run.
        backbone: Replaces the experiments' backbones; "" = none.
        choose: Swept settings whose value is chosen on validation runs, which are planned too.
        choose_by: The metric by which it is chosen.
        overwrite: Whether to start again in folders that hold other runs than the planned ones.
        baseline: The method that rows are compared with; "" = that of the paper's tables.
        ours: The methods whose rows state the difference; () = all.
    """

    root: str = ""
    output: Path = Path("output")
    cache: Path | None = None
    demo: bool = False
    limit: int = 0
    opts: tuple = ()
    backbone: str = ""
    choose: tuple[str, ...] = ()
    choose_by: str = "ece"
    overwrite: bool = False
    baseline: str = ""
    ours: tuple[str, ...] = ()

    @property
    def runs_dir(self) -> Path:
        """Where run folders lie; a demo has a folder of its own."""
        if self.demo:
            return self.output / "demo"
        return self.output

    @property
    def cache_dir(self) -> Path:
        """Where view features are stored."""
        return self.cache or self.runs_dir / "cache"

    def backbones(self, experiment: Experiment) -> list[str]:
        """The backbones that an experiment is run with."""
        if self.backbone:
            return [self.backbone]
        if self.demo:
            return [SMALL]
        return list(experiment.backbones)

    def datasets(self, experiment: Experiment) -> Sequence[str | DatasetPlace]:
        """The data sets that an experiment is run on."""
        if self.demo:
            return experiment.demo.datasets
        return experiment.datasets

    def run_groups(self, experiment: Experiment, dataset: str | DatasetPlace) -> list[RunGroup]:
        """The experiment's groups of runs on a data set."""
        groups = experiment.runs
        if self.demo and experiment.demo.runs:
            groups = experiment.demo.runs
        return [group for group in groups if not group.datasets or str(dataset) in group.datasets]

    def outcome_dir(self, name: str) -> Path:
        """Where the tables and figures of an experiment are written, by its name."""
        return self.runs_dir / "experiments" / name
