"""An experiment as its yaml file in configs/experiments defines it: which runs, and which table or figure they make.

Imports neither torch nor matplotlib, so that the list of experiments and a misspelt name are answered at once.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError, UnknownNameError
from ...datasets.utils.registry import nearest
from ..config.build import CONFIGS, dataset_file_of
from ..config.safe_yaml import read_yaml
from ..registry import TRAINER_REGISTRY, find_method, method_key
from ..report import published
from .layouts import layout_fields

FOLDER = CONFIGS / "experiments"
# The order of `all`: experiments whose runs many others share come first.
ORDER = (
    "table1", "shift", "two_steps", "ace", "sals", "selective", "reliability", "class_pairs", "seeds", "normalisation",
    "lambda", "delta", "scaling", "prompts", "coop", "backbones", "complexity", "theory", "family",
    "posthoc", "combine", "pareto", "verify", "online", "streams", "descriptions", "corruptions",
)

VALID: dict[str, tuple] = {  # what a field of this type must be
    "Sequence": ((list, tuple), "a list"), "Mapping": (dict, "field: value pairs"), "str": (str, "text"),
}


@dataclass(frozen=True)
class RunGroup:
    """Methods that run at every combination of swept values, from hand-written or learnt prompts."""

    methods: Sequence[str]
    sweep: Mapping[str, Sequence] = field(default_factory=dict)  # KEY: values
    datasets: Sequence[str] = ()  # only these of the experiment's; () = all
    shots: Sequence[int] = (0,)  # 0: the hand-written prompt; n: a CoOp prompt learnt from n images per class


@dataclass(frozen=True)
class Demo:
    """The embedded data that replaces an experiment's data sets with --demo."""

    datasets: Sequence[str]
    coop: Mapping[str, object] = field(default_factory=dict)  # further settings of the CoOp prompts
    runs: Sequence[RunGroup] = ()  # replace the experiment's, where its settings do not fit the embedded data
    images: int = 144  # test images per run without --limit: six per class


DEMO = Demo(["landcover"])  # of an experiment that names none


@dataclass(frozen=True)
class Experiment:
    """One table or figure. The fields are documented in configs/experiments/README.md."""

    name: str
    title: str
    layout: str | Mapping[str, Any]
    backbones: Sequence[str]
    datasets: Sequence[str]
    makes: str = ""
    demo: Demo = DEMO
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
    """The file of an experiment: of configs/experiments by its name, or any yaml file by its path."""
    if (path := Path(name)).suffix in (".yaml", ".yml"):
        if path.stem in names() and path.resolve().parent != FOLDER:
            raise ConfigError(f"{path} has the name of an experiment in configs/experiments, and their tables would be "
                              f"written to one folder: rename the file")
        if not path.is_file():
            raise ConfigError(f"there is no experiment file {path}")
        return path
    if name not in names():
        raise UnknownNameError(f"unknown experiment '{name}'.{nearest(name, names())} Known: {', '.join(names())}; or "
                               f"all, list, or the path of a yaml file.")
    return FOLDER / f"{name}.yaml"


def read_experiment(name: str) -> Experiment:
    path = experiment_file(name)
    return parse_experiment(path.stem, read_yaml(path), path)


def add(experiment: Experiment, names: Sequence[str]) -> Experiment:
    """The experiment with further methods and data sets, given by name. A method joins every group of runs, at its
    swept values, but those that sweep another method's own settings."""
    methods, datasets = [], []
    for name in names:
        if method := find_method(name):
            methods.append(method.__name__)
        else:
            datasets.append(find_dataset(name, TRAINER_REGISTRY))
    groups = [replace(group, methods=list(dict.fromkeys([*group.methods, *methods])))
              if all(key == "TRAINER.REGULARISERS" or not key.startswith("TRAINER.") for key in group.sweep) else group
              for group in experiment.runs]
    if methods and groups == list(experiment.runs):
        groups.append(RunGroup(methods))
    return replace(experiment, runs=groups, datasets=list(dict.fromkeys([*experiment.datasets, *datasets])))


