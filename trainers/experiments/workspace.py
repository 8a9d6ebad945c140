"""Where an experiment's data is read and its results are written, and settings of all its runs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..vlm.openai import SMALL
from .definition import DatasetPlace, Experiment, RunGroup


@dataclass(frozen=True)
class Workspace:
    """Where data is read and results are written, and the command's settings for all runs."""

    root: str = ""  # folder of the data sets; "" = the default
    output: Path = Path("output")
    cache: Path | None = None  # folder of view features; None = below `output`
    demo: bool = False
    limit: int = 0  # test images per run; 0 = all
    opts: tuple = ()  # KEY VALUE pairs for every run
    backbone: str = ""  # replaces the experiments' backbones
    # Swept settings whose value is chosen on validation runs, which are planned too.
    choose: tuple[str, ...] = ()
    choose_by: str = "ece"  # the metric by which it is chosen
    overwrite: bool = False  # start again in folders that hold other runs than the planned ones
    baseline: str = ""  # the method that rows are compared with; "" = that of the paper's tables
    ours: tuple[str, ...] = ()  # the methods whose rows state the difference; () = all

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
