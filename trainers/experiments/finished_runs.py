"""Measured runs arranged as a table wants them: rows of methods and settings, columns of data sets."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...datasets.base import dataset_info, dataset_order
from ..registry import method_info
from ..report import published as paper
from ..report.comparison import Comparison, arrange, non_default_settings, row_of, show_setting
from ..report.measure import Measured
from ..report.metrics import METRICS
from .definition import Experiment
from .plan import Place, PlannedRun

ANY = "*"  # in the place of a swept setting: all that are swept


@dataclass(frozen=True)
class Material:
    """What an outcome is made of: the runs that are finished, measured."""

    experiment: Experiment
    place: Place
    found: Mapping[PlannedRun, Measured]

    @property
    def compared(self) -> bool:
        """Whether the paper's figures belong beside these: never where other data stand in for the file_datasets."""
        return bool(self.experiment.published) and not self.stands_in and not self.other_settings

    @property
    def source(self) -> str:
        """Whose published figures stand beside these."""
        return paper.source_of(self.experiment.published[0]) if self.experiment.published else paper.SOC

    @cached_property
    def other_settings(self) -> dict[str, object]:
        """Settings of the runs that are not the paper's, beyond those that the experiment compares."""
        found = {}
        for run, measured in self.found.items():
            shown_anyway = {*run.variant, *(["MODEL.INIT_WEIGHTS"] if run.shots else [])}
            if not method_info(run.method).trained:  # its own settings are the experiment's
                odd = non_default_settings(measured.run)
                found |= {key: value for key, value in odd.items() if key not in shown_anyway}
        return found

    @property
    def stands_in(self) -> bool:
        """Whether embedded data take the file_datasets' place; what needs no data is the same everywhere."""
        return self.place.demo and bool(self.experiment.datasets)

    @property
    def backbones(self) -> list[str]:
        return list(dict.fromkeys(run.backbone for run in self.found))

    def where(self, fits: Callable[[PlannedRun], bool]) -> Material:
        return Material(self.experiment, self.place, {run: m for run, m in self.found.items() if fits(run)})

    def comparisons(self, key: str = "") -> Iterator[Comparison]:
        """One for each backbone."""
        return (self.comparison(backbone, key) for backbone in self.backbones)

    def comparison(self, backbone: str, key: str = "") -> Comparison:
        """The runs of a backbone, a row for each method and, with `key`, for each value of that setting and of those
        that vary with it, in the order of the experiment."""
        chosen = []
        for run, measured in self.found.items():
            if run.backbone == backbone:
                settings = measured.run.settings
                values = ", ".join(show_setting(swept, settings.get(swept)) for swept in run.variant)
                chosen.append((row_of(measured, values if key in run.variant or key == ANY else ""), measured))
        return arrange(chosen, backbone, backbone, key)


def in_percent(measured: Sequence[Measured], metric: str) -> list[float]:
    return [METRICS[metric].scale * m.metrics[metric].value for m in measured]


def mean(measured: Sequence[Measured], metric: str) -> float:
    return float(np.mean(in_percent(measured, metric)))


def listed(names: Iterable[str]) -> str:
    """Data sets as a sentence names them."""
    return ", ".join(dataset_info(name).label for name in sorted(names, key=dataset_order))


def swept_key(experiment: Experiment) -> str:
    """The setting whose values an experiment compares."""
    return next((key for group in experiment.runs for key in group.sweep), "")
