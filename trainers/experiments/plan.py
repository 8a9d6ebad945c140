"""From an experiment to its runs: what each run is, where it is stored, which runs share images."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

from yacs.config import CfgNode

from ...datasets import DATASET_REGISTRY, build_dataset
from ...datasets.download.verify import Finding, inspect
from ...datasets.file_dataset import FileDataset
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..config.build import CONFIGS, build_cfg
from ..config.names import backbone_name, path_safe
from ..config.run_folder import run_path
from ..config.settings import (
    Role,
    changed_settings,
    effective_settings,
    find_setting,
    setting_words,
)
from ..coop import CoOp, epochs_of
from ..registry import method_info, method_key
from ..report.choices import refers_to
from ..runs.record import canonical_json
from ..vlm.openai import SMALL
from ..vlm.prompt_files import checkpoint_path
from .definition import DatasetPlace, Experiment, RunGroup, find_dataset
from .run_state import RunState, run_state


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
        if self.demo:
            return self.output / "demo"
        return self.output

    @property
    def cache_dir(self) -> Path:
        return self.cache or self.runs_dir / "cache"

    def backbones(self, experiment: Experiment) -> list[str]:
        if self.backbone:
            return [self.backbone]
        if self.demo:
            return [SMALL]
        return list(experiment.backbones)

    def datasets(self, experiment: Experiment) -> Sequence[str | DatasetPlace]:
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
        return self.runs_dir / "experiments" / name


@dataclass(frozen=True)
class PlannedRun:
    """One run. Two runs with the same key are the same run, whichever experiments need them.

    The key is made of settings, because a plan must be possible before data and weights are there.
    Whether a folder holds the run is decided by its record: see `state`.

    Attributes:
        key: All settings that its predictions depend on, and those of the prompt that it starts
            from.
        folder: Where it is stored.
        method: Name of the trainer.
        dataset: Data set as the experiment names it.
        backbone: Name of the backbone.
        seed: Its seed.
        variant: The swept settings with the values of this run.
        shots: Labelled images per class behind the prompt; 0 for a hand-written prompt.
        cfg: All settings.
        prompt: The CoOp run that trains the prompt; None for a hand-written prompt.
        overwrite: Start again if the folder holds another run.
    """

    key: str = field(repr=False)
    folder: Path = field(compare=False)
    method: str = field(compare=False)
    dataset: str = field(compare=False)
    backbone: str = field(compare=False)
    seed: int = field(compare=False)
    variant: Mapping[str, object] = field(compare=False)
    shots: int = field(compare=False)
    cfg: CfgNode = field(compare=False, repr=False)
    prompt: PlannedRun | None = field(compare=False, default=None, repr=False)
    overwrite: bool = field(compare=False, default=False)

    @property
    def state(self) -> RunState:
        """What its folder holds, compared with the run by their records."""
        if self.prompt is None:
            return run_state(self.key, self.cfg)
        if not self.prompt.finished or not self.prompt.checkpoint.is_file():
            # The prompt is still to be trained. Until then it is not known which prompt a run in
            # the folder must have started from.
            return RunState()
        return run_state(self.key, self.settings)

    @property
    def finished(self) -> bool:
        """Whether its folder holds the results of this run and of no other."""
        return self.state.finished

    @property
    def refusal(self) -> str:
        """Why the run is not computed, as one line: its folder holds another run.

        "" if it may be.
        """
        if self.overwrite:
            return ""
        return self.state.conflict

    @property
    def is_left(self) -> bool:
        """Whether the run is to be computed."""
        state = self.state
        if state.finished:
            return False
        return self.overwrite or not state.conflict

    @property
    def checkpoint(self) -> Path:
        """Where a run that trains a prompt stores it."""
        return checkpoint_path(self.folder, epochs_of(self.cfg))

    @property
    def settings(self) -> CfgNode:
        """All settings; of a run that starts from a trained prompt with its checkpoint."""
        if self.prompt is None:
            return self.cfg
        cfg = self.cfg.clone()
        cfg.defrost()
        cfg.MODEL.INIT_WEIGHTS = str(self.prompt.checkpoint)
        cfg.freeze()
        return cfg

    @property
    def dataset_name(self) -> str:
        return self.cfg.DATASET.NAME

    @property
    def split(self) -> str:
        """test or val."""
        return self.cfg.TEST.SPLIT

    @property
    def data_state(self) -> Finding | None:
        """The state of its data; None for embedded data, which is always there."""
        return inspect_data(*self.data_place)

    @property
    def data_place(self) -> tuple[str, str, str, str]:
        """The data set, its root, and how it is read: DATASET.COLUMNS and DATASET.CLASSNAMES."""
        data = self.cfg.DATASET
        return self.dataset_name, data.ROOT, data.COLUMNS, data.CLASSNAMES

    @property
    def uses_views(self) -> bool:
        """Whether it uses all views of an image, not only the plain one."""
        return method_info(self.method).tuned

    @property
    def trains_prompt(self) -> bool:
        """Whether it learns a prompt from labelled images."""
        return method_info(self.method).trained

    @property
    def num_views(self) -> int:
        """Views of each image."""
        if self.uses_views:
            return self.cfg.TTA.VIEWS
        return 1

    @cached_property
    def images_key(self) -> str:
        """Equal for runs that encode the same images with the same image tower."""
        return self.key_of_settings(Role.DATA)

    @cached_property
    def features_key(self) -> tuple[str, int]:
        """Equal for runs that share view features: the same images and the same views of them."""
        return self.key_of_settings(Role.DATA, Role.VIEWS), self.num_views

    def key_of_settings(self, *roles: Role) -> str:
        """The settings with some roles, and those of the image tower, as text."""
        relevant = {}
        for name, value in effective_settings(self.cfg).items():
            is_tower = name in ("MODEL.BACKBONE.NAME", "MODEL.PREC")
            if is_tower or find_setting(name).role in roles:
                relevant[name] = value
        return canonical_json(relevant)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Test or validation images, and classes."""
        images, classes = dataset_size(*self.data_place, self.split)
        if self.cfg.TEST.LIMIT:
            images = min(self.cfg.TEST.LIMIT, images)
        return images, classes

    @property
    def described(self) -> str:
        parts = []
        for key, value in self.variant.items():
            parts.append(setting_words(key, value))
        if self.shots and self.trains_prompt:
            parts.append(f"{self.shots} shots")
        elif self.shots:
            parts.append(f"from {self.shots} shots")
        if self.split == "val":
            parts.append("validation images")
        setting = ""
        if parts:
            setting = f" ({', '.join(parts)})"
        where = f"{self.shown_dataset}, {self.shown_backbone}"
        return f"{self.method}{setting} on {where}, seed {self.seed}"

    @property
    def shown_dataset(self) -> str:
        """The data set without the folder of its yaml file: pages name it."""
        path = Path(self.dataset)
        if path.suffix in (".yaml", ".yml"):
            return path.stem
        return self.dataset

    @property
    def shown_backbone(self) -> str:
        """The backbone without the folder of its file: pages name it."""
        return self.cfg.MODEL.BACKBONE.LABEL or backbone_name(self.backbone)