def parse_experiment(name: str, content: dict, source: Path) -> Experiment:
    """The experiment in a yaml file's content. A ConfigError names the invalid field."""
    where = f"experiment {source}"
    demo = build(Demo, content["demo"], f"demo in {where}") if "demo" in content else DEMO
    demo = replace(demo, runs=run_groups(demo.runs, f"demo in {where}"))
    runs = run_groups(content.get("runs", []), where)
    experiment = build(Experiment, {**content, "name": name, "demo": demo, "runs": runs}, where)
    check(experiment, where)
    return experiment


def run_groups(groups: Any, where: str) -> list[RunGroup]:
    if not isinstance(groups, list | tuple):
        raise ConfigError(f"runs in {where} must be a list of groups, each with methods")
    return [build(RunGroup, group, f"runs in {where}") for group in groups]


def build(kind: type[Any], content: Any, where: str) -> Any:
    """An instance of the dataclass `kind` from a mapping. Unknown, missing and mistyped fields are errors."""
    try:
        made = kind(**content)
    except TypeError as error:  # "Experiment.__init__() got an unexpected keyword argument 'titel'"
        raise ConfigError(f"{where}: {str(error).rpartition('() ')[2]}") from None
    for item in fields(made):
        value = getattr(made, item.name)
        valid, words = VALID.get(str(item.type).partition("[")[0], (object, ""))
        if not isinstance(value, valid):
            raise ConfigError(f"{item.name} in {where} must be {words}, not {value!r}")
        if words == "a list" and item.name != "runs" and any(isinstance(one, list | dict) for one in value):
            raise ConfigError(f"{item.name} in {where} must be a list of single values, not {value!r}")
    return made


def check(experiment: Experiment, where: str) -> None:
    """Refuses unknown names before anything is planned."""
    from ..report.layout_figures import FIGURES  # imports torch and matplotlib
    from ..report.metrics import known_metrics

    try:
        layout = layout_fields(experiment.layout)
    except ValueError as error:
        raise ConfigError(f"layout in {where}: {error}") from error
    for field_name, values, known in (
        ("figures of the layout", layout.get("figures") or [], FIGURES),
        ("metrics", experiment.metrics, known_metrics()),
        ("published", experiment.published, published.tables_of(None)),
    ):
        for value in values:
            if value not in known:
                raise ConfigError(f"{field_name} in {where}: '{value}' is none of {', '.join(known)}."
                                  f"{nearest(value, known)}")
    for dataset in (*experiment.datasets, *experiment.demo.datasets):
        find_dataset(dataset)
    for method in experiment.methods:
        TRAINER_REGISTRY.get(method)
    for group in (*experiment.runs, *experiment.demo.runs):
        for key, values in group.sweep.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"sweep in {where}: {key} must have a list of values, not {values!r}")
    if not experiment.seeds or not experiment.backbones:
        raise ConfigError(f"seeds or backbones in {where} is empty")
    columns = [table["columns"] for table in layout.get("tables") or []]
    if "across" in columns and not experiment.across:
        raise ConfigError(f"{where} lacks across: what the columns are (backbone, shots or a swept key)")


def find_dataset(name: str, methods: Iterable[str] = ()) -> str:
    """What `build_cfg` takes for a data set: a name in configs/datasets, the path of a yaml file, or the registered
    name of a data set without a yaml, given in any spelling. The error also names `methods`, if they are allowed."""
    files = sorted(path.stem for path in (CONFIGS / "datasets").glob("*.yaml"))
    if name in files or (Path(name).suffix in (".yaml", ".yml") and Path(name).is_file()):
        return name
    if found := next((known for known in DATASET_REGISTRY if method_key(known) == method_key(name)), None):
        file = dataset_file_of(found)
        return file.stem if file else found
    raise UnknownNameError(
        f"no {'method or ' if methods else ''}data set '{name}'.{nearest(name, [*methods, *DATASET_REGISTRY, *files])} "
        f"Known: {', '.join([*sorted(methods), *files])}; or what a plugin registers (--plugin MODULE).")
