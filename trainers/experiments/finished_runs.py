"""The finished runs of an experiment, measured."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..report.measure import Measured
from .definition import Experiment
from .layouts.build import is_demo
from .planned_run import PlannedRun
from .workspace import Workspace


@dataclass(frozen=True)
class FinishedRuns:
    """An experiment with the runs that are finished.

    Attributes:
        experiment: Definition of the experiment.
        workspace: Workspace in which it was computed.
        measured: On test images.
        validation: Planned runs on validation images that are finished.
    """

    experiment: Experiment
    workspace: Workspace
    measured: Mapping[PlannedRun, Measured]
    validation: Sequence[PlannedRun] = ()

    @property
    def is_demo(self) -> bool:
        return is_demo(self.experiment, self.workspace)

    @property
    def runs(self) -> list[Measured]:
        return list(self.measured.values())
