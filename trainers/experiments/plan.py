"""From an experiment to its runs: what each is, where it lives, and whether it is done."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, build_dataset
from ...datasets.download.verify import Finding, inspect
from ...datasets.file_dataset import FileDataset
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..config.build import build_cfg
from ..config.fingerprint import check_same, make_fingerprint, run_path
from ..config.roles import leaves
from ..coop import CoOp
from ..registry import method_info, method_key
from ..report.comparison import default_settings
from ..runs.parts import evenly
from ..runs.run_dir import RunDir
from ..vlm.loading import weights_hash
from ..vlm.openai_weights import SMALL
from .definition import Experiment, RunGroup, dataset_file

DEMO_IMAGES = 144  # tiles a demo run looks at unless --limit says otherwise: six of each class


@dataclass(frozen=True)
class Place:
    """Where data is read and results are written, and how much of it is asked for."""

    root: str = ""  # of the data; "" = the default
    output: Path = Path("output")
    cache: Path | None = None  # of view features; None = below `output`
    demo: bool = False
    limit: int = 0  # test images a run; 0 = all
    opts: tuple = ()  # KEY VALUE pairs for every run
    backbone: str = ""  # instead of the experiments' own

    @property
    def runs(self) -> Path:
        return self.output / "demo" if self.demo else self.output

    @property
    def features(self) -> Path:
        return self.cache or self.runs / "cache"

    @property
    def images(self) -> int:
        return self.limit or (DEMO_IMAGES if self.demo else 0)

    def backbones(self, experiment: Experiment) -> list[str]:
        """Those that the experiment is run with here."""
        return [self.backbone or SMALL] if self.backbone or self.demo else list(experiment.backbones)

    def outcome(self, name: str) -> Path:
        return self.runs / "experiments" / name


@dataclass(frozen=True)
class PlannedRun:
    """One run. Two are the same run if they share a folder, whatever experiments ask for them."""

    folder: Path
    method: str = field(compare=False)
    dataset: str = field(compare=False)  # the name of its file in configs/datasets
    backbone: str = field(compare=False)
    seed: int = field(compare=False)
    variant: Mapping[str, object] = field(compare=False)  # the swept settings of this run
    shots: int = field(compare=False)
    cfg: CfgNode = field(compare=False, repr=False)
    prompt: PlannedRun | None = field(compare=False, default=None, repr=False)  # the CoOp run that it starts from

    def __hash__(self) -> int:
        return hash(self.folder)

    @property
    def finished(self) -> bool:
        return RunDir(self.folder).results() is not None

    @property
    def dataset_name(self) -> str:
        return self.cfg.DATASET.NAME

    @property
    def many_views(self) -> bool:
        """Whether it looks at all views of an image, not at the plain one alone."""
        return method_info(self.method).tuned

    @property
    def features(self) -> tuple:
        """Runs with equal features share them: they see the same views with the same image tower."""
        return self.dataset, self.backbone, self.seed, self.cfg.TEST.LIMIT, self.cfg.TTA.AUGMIX

    @cached_property
    def size(self) -> tuple[int, int]:
        """Test images and classes."""
        images, classes = dataset_size(self.dataset_name, self.cfg.DATASET.ROOT)
        return min(self.cfg.TEST.LIMIT or images, images), classes

    @property
    def usual(self) -> bool:
        """Whether its swept settings are those that the method has on this data set anyway, from the usual prompt."""
        settings = default_settings(self.method, self.dataset_name)
        mine = leaves(self.cfg)
        return not self.shots and all(mine[key] == settings[key] for key in self.variant)

    @property
    def label(self) -> str:
        parts = [f"{key.rsplit('.', 1)[-1]} {value}" for key, value in self.variant.items()]
        if self.shots and not method_info(self.method).trained:
            parts.append(f"from {self.shots} shots")
        elif self.shots:
            parts.append(f"{self.shots} shots")
        return ", ".join(parts)

    @property
    def described(self) -> str:
        setting = f" ({self.label})" if self.label else ""
        return f"{self.method}{setting} on {self.dataset}, {self.backbone}, seed {self.seed}"


def expand(experiment: Experiment, place: Place) -> list[PlannedRun]:
    """All runs of an experiment, a prompt before the runs that start from it, each once."""
    datasets = experiment.demo.datasets if place.demo else experiment.datasets
    backbones = place.backbones(experiment)
    runs: dict[PlannedRun, None] = {}
    for backbone, dataset, seed in itertools.product(backbones, datasets, experiment.seeds):
        for group in experiment.runs:
            for shots, variant in itertools.product(group.shots, combinations(group)):
                prompt = plan_prompt(experiment, place, dataset, backbone, seed, shots) if shots else None
                if prompt:
                    runs.setdefault(prompt)
                for method in group.methods:
                    runs.setdefault(plan_run(place, method, dataset, backbone, seed, variant, shots, prompt))
    return list(runs)


def combinations(group: RunGroup) -> Iterator[dict[str, object]]:
    for values in itertools.product(*group.sweep.values()):
        yield dict(zip(group.sweep, values, strict=True))


def plan_run(
    place: Place, method: str, dataset: str, backbone: str, seed: int, variant: Mapping[str, object], shots: int = 0,
    prompt: PlannedRun | None = None,
) -> PlannedRun:
    opts = tuple(item for pair in variant.items() for item in pair)
    cfg = configure(place, method, dataset, backbone, seed, opts, f"CoOp-{shots}-shots" if prompt else "")
    return PlannedRun(Path(cfg.OUTPUT_DIR), method, dataset, backbone, seed, variant, shots, cfg, prompt)


def plan_prompt(
    experiment: Experiment, place: Place, dataset: str, backbone: str, seed: int, shots: int,
) -> PlannedRun:
    settings = {"DATASET.NUM_SHOTS": shots, **experiment.coop, **(experiment.demo.coop if place.demo else {})}
    opts = tuple(item for pair in settings.items() for item in pair)
    cfg = configure(place, CoOp.__name__, dataset, backbone, seed, opts)
    return PlannedRun(Path(cfg.OUTPUT_DIR), CoOp.__name__, dataset, backbone, seed, {}, shots, cfg)


@cache
def configure(
    place: Place, method: str, dataset: str, backbone: str, seed: int, opts: tuple = (), start: str = "",
) -> CfgNode:
    """The run's config, with the folder that tools/train.py would choose, below the place's own. `start` names a learnt
    prompt in the tag, where the checkpoint's path would be endless."""
    flags = ["MODEL.BACKBONE.NAME", backbone, "SEED", seed, "TEST.LIMIT", place.images, "CACHE.DIR",
             str(place.features)]
    if place.root:
        flags += ["DATASET.ROOT", place.root]
    cfg = build_cfg(method, str(dataset_file(dataset)), flags=flags, opts=[*place.opts, *opts])
    cfg.defrost()
    if start:
        cfg.TAG = start if cfg.TAG == "default" else f"{start}_{cfg.TAG}"
    cfg.OUTPUT_DIR = str(place.runs / run_path(cfg).relative_to("output"))
    cfg.freeze()
    return cfg


