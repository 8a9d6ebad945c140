"""From an experiment to its runs: what each run is, where it is stored, and which runs share view features."""
from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
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
from ..config.fingerprint import run_path
from ..coop import CoOp
from ..registry import build_trainer, method_info, method_key
from ..report.choices import refers_to
from ..runs.run_dir import check_state, inspect_folder
from ..vlm.openai import SMALL
from .definition import Experiment, find_dataset


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
    choose: tuple[str, ...] = ()  # swept settings whose value is chosen on validation runs, which are planned too
    choose_by: str = "ece"  # the metric by which it is chosen

    @property
    def runs_dir(self) -> Path:
        return self.output / "demo" if self.demo else self.output

    @property
    def cache_dir(self) -> Path:
        return self.cache or self.runs_dir / "cache"

    def backbones(self, experiment: Experiment) -> list[str]:
        return [self.backbone or SMALL] if self.backbone or self.demo else list(experiment.backbones)

    def datasets(self, experiment: Experiment) -> Sequence[str]:
        return experiment.demo.datasets if self.demo else experiment.datasets

    def outcome_dir(self, name: str) -> Path:
        return self.runs_dir / "experiments" / name


@dataclass(frozen=True)
class PlannedRun:
    """One run. Two runs with the same folder are the same run, whichever experiments need it."""

    folder: Path
    method: str = field(compare=False)
    dataset: str = field(compare=False)  # as the experiment names it
    backbone: str = field(compare=False)
    seed: int = field(compare=False)
    variant: Mapping[str, object] = field(compare=False)  # the swept settings of this run
    shots: int = field(compare=False)
    cfg: CfgNode = field(compare=False, repr=False)
    prompt: PlannedRun | None = field(compare=False, default=None, repr=False)  # the CoOp run that it starts from

    @property
    def finished(self) -> bool:
        return inspect_folder(self.folder).results is not None

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
        return inspect_data(self.dataset_name, self.cfg.DATASET.ROOT)

    @property
    def uses_views(self) -> bool:
        """Whether it uses all views of an image, not only the plain one."""
        return method_info(self.method).tuned

    @property
    def features_key(self) -> tuple:
        """Runs with equal keys share view features: the same views and the same image tower."""
        data = self.cfg.DATASET
        return (self.dataset, data.CORRUPTION, data.SEVERITY, data.IMAGE_LIST, self.backbone, self.seed,
                self.split, self.cfg.TEST.LIMIT, self.cfg.TEST.IMBALANCE, self.cfg.TTA.AUGMIX)

    @cached_property
    def size(self) -> tuple[int, int]:
        """Test or validation images, and classes."""
        images, classes = dataset_size(self.dataset_name, self.cfg.DATASET.ROOT, self.split)
        return min(self.cfg.TEST.LIMIT or images, images), classes

    @property
    def described(self) -> str:
        parts = [f"{key.rsplit('.', 1)[-1]} {value}" for key, value in self.variant.items()]
        if self.shots:
            parts.append(f"{self.shots} shots" if method_info(self.method).trained else f"from {self.shots} shots")
        if self.split == "val":
            parts.append("validation images")
        setting = f" ({', '.join(parts)})" if parts else ""
        return f"{self.method}{setting} on {self.dataset}, {self.backbone}, seed {self.seed}"


WorkGroup = list[PlannedRun]  # runs that share view features, in the order in which one process computes them


def work_groups(runs: Iterable[PlannedRun]) -> list[WorkGroup]:
    """The runs by shared view features. A group is independent of the others: it holds the prompts that its runs start
    from, first. Runs of the plain view come last: they read it from the features of all views."""
    groups: dict[tuple, WorkGroup] = {}
    for run in runs:
        groups.setdefault((run.prompt or run).features_key, []).append(run)
    return [sorted(group, key=lambda run: (not method_info(run.method).trained, not run.uses_views))
            for group in groups.values()]


def expand(experiment: Experiment, workspace: Workspace) -> list[PlannedRun]:
    """All runs of an experiment, each once; a prompt comes before the runs that start from it. Where a value is to be
    chosen, each test run is followed by its validation run, unless the data set has no validation images."""
    if workspace.demo and not workspace.limit:
        workspace = replace(workspace, limit=experiment.demo.images)
    coop = {**experiment.coop, **(experiment.demo.coop if workspace.demo else {})}
    runs: dict[PlannedRun, None] = {}
    groups = (workspace.demo and experiment.demo.runs) or experiment.runs
    for backbone, dataset, seed in itertools.product(
        workspace.backbones(experiment), workspace.datasets(experiment), experiment.seeds,
    ):
        for group in [group for group in groups if not group.datasets or dataset in group.datasets]:
            for shots, *values in itertools.product(group.shots, *group.sweep.values()):
                variant, prompt = dict(zip(group.sweep, values, strict=True)), None
                where = (dataset, backbone, seed)
                if shots:
                    cfg = configure(workspace, CoOp.__name__, *where, (("DATASET.NUM_SHOTS", shots), *coop.items()))
                    prompt = PlannedRun(Path(cfg.OUTPUT_DIR), CoOp.__name__, *where, {}, shots, cfg)
                    runs.setdefault(prompt)
                tag = f"CoOp-{shots}-shots" if shots else ""
                chosen = any(refers_to(name, key) for name in workspace.choose for key in variant)
                for method in group.methods:
                    opts = tuple((key, filled_in(value, workspace, dataset)) for key, value in variant.items())
                    cfgs = [configure(workspace, method, *where, opts, tag)]
                    if chosen and DATASET_REGISTRY.get(cfgs[0].DATASET.NAME).has_val:
                        cfgs.append(configure(workspace, method, *where, (*opts, ("TEST.SPLIT", "val")), tag))
                    for cfg in cfgs:
                        runs.setdefault(PlannedRun(Path(cfg.OUTPUT_DIR), method, *where, variant, shots, cfg, prompt))
    return list(runs)


