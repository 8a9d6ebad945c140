"""The folder of a run with some settings: a readable path, other settings in another folder."""
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import DATASET_REGISTRY, run_name
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import read_regular
from ..registry import TRAINER_REGISTRY
from .roles import setting_of

ENGINE = 1  # raised whenever a change of the code changes predictions
MAX_LENGTH = 100  # characters of a part of a run folder's path


def plugin_modules(cfg: CfgNode) -> dict[str, str]:
    """The modules outside this package that the run's method and data set come from, by name: what `--plugin` takes."""
    registered = ((TRAINER_REGISTRY, cfg.TRAINER.NAME), (DATASET_REGISTRY, cfg.DATASET.NAME))
    found = {name: registry.get(name) for registry, name in registered if name in registry}
    return {name: cls.__module__ for name, cls in found.items() if is_plugin(cls)}


def is_plugin(cls: type) -> bool:
    return not cls.__module__.startswith(f"{__name__.partition('.trainers.')[0]}.")


def tag_of(settings: Mapping[str, object], baseline: Mapping[str, object]) -> str:
    """A readable folder name from the settings that differ from the baseline: `default`, or `STEPS-2_LAMBDA-10.0`."""
    changed = [
        f"{key.rsplit('.', 1)[-1]}-{prompt_name(str(value)) if setting_of(key).hashed else value}"
        for key, value in settings.items() if not setting_of(key).in_path and value != baseline.get(key)
    ]
    return path_safe("_".join(changed)) or "default"


def prompt_name(name: str) -> str:
    """The short name of a prompt or list: of a file the part of its path that differs between prompts (CoOp names every
    file prompt_learner/model.pth.tar-<epoch>) and a hash of its content, or of its path if it is absent."""
    path, content = Path(name), b""
    with suppress(OSError):
        content = read_regular(path)
    if not content and path.name == name:  # an embedded prompt
        return name
    run = path.parent.parent.name if path.parent.name == "prompt_learner" else ""
    return f"{run or path.name.split('.')[0]}-{short_hash(content or name.encode())}"


def path_safe(text: str) -> str:
    """`text` as a part of a path. A long one is cut and ends with a hash of the whole: runs may differ in the rest."""
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    return safe if len(safe) <= MAX_LENGTH else f"{safe[: MAX_LENGTH - 9].rstrip('-.')}-{short_hash(text.encode())}"


def short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def results_name(cfg: CfgNode) -> str:
    """What run folder and results call the data set."""
    data = cfg.DATASET
    return run_name(data.NAME, data.ROOT, data.CORRUPTION, data.SEVERITY)


def run_path(cfg: CfgNode) -> Path:
    """`--output-dir`, or output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>."""
    if cfg.OUTPUT_DIR:
        return Path(cfg.OUTPUT_DIR)
    if Path(cfg.TAG).is_absolute() or ".." in Path(cfg.TAG).parts or not cfg.TAG.isprintable():
        raise ConfigError(f"TAG is {cfg.TAG!r}; it must be a name below output/<dataset>/<trainer>/<backbone>")
    backbone = path_safe(backbone_name(cfg.MODEL.BACKBONE.NAME))
    dataset = path_safe(results_name(cfg))
    return Path("output", dataset, path_safe(cfg.TRAINER.NAME), backbone, cfg.TAG, f"seed{cfg.SEED}")


def backbone_name(name: str) -> str:
    """A backbone's short name: of a file or folder its last name, after the family and the model if they are given."""
    family, colon, rest = name.partition(":")
    if not colon:
        return Path(name).stem if Path(name).suffix else name
    model, _, file = rest.partition("@")
    model = Path(model).name if Path(model).is_dir() else model
    return "-".join([family, model, *([Path(file).stem] if file else [])])