# Runs on the same images, in the order in which one process computes them.
WorkGroup = list[PlannedRun]


def work_groups(runs: Iterable[PlannedRun]) -> list[WorkGroup]:
    """The runs by the images that they encode.

    A group is independent of the others. It holds the prompts that its runs start from, first. Runs
    of the plain view alone come last.
    """
    groups: dict[str, WorkGroup] = {}
    for run in runs:
        first = run.prompt or run
        groups.setdefault(first.images_key, []).append(run)
    for group in groups.values():
        group.sort(key=lambda run: (not run.trains_prompt, not run.uses_views))
    return list(groups.values())


def expand(experiment: Experiment, workspace: Workspace) -> list[PlannedRun]:
    """All runs of an experiment, each once.

    A prompt comes before the runs that start from it. Where a value is to be chosen, each test run
    is followed by its validation run, unless the data set has no validation images.
    """
    if workspace.demo and not workspace.limit:
        workspace = replace(workspace, limit=experiment.demo.images)
    coop = dict(experiment.coop)
    if workspace.demo:
        coop.update(experiment.demo.coop)
    runs: dict[PlannedRun, None] = {}
    places = itertools.product(
        workspace.backbones(experiment), workspace.datasets(experiment), experiment.seeds)
    for backbone, dataset, seed in places:
        planner = Planner(workspace, dataset, backbone, seed, coop)
        for group in workspace.run_groups(experiment, dataset):
            for run in planner.expand_group(group):
                runs.setdefault(run)
    return list(runs)