def filled_in(value: object, workspace: Workspace, dataset: str) -> object:
    """A swept value with the data root, the folder of configs and the data set's name in place of {root}, {configs} and
    {dataset}."""
    if not isinstance(value, str):
        return value
    value = value.replace("{root}", workspace.root or "data").replace("{configs}", str(CONFIGS))
    return value.replace("{dataset}", dataset)


@cache
def configure(
    workspace: Workspace, method: str, dataset: str, backbone: str, seed: int, opts: tuple = (), prompt_tag: str = "",
) -> CfgNode:
    """The config of a run, `opts` as (key, value) pairs. Its folder is the one that tools/train.py would choose, in the
    workspace. `prompt_tag` replaces a learnt prompt in the tag, because the checkpoint's path is too long."""
    flags = ["MODEL.BACKBONE.NAME", backbone, "SEED", seed, "TEST.LIMIT", workspace.limit, "CACHE.DIR",
             str(workspace.cache_dir)]
    if workspace.root:
        flags += ["DATASET.ROOT", workspace.root]
    cfg = build_cfg(method, find_dataset(dataset), flags=flags, opts=[*workspace.opts, *itertools.chain(*opts)])
    if cfg.OUTPUT_DIR:
        raise ConfigError("OUTPUT_DIR is of single runs: an experiment has --output-dir for all of its runs")
    cfg.defrost()
    if prompt_tag:
        cfg.TAG = prompt_tag if cfg.TAG == "default" else f"{prompt_tag}_{cfg.TAG}"
    cfg.OUTPUT_DIR = str(workspace.runs_dir / run_path(cfg).relative_to("output"))
    cfg.freeze()
    return cfg


def differs(run: PlannedRun) -> str:
    """In what a finished run differs from the planned one, as one sentence; "" if it does not."""
    trainer = build_trainer(configured(run))
    try:
        check_state(run.folder, inspect_folder(run.folder), trainer.record, trainer.listing)
    except ConfigError as error:
        return str(error)
    return ""


def configured(run: PlannedRun) -> CfgNode:
    """The settings of a run. One that starts from a learnt prompt has the checkpoint of the run that trained it."""
    if run.prompt is None:
        return run.cfg
    cfg = run.cfg.clone()
    cfg.defrost()
    cfg.MODEL.INIT_WEIGHTS = str(CoOp(run.prompt.cfg).checkpoint)
    cfg.freeze()
    return cfg


@cache
def dataset_size(name: str, root: str = "", split: str = "test") -> tuple[int, int]:
    """Images of a split and classes of a data set below `root`; if it is not there, of the published test split."""
    found = inspect_data(name, root)
    if found and (split == "test" or not found.test):
        return found.test or found.cls.expected_test, found.classes or found.cls.expected_classes or 0
    dataset = build_dataset(name, root if found else "")
    return len(dataset.val if split == "val" else dataset.test), len(dataset.classnames)


@cache
def inspect_data(name: str, root: str) -> Finding | None:
    """The state of a data set below the data root: ok, partial, faulty or absent; None for an embedded one."""
    kind = DATASET_REGISTRY.get(name)
    return inspect(kind, Path(root)) if issubclass(kind, FileDataset) else None


def select(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs that match `only`: for each kind of name given (method, data set, backbone), one of them must match.

    Prompts that a selected run starts from are kept.
    """
    names = {run: [{method_key(name) for name in kind} for kind in
                   ((run.method,), (run.dataset, run.dataset_name), (run.backbone,))] for run in runs}
    wanted: list[set[str]] = [set(), set(), set()]
    for name in only:
        kinds = [kind for own in names.values() for kind in range(3) if method_key(name) in own[kind]]
        if not kinds:
            every = sorted({n for run in runs for n in (run.method, run.dataset, run.backbone)})
            raise ConfigError(f"--only {name}: no such method, data set or backbone here.{nearest(name, every)} "
                              f"Known: {', '.join(every)}.")
        wanted[min(kinds)].add(method_key(name))
    chosen = {run for run, own in names.items()
              if all(not some or some & kind for some, kind in zip(wanted, own, strict=True))}
    chosen |= {run.prompt for run in chosen if run.prompt}
    return [run for run in runs if run in chosen]