def differs(run: PlannedRun) -> str:
    """What a finished run was made with that is not so now, in one sentence; "" if it is the run that is asked for.

    The images of a benchmark are not looked at: listing them takes longer than all else.
    """
    results = RunDir(run.folder).results() or {}
    facts = {"weights": weights_hash(run.backbone, run.cfg.MODEL.ACTIVATION, run.cfg.MODEL.HEAD_WIDTH)}
    if not issubclass(DATASET_REGISTRY.get(run.dataset_name), FileDataset):
        facts["data"] = drawn_hash(run.dataset_name, run.cfg.TEST.SPLIT, run.cfg.TEST.LIMIT)
    ours = make_fingerprint(run.cfg, **facts)
    theirs = {key: value for key, value in results.get("fingerprint", {}).items() if key in ours}
    try:
        check_same(ours, theirs, run.folder, finished=True)
    except ConfigError as error:
        return f"{error}, or remove it"
    return ""


@cache
def drawn_hash(name: str, split: str, limit: int) -> str:
    """The hash of the images that a run looks at, of a data set that has no files."""
    made = build_dataset(name, "")
    items = getattr(made, split)
    return made.fingerprint([items[i] for i in evenly(len(items), limit)])


@cache
def dataset_size(name: str, root: str = "") -> tuple[int, int]:
    """Test images and classes of a data set as it lies below `root`, or as published; of one that is drawn, as it
    is."""
    kind = DATASET_REGISTRY.get(name)
    if issubclass(kind, FileDataset):
        found = look_at(name, root)
        return (found.test, found.classes) if found.test else (kind.expected_test, kind.expected_classes)
    made = build_dataset(name, "")
    return len(made.test), len(made.classnames)


@cache
def look_at(name: str, root: str) -> Finding:
    """What there is of a benchmark below the data root: whole, partial, faulty or absent."""
    return inspect(DATASET_REGISTRY.get(name), Path(root))


def findings(runs: Sequence[PlannedRun]) -> list[Finding]:
    """What there is of each benchmark that the runs need."""
    needed = dict.fromkeys((run.dataset_name, run.cfg.DATASET.ROOT) for run in runs)
    return [look_at(name, root) for name, root in needed if issubclass(DATASET_REGISTRY.get(name), FileDataset)]


def select(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs that match `only`: of each kind of name given (method, data set, backbone), one must fit.

    Prompts that a chosen run starts from come along.
    """
    kinds = {"method": set(), "dataset": set(), "backbone": set()}
    for name in only:
        known = {
            "method": {method_key(run.method) for run in runs},
            "dataset": {alias.lower() for run in runs for alias in (run.dataset, run.dataset_name)},
            "backbone": {run.backbone.lower() for run in runs},
        }
        kind = next((k for k, all_names in known.items() if spelled(k, name) in all_names), None)
        if kind is None:
            every = sorted({n for run in runs for n in (run.method, run.dataset, run.backbone)})
            raise ConfigError(f"--only {name}: no such method, data set or backbone here.{nearest(name, every)} "
                              f"Known: {', '.join(every)}.")
        kinds[kind].add(spelled(kind, name))

    def fits(run: PlannedRun) -> bool:
        aliases = {"method": {method_key(run.method)}, "dataset": {run.dataset.lower(), run.dataset_name.lower()},
                   "backbone": {run.backbone.lower()}}
        return all(not wanted or wanted & aliases[kind] for kind, wanted in kinds.items())

    chosen = [run for run in runs if fits(run)]
    needed = {run.prompt for run in chosen if run.prompt}
    return [run for run in runs if run in needed or run in set(chosen)]


def spelled(kind: str, name: str) -> str:
    return method_key(name) if kind == "method" else name.lower()


def with_prompt(run: PlannedRun, checkpoint: Path) -> CfgNode:
    """The config of a run that starts from a learnt prompt, once there is one."""
    cfg = run.cfg.clone()
    cfg.defrost()
    cfg.MODEL.INIT_WEIGHTS = str(checkpoint)
    cfg.freeze()
    return cfg