@dataclass(frozen=True)
class Planner:
    """Plans runs on one data set with one backbone and one seed."""

    workspace: Workspace
    dataset: str | DatasetPlace
    backbone: str
    seed: int
    coop: Mapping[str, object]  # settings of the CoOp prompts

    def expand_group(self, group: RunGroup) -> Iterator[PlannedRun]:
        """Each method at every combination of swept values, from every kind of prompt."""
        for shots, *values in itertools.product(group.shots, *group.sweep.values()):
            variant = dict(zip(group.sweep, values, strict=True))
            prompt = None
            if shots:
                prompt = self.plan_prompt(shots)
                yield prompt
            for method in group.methods:
                run = self.plan_run(method, variant, prompt)
                yield run
                has_validation_images = DATASET_REGISTRY.get(run.dataset_name).has_val
                if self.is_chosen(variant) and has_validation_images:
                    yield self.plan_run(method, variant, prompt, split="val")

    def plan_prompt(self, shots: int) -> PlannedRun:
        """The CoOp run that trains the prompt from this many labelled images per class."""
        cfg = self.configure(CoOp.__name__, {"DATASET.NUM_SHOTS": shots, **self.coop})
        return self.planned(cfg, {}, shots, None)

    def plan_run(
        self, method: str, variant: Mapping[str, object], prompt: PlannedRun | None,
        split: str = "",
    ) -> PlannedRun:
        """A run of a method.

        Args:
            method: Its name.
            variant: The swept settings with the values of this run.
            prompt: The CoOp run that trains the prompt; None for a hand-written prompt.
            split: test or val; "" for that of the settings.
        """
        settings = {}
        for key, value in variant.items():
            settings[key] = fill_in(value, self.workspace, self.dataset)
        if split:
            settings["TEST.SPLIT"] = split
        cfg = self.configure(method, settings)
        if prompt is None:
            return self.planned(cfg, variant, 0, None)
        # The checkpoint's path is too long for a folder's name, so the tag says how it was trained.
        cfg = place_run(cfg, self.workspace, self.prompt_tag(prompt))
        return self.planned(cfg, variant, prompt.shots, prompt)

    def planned(
        self, cfg: CfgNode, variant: Mapping[str, object], shots: int, prompt: PlannedRun | None,
    ) -> PlannedRun:
        """The run of a config; see `PlannedRun`."""
        prompt_key = prompt.key if prompt else ""
        return PlannedRun(
            key=canonical_json([effective_settings(cfg), prompt_key]),
            folder=Path(cfg.OUTPUT_DIR),
            method=cfg.TRAINER.NAME,
            dataset=str(self.dataset),
            backbone=self.backbone,
            seed=self.seed,
            variant=variant,
            shots=shots,
            cfg=cfg,
            prompt=prompt,
            overwrite=self.workspace.overwrite,
        )

    def configure(self, method: str, settings: Mapping[str, object]) -> CfgNode:
        """The config of a method on this data set, with this backbone and seed."""
        return configure(self.workspace, method, self.dataset, self.backbone, self.seed, settings)

    def prompt_tag(self, prompt: PlannedRun) -> str:
        """Names a trained prompt in the folders of the runs that start from it.

        Settings of the training that differ from CoOp's are part of it. A prompt that is trained
        with other settings therefore gives other folders.
        """
        parts = [f"CoOp-{prompt.shots}-shots"]
        for key, (_, value) in changed_settings(prompt.cfg).items():
            if key != "DATASET.NUM_SHOTS" and find_setting(key).role is not Role.DATA:
                parts.append(f"{key.rpartition('.')[2]}-{value}")
        return path_safe("_".join(parts))

    def is_chosen(self, variant: Mapping[str, object]) -> bool:
        """Whether a swept setting is one whose value is chosen on validation images."""
        for name in self.workspace.choose:
            for key in variant:
                if refers_to(name, key):
                    return True
        return False


def fill_in(value: object, workspace: Workspace, dataset: str | DatasetPlace) -> object:
    """A swept value with its placeholders filled in.

    {root} is the data root, {configs} the folder of configs and {dataset} the data set's name.
    """
    if not isinstance(value, str):
        return value
    root = workspace.root or "data"
    if isinstance(dataset, DatasetPlace):
        root = dataset.root
    value = value.replace("{root}", root)
    value = value.replace("{configs}", str(CONFIGS))
    return value.replace("{dataset}", str(dataset))


def configure(
    workspace: Workspace, method: str, dataset: str | DatasetPlace, backbone: str, seed: int,
    settings: Mapping[str, object] | None = None,
) -> CfgNode:
    """The config of a run with some settings of its own.

    Its folder in the workspace has the name that tools/train.py would choose.

    Args:
        workspace: Roots, limits and settings of all runs.
        method: Name of the trainer.
        dataset: As the experiment names it.
        backbone: Name of the backbone.
        seed: Of the run.
        settings: Of this run alone, by key.
    """
    flags = ["MODEL.BACKBONE.NAME", backbone, "SEED", seed, "TEST.LIMIT", workspace.limit,
             "CACHE.DIR", str(workspace.cache_dir)]
    if isinstance(dataset, DatasetPlace):
        reader = dataset.reader
        flags += ["DATASET.ROOT", dataset.root]
        for key, value in dataset.settings:
            flags += [key, value]
    else:
        reader = find_dataset(dataset)
        if workspace.root:
            flags += ["DATASET.ROOT", workspace.root]
    opts = list(workspace.opts)
    for key, value in (settings or {}).items():
        opts += [key, value]
    cfg = build_cfg(method, reader, flags=flags, opts=opts)
    if cfg.OUTPUT_DIR:
        raise ConfigError("OUTPUT_DIR is of single runs: an experiment has --output-dir for all of "
                          "its runs")
    return place_run(cfg, workspace)


