"""An experiment as its yaml file in configs/experiments defines it: its runs and what they make.

Imports neither torch nor matplotlib, so that the list of experiments and a misspelt name are
answered at once. Where a function takes `where`, messages name the file by it.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tabulate import tabulate

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError, UnknownNameError, UserError
from ...datasets.utils.files import read_yaml
from ...datasets.utils.registry import nearest
from ..config.build import CONFIGS, dataset_file_of
from ..config.layers import dataset_layers
from ..registry import TRAINER_REGISTRY, ZERO_SHOT, find_method, method_key, registered_name
from ..report import published
from .layouts import layout_fields

FOLDER = CONFIGS / "experiments"
# The order of `all`: experiments whose runs many others share come first.
ORDER = (
    "table1", "shift", "two_steps", "ace", "sals", "selective", "reliability", "class_pairs",
    "seeds", "normalisation", "lambda", "delta", "scaling", "prompts", "coop", "backbones",
    "complexity", "theory", "family", "posthoc", "combine", "pareto", "verify", "online",
    "streams", "descriptions", "corruptions",
)

# Settings of a data set with a root of its own that may be written without DATASET.
PLACE_SETTINGS = ("DATASET.LABEL", "DATASET.COLUMNS", "DATASET.CLASSNAMES")

# Settings of a CoOp prompt that the plan decides -> the field that says them.
PLANNED_OF_COOP: Mapping[str, str] = {"SEED": "seeds", "DATASET.NUM_SHOTS": "shots"}

# What a field of each type must be, and how a message calls it.
VALID: dict[str, tuple[Any, str]] = {
    "Sequence": ((list, tuple), "a list"),
    "Mapping": (dict, "field: value pairs"),
    "str": (str, "text"),
}


@dataclass(frozen=True)
class DatasetPlace:
    """A data set that is not below the data root of the others, such as a user's own images.

    In a yaml file it is `{table: /lab/ham}`, or with settings `{table: /lab/ham, label: HAM10000,
    columns: "image=path label=dx"}`.

    Attributes:
        name: What the experiment and `--only` call it.
        reader: What `build_cfg` takes for a data set, such as `table`.
        root: Data root of the data set.
        settings: Further settings on this data set, as (KEY, value) pairs.
    """

    name: str
    reader: str
    root: str
    settings: tuple[tuple[str, object], ...] = ()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class RunGroup:
    """Methods that run at every combination of swept values, from one or several prompts.

    Attributes:
        methods: Names of the methods.
        sweep: The values of each swept setting, by its key.
        datasets: The experiment's data sets on which these methods run; () = all.
        shots: The prompts: 0 is the hand-written one, n a CoOp prompt that is learnt from n images
            per class.
    """

    methods: Sequence[str]
    sweep: Mapping[str, Sequence] = field(default_factory=dict)
    datasets: Sequence[str] = ()
    shots: Sequence[int] = (0,)


@dataclass(frozen=True)
class Demo:
    """The embedded data that replaces an experiment's data sets with --demo.

    Attributes:
        datasets: Names of the embedded data sets.
        coop: Further settings of the CoOp prompts.
        runs: Groups of runs in place of the experiment's, where its settings do not fit the
            embedded data; () keeps those of the experiment.
        images: Number of test images per run without --limit.
    """

    datasets: Sequence[str]
    coop: Mapping[str, object] = field(default_factory=dict)
    runs: Sequence[RunGroup] = ()
    images: int = 144  # six per class


DEMO = Demo(["landcover"])  # of an experiment that names none


@dataclass(frozen=True)
class Experiment:
    """One table or figure. The fields are documented in configs/experiments/README.md."""

    name: str
    title: str
    layout: str | Mapping[str, Any]
    backbones: Sequence[str]
    datasets: Sequence[str | DatasetPlace]
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
        """The methods of all groups of runs, each once."""
        methods: dict[str, None] = {}
        for group in self.runs:
            for method in group.methods:
                methods[method] = None
        return list(methods)


def names() -> list[str]:
    """All experiments in configs/experiments, those of ORDER first."""
    stems = {path.stem for path in FOLDER.glob("*.yaml")}
    ordered = [name for name in ORDER if name in stems]
    return ordered + sorted(stems - set(ORDER))


def list_experiments() -> str:
    """All experiments as a table: name, title, and what each makes.

    The row of a file that cannot be read has the reason instead.
    """
    rows = []
    for name in names():
        try:
            content = read_yaml(experiment_file(name))
        except ConfigError as error:
            rows.append([name, str(error), ""])
            continue
        rows.append([name, content.get("title", ""), content.get("makes", "")])
    return tabulate(rows, headers=["name", "shows", "makes"], disable_numparse=True)


def experiment_file(name: str) -> Path:
    """The file of an experiment, by its name in configs/experiments or by its path."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if path.stem in names() and path.resolve().parent != FOLDER:
            raise ConfigError(f"{path} has the name of an experiment in configs/experiments, and "
                              f"their tables would be written to one folder: rename the file")
        if not path.is_file():
            raise ConfigError(f"there is no experiment file {path}")
        return path
    if name not in names():
        raise UnknownNameError(f"unknown experiment '{name}'.{nearest(name, names())} Known: "
                               f"{', '.join(names())}; or all, list, or the path of a yaml file.")
    return FOLDER / f"{name}.yaml"


