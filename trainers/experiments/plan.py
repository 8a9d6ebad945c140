"""From an experiment to its runs: what each run is, and where it is stored.

A `Workspace` holds what the command says for all runs. `expand` plans the runs of an experiment in
it, `select` takes those that `--only` names.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from yacs.config import CfgNode

from ...datasets import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..config.build import CONFIGS, build_cfg
from ..config.settings import (
    Role,
    changed_settings,
    effective_settings,
    find_setting,
    path_safe,
    run_path,
)
from ..coop import CoOp
from ..registry import method_key
from ..report.choices import refers_to
from ..runs.record import canonical_json
from ..vlm.loading import SMALL
from .definition import DatasetPlace, Experiment, RunGroup, find_dataset
from .planned_run import PlannedRun, data_folder


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

    def is_demo_of(self, experiment: Experiment) -> bool:
        """Whether embedded data replaces that of an experiment.

        Experiments without data, such as the count of operations, are the same in a demo.
        """
        return self.demo and bool(experiment.datasets)


def expand(experiment: Experiment, workspace: Workspace) -> list[PlannedRun]:
    """All runs of an experiment, each once.

    A prompt comes before the runs that start from it. Where a value is to be chosen, each test run
    is followed by its validation run, unless the data set has no validation images.

    Args:
        experiment: Defines methods, data sets, backbones, seeds and swept settings.
        workspace: What the command adds: places, limits, the demo, and a choice of them.
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
        settings = {"DATASET.NUM_SHOTS": shots, **self.coop}
        cfg = configure(
            self.workspace, CoOp.__name__, self.dataset, self.backbone, self.seed, settings)
        return self.planned(cfg, {}, shots, None)

    def plan_run(
        self, method: str, variant: Mapping[str, object], prompt: PlannedRun | None,
        split: str = "",
    ) -> PlannedRun:
        """A run of a method.

        Args:
            method: Name of the method.
            variant: The swept settings with the values of this run.
            prompt: The CoOp run that trains the prompt; None for a hand-written prompt.
            split: test or val; "" for that of the settings.
        """
        settings = {}
        for key, value in variant.items():
            settings[key] = fill_in(value, self.workspace, self.dataset)
        if split:
            settings["TEST.SPLIT"] = split
        cfg = configure(self.workspace, method, self.dataset, self.backbone, self.seed, settings)
        if prompt is None:
            return self.planned(cfg, variant, 0, None)
        # The checkpoint's path is too long for a folder's name, so the tag says how it was trained.
        cfg = place_run(cfg, self.workspace, self.prompt_tag(prompt))
        return self.planned(cfg, variant, prompt.shots, prompt)

    def planned(
        self, cfg: CfgNode, variant: Mapping[str, object], shots: int, prompt: PlannedRun | None,
    ) -> PlannedRun:
        """The run of a config; see `PlannedRun`.

        Args:
            cfg: All settings of the run.
            variant: The settings that distinguish it in the experiment, by key.
            shots: Images per class that a prompt is trained on; 0 = none is trained.
            prompt: The run whose prompt it starts from; None = it starts from words.
        """
        prompt_key = prompt.key if prompt else ""
        return PlannedRun(
            key=canonical_json([effective_settings(cfg), data_folder(cfg), prompt_key]),
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
        dataset: The data set, as the experiment names it.
        backbone: Name of the backbone.
        seed: Seed of the run.
        settings: Settings of this run alone, by key.
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


def select(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs that match `only`, and the prompts that they start from.

    For each kind of name given (method, data set, backbone), one of the names must match.

    Raises:
        ConfigError: If no run has one of the names.
    """
    wanted: dict[str, set[str]] = {"method": set(), "dataset": set(), "backbone": set()}
    for name in only:
        wanted[kind_of(name, runs)].add(method_key(name))

    selected = set()
    for run in runs:
        names = names_of(run)
        matches = True
        for kind, keys in wanted.items():
            if keys and keys.isdisjoint(names[kind]):
                matches = False
        if matches:
            selected.add(run)
            if run.prompt:
                selected.add(run.prompt)
    return [run for run in runs if run in selected]


def kind_of(name: str, runs: Iterable[PlannedRun]) -> str:
    """Whether a name of `--only` is that of a method, dataset or backbone; the first that fits."""
    kinds = []
    known: set[str] = set()
    for run in runs:
        known.update((run.method, run.dataset, run.backbone))
        for kind, names in names_of(run).items():
            if method_key(name) in names:
                kinds.append(kind)
    for kind in ("method", "dataset", "backbone"):
        if kind in kinds:
            return kind
    raise ConfigError(
        f"--only {name}: no such method, data set or backbone here."
        f"{nearest(name, sorted(known))} Known: {', '.join(sorted(known))}.")


def names_of(run: PlannedRun) -> dict[str, set[str]]:
    """By kind, the names by which `--only` may select a run."""
    return {
        "method": {method_key(run.method)},
        "dataset": {method_key(run.dataset), method_key(run.dataset_name)},
        "backbone": {method_key(run.backbone)},
    }
