"""A planned run: its settings and its folder, and what the folder holds of it."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from yacs.config import CfgNode

from ...datasets import DATASET_REGISTRY, build_dataset
from ...datasets.download.verify import Finding, inspect
from ...datasets.file_dataset import FileDataset
from ..config.settings import Role, backbone_name, effective_settings, find_setting, setting_words
from ..coop import epochs_of
from ..registry import method_info
from ..runs.record import canonical_json
from ..vlm.prompt_files import checkpoint_path
from .run_state import RunState, run_state


class DataPlace(NamedTuple):
    """Where a data set lies and how its folder is read: the settings of DATASET."""

    name: str
    root: str
    columns: str
    classnames: str


@dataclass(frozen=True)
class PlannedRun:
    """One run. Two runs with the same key are the same run, whichever experiments need them.

    The key is made of settings, because a plan must be possible before data and weights are there.
    Whether a folder holds the run is decided by its record: see `state`.

    Attributes:
        key: All settings that its predictions depend on, the folder of the data, and the key of
            the prompt that it starts from.
        folder: Folder in which the run is stored.
        method: Name of the trainer.
        dataset: Data set as the experiment names it.
        backbone: Name of the backbone.
        seed: Seed of the run.
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
        """The registered name of the data set."""
        return self.cfg.DATASET.NAME

    @property
    def split(self) -> str:
        """test or val."""
        return self.cfg.TEST.SPLIT

    @property
    def data_place(self) -> DataPlace:
        """Where its data lies."""
        data = self.cfg.DATASET
        return DataPlace(data.NAME, data.ROOT, data.COLUMNS, data.CLASSNAMES)

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
        """The settings with some roles, those of the image tower and the data's folder, as text."""
        relevant = {}
        for name, value in effective_settings(self.cfg).items():
            is_tower = name in ("MODEL.BACKBONE.NAME", "MODEL.PREC")
            if is_tower or find_setting(name).role in roles:
                relevant[name] = value
        return canonical_json([relevant, data_folder(self.cfg)])

    @cached_property
    def size(self) -> tuple[int, int]:
        """Number of images that are predicted, and number of classes."""
        images, classes = dataset_size(self.data_place, self.split)
        if self.cfg.TEST.LIMIT:
            images = min(self.cfg.TEST.LIMIT, images)
        return images, classes

    @property
    def described(self) -> str:
        """Method, settings, data set, backbone and seed in words."""
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


def data_folder(cfg: CfgNode) -> str:
    """The folder of the data, however it is written. Own data sets have one reader for many."""
    try:
        return str(Path(cfg.DATASET.ROOT).expanduser().resolve())
    except (OSError, RuntimeError, ValueError):  # the run names what is wrong with it
        return str(cfg.DATASET.ROOT)


@cache
def inspect_data(place: DataPlace) -> Finding | None:
    """The state of a data set: ok, partial, faulty or absent; None for an embedded one."""
    kind = DATASET_REGISTRY.get(place.name)
    if not issubclass(kind, FileDataset):
        return None
    options = {}
    for option in ("columns", "classnames"):
        value = getattr(place, option)
        if value and option in kind.options:
            options[option] = value
    return inspect(kind, Path(place.root).expanduser(), options=options)


@cache
def dataset_size(place: DataPlace, split: str) -> tuple[int, int]:
    """Number of images of a split, and number of classes.

    If the data set is not there, they are those of the published test split.
    """
    state = inspect_data(place)
    if state and (split == "test" or not state.test):
        images = state.test or state.cls.expected_test
        classes = state.classes or state.cls.expected_classes or 0
        return images, classes
    root = place.root
    if not state:  # embedded data, which has no folder
        root = ""
    dataset = build_dataset(
        place.name, root, columns=place.columns, classnames=place.classnames)
    items = dataset.test
    if split == "val":
        items = dataset.val
    return len(items), len(dataset.classnames)


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