def read_experiment(name: str) -> Experiment:
    """The experiment of a name or of the path of a yaml file."""
    path = experiment_file(name)
    return parse_experiment(path.stem, read_yaml(path), path)


def read_all_experiments() -> tuple[dict[str, Experiment], dict[str, str]]:
    """Reads all files of configs/experiments.

    Returns:
        The experiments by name, and for each file that is not a valid experiment the reason. One
        bad file does not keep the others from being computed and summarised.
    """
    experiments = {}
    problems = {}
    for name in names():
        try:
            experiments[name] = read_experiment(name)
        except UserError as error:
            problems[name] = str(error)
    return experiments, problems


def add(experiment: Experiment, names: Sequence[str]) -> Experiment:
    """The experiment with further methods and data sets.

    A method joins every group of runs, at the group's swept values, but not those groups that sweep
    the settings of another method.

    Args:
        experiment: The experiment, which is not changed.
        names: Methods and data sets in any spelling; the name decides which it is.
    """
    methods = []
    datasets = []
    for name in names:
        method = find_method(name)
        if method:
            methods.append(method.__name__)
        else:
            datasets.append(find_dataset(name, TRAINER_REGISTRY))

    groups = []
    joined = False
    for group in experiment.runs:
        extended = without_duplicates([*map(registered_name, group.methods), *methods])
        if not sweeps_method_settings(group) and extended != list(group.methods):
            group = replace(group, methods=extended)
            joined = True
        groups.append(group)
    if methods and not joined:
        groups.append(RunGroup(methods))
    all_datasets = list(dict.fromkeys([*experiment.datasets, *datasets]))
    return replace(experiment, runs=groups, datasets=all_datasets)


def zero_shot_only(experiment: Experiment) -> Experiment:
    """The experiment with its zero-shot runs of the first seed: a first look that needs no views.
    """
    groups = []
    for group in experiment.runs:
        methods = [name for name in group.methods if method_key(name) == method_key(ZERO_SHOT)]
        if methods:
            groups.append(replace(group, methods=methods))
    if not groups:
        raise ConfigError(
            f"--quick runs zero-shot alone, and {experiment.name} has no zero-shot runs"
        )
    return replace(experiment, runs=groups, seeds=experiment.seeds[:1])


def sweeps_method_settings(group: RunGroup) -> bool:
    """Whether a group sweeps settings of one method. Every method takes TRAINER.REGULARISERS."""
    return any(key.startswith("TRAINER.") and key != "TRAINER.REGULARISERS" for key in group.sweep)


def without_duplicates(names: Iterable[str]) -> list[str]:
    """The names in their order, each once."""
    return list(dict.fromkeys(names))


def parse_experiment(name: str, content: dict, source: Path) -> Experiment:
    """The experiment in a yaml file's content. A ConfigError names the invalid field."""
    where = f"experiment {source}"
    demo = DEMO
    if "demo" in content:
        demo = build(Demo, content["demo"], f"demo in {where}")
    demo = replace(demo, runs=parse_run_groups(demo.runs, f"demo in {where}"))
    runs = parse_run_groups(content.get("runs", []), where)
    if isinstance(content.get("datasets"), list):
        content = {**content, "datasets": parse_datasets(content["datasets"], where)}
    experiment = build(Experiment, {**content, "name": name, "demo": demo, "runs": runs}, where)
    check_experiment(experiment, where)
    return experiment


def parse_datasets(entries: Sequence[Any], where: str) -> list[str | DatasetPlace]:
    """The data sets of an experiment: names, and mappings for those with a root of their own."""
    datasets: list[str | DatasetPlace] = []
    places = []
    for entry in entries:
        if isinstance(entry, dict):
            place = parse_place(entry, where)
            places.append(place)
            datasets.append(place)
        else:
            datasets.append(entry)
    names = [str(dataset) for dataset in datasets]
    for place in places:
        if names.count(place.name) > 1:
            raise ConfigError(
                f"datasets in {where} has two that are called {place.name}: give one a "
                f"label, such as {{{place.reader}: {place.root}, label: Mine}}"
            )
    return datasets


def parse_place(entry: Mapping[Any, Any], where: str) -> DatasetPlace:
    """`{table: /lab/ham}`; other keys are settings, those of DATASET also as `columns`, `label` …
    """
    readers = {}
    settings: dict[str, object] = {}
    for key, value in entry.items():
        setting = key if "." in str(key) else f"DATASET.{str(key).upper()}"
        if setting in PLACE_SETTINGS or "." in str(key):
            settings[setting] = value
        else:
            readers[str(key)] = value
    if len(readers) != 1 or not isinstance(next(iter(readers.values())), str):
        optional = [key.rpartition(".")[2].lower() for key in PLACE_SETTINGS]
        raise ConfigError(
            f"datasets in {where} has {dict(entry)!r}; it must be a data set with its "
            f"folder, such as {{table: /lab/ham}}, and optionally {', '.join(optional)}"
        )
    reader, root = next(iter(readers.items()))
    reader = find_dataset(reader)
    name = str(settings.get("DATASET.LABEL") or "")
    if not name and dataset_class(reader).folder:
        name = reader
    if not name:
        name = Path(root).expanduser().resolve().name
    return DatasetPlace(name, reader, root, tuple(settings.items()))


