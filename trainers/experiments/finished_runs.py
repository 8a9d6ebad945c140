"""Finished runs of an experiment, measured, and arranged as tables need them: rows of methods and settings, columns of
data sets."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...datasets.base import dataset_info
from ..registry import method_info
from ..report import published as paper
from ..report.comparison import Comparison, arrange, non_default_settings
from ..report.measure import Measured
from ..report.metrics import METRICS
from .definition import Experiment
from .plan import PlannedRun, Workspace

ANY = "*"  # in place of a swept setting: every setting that a run sweeps


@dataclass(frozen=True)
class FinishedRuns:
    """An experiment with the runs that are finished."""

    experiment: Experiment
    workspace: Workspace
    measured: Mapping[PlannedRun, Measured]  # on test images
    validation: Sequence[Measured] = ()  # on validation images

    @property
    def is_demo(self) -> bool:
        """Whether embedded data replaces the experiment's; an experiment without data is the same everywhere."""
        return self.workspace.demo and bool(self.experiment.datasets)

    @property
    def backbones(self) -> list[str]:
        return list(dict.fromkeys(run.backbone for run in self.measured))

    @property
    def compared(self) -> bool:
        """Whether published results are shown next to these: not for other data or other settings."""
        return bool(self.experiment.published) and not self.is_demo and not self.other_settings

    @property
    def source(self) -> str:
        """Whose published figures are shown."""
        return paper.source_of(self.experiment.published[0]) if self.experiment.published else paper.SOC

    @cached_property
    def other_settings(self) -> dict[str, object]:
        """Non-default settings of the runs, other than those that the experiment compares."""
        found: dict[str, object] = {}
        for run, measured in self.measured.items():
            found |= {"test images": measured.run.part} if measured.run.part else {}
            compared = {*run.variant, *(["MODEL.INIT_WEIGHTS"] if run.shots else [])}
            if not method_info(run.method).trained:  # whose settings are part of the experiment
                settings = non_default_settings(measured.run)
                found |= {key: value for key, value in settings.items() if key not in compared}
        return found

    def comparisons(self, key: str = "") -> list[Comparison]:
        """The runs of each backbone: a row per method and, with `key`, per value of that setting and of those that are
        swept with it, in the order of the experiment."""
        chosen: dict[str, list[tuple[Measured, Collection[str]]]] = {}
        for run, measured in self.measured.items():
            swept = run.variant if key in run.variant or key == ANY else ()
            chosen.setdefault(run.backbone, []).append((measured, swept))
        return [arrange(runs, backbone, backbone, key) for backbone, runs in chosen.items()]


def in_percent(measured: Sequence[Measured], metric: str) -> list[float]:
    return [METRICS[metric].scale * m.value(metric) for m in measured]


def listed(names: Iterable[str]) -> str:
    """Data sets by their labels, for a sentence."""
    return ", ".join(dataset_info(name).label for name in sorted(names, key=lambda name: dataset_info(name).order))