def place_run(cfg: CfgNode, workspace: Workspace, prompt_tag: str = "") -> CfgNode:
    """A copy of a config with its folder in the workspace.

    Args:
        cfg: All settings of the run.
        workspace: Where results are written.
        prompt_tag: What the tag says of a trained prompt that the run starts from.
    """
    cfg = cfg.clone()
    cfg.defrost()
    cfg.OUTPUT_DIR = ""
    if prompt_tag and cfg.TAG == "default":
        cfg.TAG = prompt_tag
    elif prompt_tag:
        cfg.TAG = f"{prompt_tag}_{cfg.TAG}"
    cfg.OUTPUT_DIR = str(workspace.runs_dir / run_path(cfg).relative_to("output"))
    cfg.freeze()
    return cfg


def check_folders(runs: Iterable[PlannedRun]) -> None:
    """Refuses a plan in which two different runs have the same folder."""
    by_folder: dict[Path, PlannedRun] = {}
    for run in runs:
        other = by_folder.setdefault(run.folder, run)
        if other != run:
            raise ConfigError(f"{run.described} and {other.described} would both be written to "
                              f"{run.folder}: leave TAG out, or give one of them another value")


@cache
def dataset_size(
    name: str, root: str = "", columns: str = "", classnames: str = "", split: str = "test",
) -> tuple[int, int]:
    """Images of a split and classes of a data set below `root`.

    Where the data set is not there: those of the published test split.

    Args:
        name: Registered name of the data set.
        root: Its data root.
        columns: DATASET.COLUMNS.
        classnames: DATASET.CLASSNAMES.
        split: test or val.

    Returns:
        Number of images, number of classes.
    """
    state = inspect_data(name, root, columns, classnames)
    if state and (split == "test" or not state.test):
        images = state.test or state.cls.expected_test
        classes = state.classes or state.cls.expected_classes or 0
        return images, classes
    if not state:  # embedded data
        root = ""
    dataset = build_dataset(name, root, columns=columns, classnames=classnames)
    items = dataset.test
    if split == "val":
        items = dataset.val
    return len(items), len(dataset.classnames)


@cache
def inspect_data(
    name: str, root: str, columns: str = "", classnames: str = "",
) -> Finding | None:
    """The state of a data set: ok, partial, faulty or absent; None for an embedded one."""
    kind = DATASET_REGISTRY.get(name)
    if not issubclass(kind, FileDataset):
        return None
    options = {}
    for option, value in (("columns", columns), ("classnames", classnames)):
        if value and option in kind.options:
            options[option] = value
    return inspect(kind, Path(root).expanduser(), options=options)


def select(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs that match `only`, and the prompts that they start from.

    For each kind of name given (method, data set, backbone), one of the names must match.
    """
    names = {run: names_of(run) for run in runs}
    wanted: dict[str, set[str]] = {"method": set(), "dataset": set(), "backbone": set()}
    for name in only:
        kind = find_kind(name, wanted, names.values())
        if not kind:
            known: set[str] = set()
            for run in runs:
                known.update((run.method, run.dataset, run.backbone))
            raise ConfigError(
                f"--only {name}: no such method, data set or backbone here."
                f"{nearest(name, sorted(known))} Known: {', '.join(sorted(known))}.")
        wanted[kind].add(method_key(name))

    selected = set()
    for run in runs:
        matches = True
        for kind, keys in wanted.items():
            if keys and keys.isdisjoint(names[run][kind]):
                matches = False
        if matches:
            selected.add(run)
            if run.prompt:
                selected.add(run.prompt)
    return [run for run in runs if run in selected]


def names_of(run: PlannedRun) -> dict[str, set[str]]:
    """By kind, the names by which `--only` may select a run."""
    return {
        "method": {method_key(run.method)},
        "dataset": {method_key(run.dataset), method_key(run.dataset_name)},
        "backbone": {method_key(run.backbone)},
    }


def find_kind(name: str, kinds: Iterable[str], names: Iterable[Mapping[str, set[str]]]) -> str:
    """What a name is: the first kind in which a run has it; "" if no run has it."""
    by_run = list(names)
    for kind in kinds:
        for run_names in by_run:
            if method_key(name) in run_names[kind]:
                return kind
    return ""