def dataset_class(dataset: str) -> type[Any]:
    """The reader of what `find_dataset` returns."""
    name: object = ""
    for _, settings in dataset_layers(dataset):
        name = dict(settings).get("DATASET.NAME", name)
    return DATASET_REGISTRY.get(str(name))


def parse_run_groups(groups: Any, where: str) -> list[RunGroup]:
    """The groups of runs of an experiment."""
    if not isinstance(groups, list | tuple):
        raise ConfigError(f"runs in {where} must be a list of groups, each with methods")
    return [build(RunGroup, group, f"runs in {where}") for group in groups]


def build(kind: type[Any], content: Any, where: str) -> Any:
    """An instance of the dataclass `kind` from a mapping.

    Unknown, missing and mistyped fields are errors.
    """
    try:
        instance = kind(**content)
    except TypeError as error:  # "Experiment.__init__() got an unexpected keyword argument 'titel'"
        raise ConfigError(f"{where}: {str(error).rpartition('() ')[2]}") from None
    for item in fields(instance):
        value = getattr(instance, item.name)
        type_name = str(item.type).partition("[")[0]
        if type_name not in VALID:
            continue
        valid, words = VALID[type_name]
        if not isinstance(value, valid):
            raise ConfigError(f"{item.name} in {where} must be {words}, not {value!r}")
        if type_name == "Sequence" and item.name != "runs":
            for element in value:
                if isinstance(element, list | dict):
                    raise ConfigError(f"{item.name} in {where} must be a list of single values, "
                                      f"not {value!r}")
    return instance


def check_experiment(experiment: Experiment, where: str) -> None:
    """Refuses unknown names before anything is planned."""
    from ..report.figures.select import FIGURES  # imports torch and matplotlib
    from ..report.metrics import known_metrics

    try:
        layout = layout_fields(experiment.layout)
    except ValueError as error:
        raise ConfigError(f"layout in {where}: {error}") from error
    check_names("figures of the layout", layout.get("figures") or [], FIGURES, where)
    check_names("metrics", experiment.metrics, known_metrics(), where)
    check_names("published", experiment.published, published.tables_of(None), where)
    for dataset in (*experiment.datasets, *experiment.demo.datasets):
        if not isinstance(dataset, DatasetPlace):
            find_dataset(dataset)
    for method in experiment.methods:
        TRAINER_REGISTRY.get(registered_name(method))
    for group in (*experiment.runs, *experiment.demo.runs):
        for key, values in group.sweep.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"sweep in {where}: {key} must have a list of values, not "
                                  f"{values!r}")
    for key in (*experiment.coop, *experiment.demo.coop):
        if str(key).upper() in PLANNED_OF_COOP:
            raise ConfigError(f"coop in {where}: {key} is planned for each run, by "
                              f"{PLANNED_OF_COOP[str(key).upper()]}")
    if not experiment.seeds or not experiment.backbones:
        raise ConfigError(f"seeds or backbones in {where} is empty")
    columns = [table["columns"] for table in layout.get("tables") or []]
    if "across" in columns and not experiment.across:
        raise ConfigError(f"{where} lacks across: what the columns are (backbone, shots or a swept "
                          f"key)")


def check_names(field_name: str, values: Iterable[str], known: Collection[str], where: str) -> None:
    """Refuses values of a field that are not known.

    Args:
        field_name: Name of the field, as the file spells it.
        values: Values that the file has there.
        known: Values that are allowed there.
        where: Name of the file, for the message.
    """
    for value in values:
        if value not in known:
            raise ConfigError(f"{field_name} in {where}: '{value}' is none of {', '.join(known)}."
                              f"{nearest(value, known)}")


def find_dataset(name: str, methods: Iterable[str] = ()) -> str:
    """What `build_cfg` takes for a data set.

    Args:
        name: A name in configs/datasets, the path of a yaml file, or the registered name of a data
            set in any spelling.
        methods: Names of methods, if they are allowed too: the error lists them.

    Returns:
        A name in configs/datasets, the path of a yaml file, or the name of a registered data set
        that has no yaml file.
    """
    files = sorted(path.stem for path in (CONFIGS / "datasets").glob("*.yaml"))
    path = Path(name)
    if name in files or (path.suffix in (".yaml", ".yml") and path.is_file()):
        return name
    registered = DATASET_REGISTRY.find(name)
    if registered:
        file = dataset_file_of(registered)
        return file.stem if file else registered
    kinds = "method or data set" if methods else "data set"
    raise UnknownNameError(
        f"no {kinds} '{name}'.{nearest(name, [*methods, *DATASET_REGISTRY, *files])} "
        f"Known: {', '.join([*sorted(methods), *files])}; or what a plugin registers (--plugin "
        f"MODULE).")
