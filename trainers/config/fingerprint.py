"""What the numbers of a run depend on, and where a run with these settings lives."""
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import run_name
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import read_regular
from ...datasets.views import pipeline
from .defaults import get_cfg_default
from .roles import influential_settings, leaves, setting_of

ENGINE = 1  # raised whenever a change of the code changes predictions
# What runs of version 0.1 do not name.
UNNAMED = {"views": "pillow-1"}
LONGEST = 100  # characters of a part of a run folder's path


def make_fingerprint(cfg: CfgNode, **facts: str) -> dict[str, object]:
    """Settings and `facts` (hashes of data and weights, the precision in use) that a continued run must share."""
    settings = influential_settings(leaves(cfg), cfg.TRAINER.NAME)
    settings = {key: value for key, value in settings.items() if not setting_of(key).hashed}
    return {**settings, **facts, "engine": ENGINE, "views": pipeline()}


def check_same(ours: Mapping, theirs: Mapping, folder: Path, finished: bool = False) -> None:
    """Refuses to continue a run that was begun under other circumstances, naming what differs.

    A setting that one side lacks counts as its default there: the run is older, or newer, than the setting. What is
    finished stays so, whatever made its views; a run whose views would come from two pipelines is refused.
    """
    defaults = {**UNNAMED, **leaves(get_cfg_default())}
    if finished:
        theirs = {**theirs, "views": ours.get("views")}

    def value(side: Mapping, key: str) -> object:
        return side.get(key, defaults.get(key))

    if value(ours, "views") != value(theirs, "views"):
        raise ConfigError(f"{folder} holds an unfinished run whose views were made by {value(theirs, 'views')}, while "
                          f"this version makes others ({value(ours, 'views')}): choose another --output-dir")

    keys = sorted(key for key in {*ours, *theirs} if value(ours, key) != value(theirs, key))
    if keys:
        differences = "; ".join(f"{key} was {value(theirs, key)!r}, is {value(ours, key)!r}" for key in keys)
        raise ConfigError(f"{folder} holds a run with other settings ({differences}): choose another --output-dir")


def tag_of(settings: Mapping[str, object], baseline: Mapping[str, object]) -> str:
    """A readable folder name for the settings that differ from the baseline: `default`, or `STEPS-2_LAMBDA-10.0`."""
    changed = [
        f"{key.rsplit('.', 1)[-1]}-{prompt_name(value) if key == 'MODEL.INIT_WEIGHTS' else value}"
        for key, value in settings.items() if not setting_of(key).in_path and value != baseline.get(key)
    ]
    return path_safe("_".join(changed)) or "default"


def prompt_name(name: str) -> str:
    """A prompt in short: an embedded one's name as it is; of a path what tells prompts apart by eye (CoOp calls every
    file prompt_learner/model.pth.tar-<epoch>) and a hash of the file, or of the path where it cannot be read."""
    path = Path(name)
    try:
        content = read_regular(path)
    except OSError:
        if path.name == name:
            return name
        content = name.encode()
    coops = path.parent.name == "prompt_learner" and path.parent.parent.name
    return f"{coops or path.name.split('.')[0]}-{short_hash(content)}"


def path_safe(text: str) -> str:
    """`text` as a part of a path. One that is too long ends with a hash of the whole: what is cut off may be all that
    tells two runs apart."""
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    if len(safe) <= LONGEST:
        return safe
    mark = short_hash(text.encode())
    return f"{safe[: LONGEST - 1 - len(mark)].rstrip('-.')}-{mark}"


def short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def run_path(cfg: CfgNode) -> Path:
    """`--output-dir`, or output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>."""
    if cfg.OUTPUT_DIR:
        return Path(cfg.OUTPUT_DIR)
    if Path(cfg.TAG).is_absolute() or ".." in Path(cfg.TAG).parts or not cfg.TAG.isprintable():
        raise ConfigError(f"TAG is {cfg.TAG!r}; it must be a name below output/<dataset>/<trainer>/<backbone>")
    backbone = path_safe(backbone_name(cfg.MODEL.BACKBONE.NAME))
    dataset = path_safe(run_name(cfg.DATASET.NAME, cfg.DATASET.ROOT))
    return Path("output", dataset, path_safe(cfg.TRAINER.NAME), backbone, cfg.TAG, f"seed{cfg.SEED}")


def backbone_name(name: str) -> str:
    """A backbone in short: of files and folders their last name, behind the family and the model that are named."""
    family, colon, rest = name.partition(":")
    if not colon:
        return Path(name).stem if Path(name).suffix else name
    model, at, file = rest.partition("@")
    if at:
        return f"{family}-{model}-{Path(file).stem}"
    return f"{family}-{Path(rest).name if Path(rest).is_dir() else rest}"
