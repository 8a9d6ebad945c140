"""From defaults, yaml files, flags and KEY VALUE pairs to one frozen, validated config."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..registry import TRAINER_REGISTRY, method_info
from .dassl_compat import coops_backbone, our_trainer
from .defaults import get_cfg_default
from .fingerprint import tag_of
from .merging import COMMAND, Met, flatten, in_pairs, merge_values, read_yaml
from .roles import influential_settings, leaves
from .validation import validate

logger = logging.getLogger(__name__)

# In a checkout and in an installed package alike, `configs` lies beside `trainers`.
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def build_cfg(
    trainer: str = "",
    dataset_config_file: str = "",
    config_file: str = "",
    resume: str = "",
    flags: Sequence = (),
    opts: Sequence = (),
    source: str = COMMAND,
) -> CfgNode:
    """Defaults < a resumed run's config < the trainer's yaml < dataset yaml < `config_file` < flags < opts; frozen.
    The yaml of a method that wants views of its own (`own_views`) stands above the data set's as well.

    `trainer` is a flag. Any later layer may name another, so whose yaml is read is found by a trial without it.
    `source` is what messages call the place of flags and opts.
    """
    base = get_cfg_default()
    if resume:
        # A run's own config already holds every layer, so the trainer's yaml must not undo it.
        if not Path(resume, "config.yaml").is_file():
            raise ConfigError(f"--resume {resume}: no run has begun there, it has no config.yaml")
        base = layered(base, [Path(resume) / "config.yaml"])
    data, more = dataset_files(dataset_config_file), [find_config(config_file, "trainers")] if config_file else []
    pairs = (["TRAINER.NAME", trainer] if trainer else [], flags, opts)
    name = layered(base, [*data, *more], pairs, source=source).TRAINER.NAME
    if name and not resume:
        method = TRAINER_REGISTRY.get(name)
        own = CONFIGS / "trainers" / f"{name.lower()}.yaml"
        if own.is_file():
            base = layered(base, [own])
            data += [own] if getattr(method, "own_views", False) else []
    met = Met()
    cfg = layered(base, [*data, *more], pairs, met, not name or method_info(name).trained, source)
    validate(cfg)
    if not cfg.TAG:
        baseline = leaves(layered(base, data))
        cfg.TAG = tag_of(influential_settings(leaves(cfg), name), baseline)
    cfg.freeze()
    for line in met.lines():
        logger.info("%s", line)
    return cfg


def check_names(trainer: str, dataset_config_file: str, config_file: str) -> None:
    """Refuses a misspelt trainer or config file before anything heavy is imported."""
    name, _ = our_trainer(trainer)
    if name and name not in TRAINER_REGISTRY:
        TRAINER_REGISTRY.get(name)
    for path, folder in ((dataset_config_file, "datasets"), (config_file, "trainers")):
        if path:
            read_yaml(find_config(path, folder))


def layered(
    base: CfgNode, files: Sequence[Path], pairs: Sequence[Sequence] = (), met: Met | None = None, learns: bool = True,
    source: str = COMMAND,
) -> CfgNode:
    """A copy of `base` with yaml files and then lists of KEY VALUE pairs laid over it; `learns`: for a method that is
    trained beforehand."""
    cfg, met = base.clone(), met or Met()
    for path in files:
        merge_values(cfg, file_values(path, learns, met), str(path), met)
    for some in pairs:
        merge_values(cfg, in_pairs(some), source, met)
    met.refuse_unknown(cfg)
    return cfg


def file_values(path: Path, learns: bool, met: Met) -> Iterator[tuple[str, object]]:
    """What a yaml file sets. Those of CoOp's have a schedule by which prompts are learnt, and are read for the rest of
    what they say by methods that learn nothing beforehand."""
    tree = read_yaml(path)
    if not learns and isinstance(tree.get("OPTIM"), dict) and "LR_SCHEDULER" in tree["OPTIM"]:
        tree = {key: value for key, value in tree.items() if key != "OPTIM"}
        met.remarks.append(f"OPTIM in {path} is about learning prompts and left alone; the step at test time is ours")
    return flatten(tree)


def find_config(path: str | Path, folder: str) -> Path:
    """The file that is meant: `path` as it is or below the project, with or without `.yaml`, or a name in
    configs/<folder>, so that `configs/datasets/dtd.yaml`, `configs/datasets/dtd` and `dtd` work from anywhere."""
    path = Path(path)
    places = [path, CONFIGS.parent / path, CONFIGS / folder / path]
    for place in places:
        for found in (place, place.with_name(f"{place.name}.yaml")):
            if found.is_file():
                return found
    if folder == "datasets" and (found := dataset_file_of(str(path))):
        return found
    if path.suffix not in ("", ".yaml", ".yml"):
        return path  # which is refused for what it is
    known = {file.stem: f"configs/{folder}/{file.name}" for file in (CONFIGS / folder).glob("*.yaml")}
    reason = "it is a folder" if path.is_dir() else "No such file"
    hint = nearest(path.stem, known)
    for stem, name in known.items():
        hint = hint.replace(f"'{stem}'", f"'{name}'")
    if folder == "trainers" and not hint:
        known_too = coops_backbone(path.stem)
        hint = f" Give its path in your checkout, or leave it out: trainers know their settings{known_too}."
    raise ConfigError(f"cannot read config file {path}: {reason}.{hint}")


def dataset_files(path: str) -> list[Path]:
    """The yaml of a data set. One of a CoOp checkout says its name only: what this project knows of it comes first."""
    if not path:
        return []
    found = find_config(path, "datasets")
    group = read_yaml(found).get("DATASET")
    ours = dataset_file_of(str(group.get("NAME"))) if isinstance(group, dict) else None
    return [found] if ours is None or CONFIGS in found.resolve().parents else [ours, found]


@cache
def dataset_file_of(dataset: str) -> Path | None:
    """The yaml in configs/datasets that is about a registered data set."""
    files = sorted((CONFIGS / "datasets").glob("*.yaml")) if dataset in DATASET_REGISTRY else []
    return next((file for file in files if read_yaml(file).get("DATASET", {}).get("NAME") == dataset), None)
