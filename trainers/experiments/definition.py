"""An experiment as its yaml file in configs/experiments defines it: which runs, and which table or figure they make.

Imports neither torch nor matplotlib, so that the list of experiments and a misspelt name are answered at once.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ...datasets.utils.errors import ConfigError, UnknownNameError
from ...datasets.utils.registry import nearest
from ..config.build import CONFIGS
from ..config.safe_yaml import read_yaml
from ..registry import TRAINER_REGISTRY
from ..report import published
from .layouts import LAYOUTS

FOLDER = CONFIGS / "experiments"
# The order of `all`: experiments whose runs many others share come first.
ORDER = (
    "table1", "shift", "two_steps", "ace", "sals", "selective", "reliability", "class_pairs", "seeds", "normalisation",
    "lambda", "delta", "scaling", "prompts", "coop", "backbones", "complexity", "theory", "family",
    "posthoc", "combine", "pareto",
)


@dataclass(frozen=True)
class RunGroup:
    """Methods that run at every combination of swept values, from hand-written or learnt prompts."""

    methods: Sequence[str]
    sweep: Mapping[str, Sequence] = field(default_factory=dict)  # KEY: values
    shots: Sequence[int] = (0,)  # 0: the hand-written prompt; n: a CoOp prompt learnt from n images per class


@dataclass(frozen=True)
class Demo:
    """The embedded data that replaces an experiment's data sets with --demo."""

    datasets: Sequence[str]
    coop: Mapping[str, object] = field(default_factory=dict)  # further settings of the CoOp prompts


@dataclass(frozen=True)
class Experiment:
    """One table or figure. The fields are documented in configs/experiments/README.md."""

    name: str
    title: str
    makes: str
    layout: str
    backbones: Sequence[str]
    datasets: Sequence[str]
    demo: Demo
    runs: Sequence[RunGroup] = ()
    seeds: Sequence[int] = (0,)
    metrics: Sequence[str] = ("accuracy", "ece")
    published: Sequence[str] = ()
    across: str = ""
    coop: Mapping[str, object] = field(default_factory=dict)
    study: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for group in self.runs for method in group.methods))

    @property
    def swept_key(self) -> str:
        """The setting whose values are compared; "" if none is swept."""
        return next((key for group in self.runs for key in group.sweep), "")


def names() -> list[str]:
    """All experiments, those of ORDER first."""
    found = {path.stem for path in FOLDER.glob("*.yaml")}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def list_experiments() -> str:
    """All experiments as a table: name, title, and what each makes."""
    contents = {name: read_yaml(experiment_file(name)) for name in names()}
    rows = [[name, content.get("title", ""), content.get("makes", "")] for name, content in contents.items()]
    return tabulate(rows, headers=["name", "shows", "makes"], disable_numparse=True)


def experiment_file(name: str) -> Path:
    if name not in names():
        raise UnknownNameError(
            f"unknown experiment '{name}'.{nearest(name, names())} Known: {', '.join(names())}; or all, or list."
        )
    return FOLDER / f"{name}.yaml"


def read_experiment(name: str) -> Experiment:
    path = experiment_file(name)
    return parse_experiment(name, read_yaml(path), path)


def parse_experiment(name: str, content: dict, source: Path) -> Experiment:
    """The experiment in a yaml file's content. A ConfigError names the invalid field."""
    content = dict(content)
    where = f"experiment {source}"
    content["demo"] = build(Demo, content.get("demo"), f"demo in {where}")
    groups = content.get("runs", [])
    if not isinstance(groups, list):
        raise ConfigError(f"runs in {where} must be a list of groups, each with methods")
    content["runs"] = [build(RunGroup, group, f"runs in {where}") for group in groups]
    experiment = build(Experiment, {"name": name, **content}, where)
    check(experiment, where)
    return experiment


def build(kind: type[Any], content: object, where: str) -> Any:
    """An instance of the dataclass `kind` from a mapping. Unknown, missing and mistyped fields are errors."""
    if not isinstance(content, dict):
        raise ConfigError(f"{where} must hold field: value pairs, not {content!r}")
    known = {item.name: item for item in fields(kind)}
    for key, value in content.items():
        if key not in known:
            raise ConfigError(f"unknown field '{key}' in {where}.{nearest(str(key), known)}")
        expected = str(known[key].type)
        for prefix, valid, words in (
            ("Sequence", list, "a list"), ("Mapping", dict, "field: value pairs"), ("str", str, "text"),
        ):
            if expected.startswith(prefix) and not isinstance(value, valid):
                raise ConfigError(f"{key} in {where} must be {words}, not {value!r}")
    missing = [
        key for key, item in known.items()
        if key not in content and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    return kind(**content)


def check(experiment: Experiment, where: str) -> None:
    """Refuses unknown names before anything is planned."""
    from ..report.metrics import METRICS  # imports torch

    if experiment.layout not in LAYOUTS:
        hint = nearest(experiment.layout, LAYOUTS)
        raise ConfigError(f"layout in {where} is '{experiment.layout}'.{hint} Known: {', '.join(LAYOUTS)}.")
    for metric in experiment.metrics:
        if metric not in METRICS:
            raise ConfigError(f"metrics in {where}: '{metric}' is none of {', '.join(METRICS)}")
    for table in experiment.published:
        if table not in published.tables_of(None):
            raise ConfigError(f"published in {where}: '{table}' is none of {', '.join(published.tables_of(None))}")
    for dataset in (*experiment.datasets, *experiment.demo.datasets):
        dataset_file(dataset)
    for method in experiment.methods:
        TRAINER_REGISTRY.get(method)
    for group in experiment.runs:
        for key, values in group.sweep.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"sweep in {where}: {key} must have a list of values, not {values!r}")
    for key, entries in (("seeds", experiment.seeds), ("backbones", experiment.backbones)):
        if not entries:
            raise ConfigError(f"{key} in {where} is empty")
    if experiment.layout == "averages" and not experiment.across:
        raise ConfigError(f"{where} lacks across: what the columns are (backbone, shots or a swept key)")


def dataset_file(dataset: str) -> Path:
    """The yaml file of a data set."""
    path = CONFIGS / "datasets" / f"{dataset}.yaml"
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise UnknownNameError(f"no data set file {path.name}.{nearest(dataset, known)} Known: {', '.join(known)}.")
    return path
