"""The folder of a run with some settings: a readable path, other settings in another folder."""
from __future__ import annotations

from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, run_name
from ...datasets.utils.errors import ConfigError
from .names import backbone_name, path_safe
from .registry import TRAINER_REGISTRY, is_plugin, method_info


def plugin_modules(cfg: CfgNode) -> dict[str, str]:
    """The modules outside this package that the method and the data set of a run come from.

    Returns:
        For each plugin by its name the module, which is what `--plugin` takes.
    """
    modules = {}
    for registry, name in (
        (TRAINER_REGISTRY, cfg.TRAINER.NAME),
        (DATASET_REGISTRY, cfg.DATASET.NAME),
    ):
        if name in registry and is_plugin(registry.get(name)):
            modules[name] = registry.get(name).__module__
    return modules


def results_name(cfg: CfgNode) -> str:
    """What run folder and results call the data set."""
    data = cfg.DATASET
    return run_name(data.NAME, data.ROOT, data.CORRUPTION, data.SEVERITY)


def run_path(cfg: CfgNode) -> Path:
    """`--output-dir`, or output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>."""
    if cfg.OUTPUT_DIR:
        return Path(cfg.OUTPUT_DIR)
    if Path(cfg.TAG).is_absolute() or ".." in Path(cfg.TAG).parts or not cfg.TAG.isprintable():
        raise ConfigError(
            f"TAG is {cfg.TAG!r}; it must be a name below output/<dataset>/<trainer>/<backbone>"
        )
    backbone = path_safe(backbone_name(cfg.MODEL.BACKBONE.NAME))
    dataset = path_safe(results_name(cfg))
    return Path(
        "output", dataset, path_safe(cfg.TRAINER.NAME), backbone, cfg.TAG, f"seed{cfg.SEED}"
    )


def event_folder(run_dir: Path, trainer: str) -> Path:
    """The folder of TensorBoard's events about a run's own predictions.

    Those of ZeroShot are the zero-shot ones.
    """
    if method_info(trainer).zero_shot:
        return zero_shot_event_folder(run_dir)
    return run_dir / "tensorboard" / "tuned"


def zero_shot_event_folder(run_dir: Path) -> Path:
    """The folder of TensorBoard's events about the predictions before tuning."""
    return run_dir / "tensorboard" / "zero-shot"
