"""An experiment as its yaml file in configs/experiments tells it: which runs, and what is made of them."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

from ...datasets.utils.errors import ConfigError, UnknownNameError
from ...datasets.utils.registry import nearest
from ..config.build import CONFIGS
from ..config.safe_yaml import read_yaml
from ..registry import TRAINER_REGISTRY
from ..report import published
from ..report.metrics import METRICS
from .layouts import layout_names

FOLDER = CONFIGS / "experiments"
# The order in which `all` goes through them: what many others share comes first.
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
    shots: Sequence[int] = (0,)  # 0: the hand-written prompt; n: a CoOp prompt learnt from n images a class


@dataclass(frozen=True)
class Demo:
    """What stands in for the file_datasets where an experiment is shown on embedded material."""

    datasets: Sequence[str]
    coop: Mapping[str, object] = field(default_factory=dict)  # further settings of the CoOp prompts


@dataclass(frozen=True)
class Experiment:
    """One table or figure."""

    name: str
    title: str
    makes: str  # which table or figure of the paper, or that the paper has none
    layout: str  # how results are arranged: a file in layouts/
    backbones: Sequence[str]
    datasets: Sequence[str]  # by the names of their files in configs/datasets
    demo: Demo
    runs: Sequence[RunGroup] = ()
    seeds: Sequence[int] = (0,)
    metrics: Sequence[str] = ("accuracy", "ece")
    published: Sequence[str] = ()  # tables of published.json that it is compared with
    across: str = ""  # averages: what the columns are: backbone, shots, or a swept key
    coop: Mapping[str, object] = field(default_factory=dict)  # settings of the CoOp prompts
    study: Mapping[str, object] = field(default_factory=dict)  # what a layout computes besides runs
    note: str = ""  # what a reader of its tables must know

    @property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(method for group in self.runs for method in group.methods))


def names() -> list[str]:
    """All experiments, those of ORDER first."""
    found = {path.stem for path in FOLDER.glob("*.yaml")}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def read_experiment(name: str) -> Experiment:
    if name not in names():
        raise UnknownNameError(
            f"unknown experiment '{name}'.{nearest(name, names())} Known: {', '.join(names())}; or all, or list."
        )
    path = FOLDER / f"{name}.yaml"
    return parse_experiment(name, read_yaml(path), path)


def parse_experiment(name: str, content: dict, source: Path) -> Experiment:
    """The experiment in a yaml's content; a ConfigError names the field that cannot work."""
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


def build(kind: type, content: object, where: str):
    """A dataclass out of a mapping; unknown, missing and misshapen fields are errors that say so."""
    if not isinstance(content, dict):
        raise ConfigError(f"{where} must hold field: value pairs, not {content!r}")
    known = {item.name: item for item in fields(kind)}
    for key, value in content.items():
        if key not in known:
            raise ConfigError(f"unknown field '{key}' in {where}.{nearest(str(key), known)}")
        wanted = str(known[key].type)
        shape = list if wanted.startswith("Sequence") else dict if wanted.startswith("Mapping") else object
        if not isinstance(value, shape) or (wanted == "str" and not isinstance(value, str)):
            words = {list: "a list", dict: "field: value pairs"}.get(shape, "text")
            raise ConfigError(f"{key} in {where} must be {words}, not {value!r}")
    missing = [
        key for key, item in known.items()
        if key not in content and item.default is MISSING and item.default_factory is MISSING
    ]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    return kind(**content)


def check(experiment: Experiment, where: str) -> None:
    """Refuses names that nobody knows, before anything is planned."""
    if experiment.layout not in (known := layout_names()):
        hint = nearest(experiment.layout, known)
        raise ConfigError(f"layout in {where} is '{experiment.layout}'.{hint} Known: {', '.join(known)}.")
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
    for key in ("seeds", "backbones"):
        if not getattr(experiment, key):
            raise ConfigError(f"{key} in {where} is empty")
    if experiment.layout == "averages" and not experiment.across:
        raise ConfigError(f"{where} lacks across: what the columns are (backbone, shots or a swept key)")


def dataset_file(dataset: str) -> Path:
    """The yaml of a data set."""
    path = CONFIGS / "datasets" / f"{dataset}.yaml"
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise UnknownNameError(f"no data set file {path.name}.{nearest(dataset, known)} Known: {', '.join(known)}.")
    return path
