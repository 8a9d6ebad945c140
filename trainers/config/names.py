"""Makes the names of files, backbones and runs, and the path of a run's folder.

The path is readable, and differs where settings differ.
"""
from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.base import run_name
from ...datasets.utils.errors import ConfigError
from ...datasets.utils.files import read_regular
from .registry import method_info

MAX_LENGTH = 100  # characters of a part of a run folder's path
SHOTS = re.compile(r"(.+) (\d+ shots?)")  # the label of a learnt prompt, such as `CoOp 2 shots`


def short_hash(content: bytes) -> str:
    """A hash for names that people read: 8 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()[:8]


def path_safe(text: str) -> str:
    """`text` as a part of a path.

    A long one is cut and ends with a hash of the whole, because runs may differ in the rest.
    """
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    if len(safe) <= MAX_LENGTH:
        return safe
    start = safe[: MAX_LENGTH - 9].rstrip("-.")
    return f"{start}-{short_hash(text.encode())}"


def file_label(name: str) -> str:
    """The short name of a prompt, a list or descriptions, with a hash of the file's content.

    CoOp names every prompt prompt_learner/model.pth.tar-<epoch>, so the folder above is the name.
    A file that cannot be read has a hash of its path. An embedded prompt is called by its name.
    """
    path = Path(name)
    content = b""
    with suppress(OSError, ValueError):
        content = read_regular(path)
    if not content and path.name == name:
        return name
    label = path.name.split(".")[0]
    if path.parent.name == "prompt_learner" and path.parent.parent.name:
        label = path.parent.parent.name
    return f"{label}-{short_hash(content or name.encode())}"


def backbone_name(name: str) -> str:
    """A backbone's short name.

    Of a file or folder it is the last name, after the family and the model if they are given.
    """
    family, colon, rest = name.partition(":")
    if not colon:
        return Path(name).stem if Path(name).suffix else name
    model, _, file = rest.partition("@")
    if Path(model).is_dir():
        model = Path(model).name
    parts = [family, model]
    if file:
        parts.append(Path(file).stem)
    return "-".join(parts)


def untuned_words(prompt: str) -> str:
    """What a learnt prompt without tuning is called: `CoOp, 2 shots, untuned`."""
    shots = SHOTS.fullmatch(prompt)
    if shots is not None:
        return f"{shots[1]}, {shots[2]}, untuned"
    return f"{prompt or 'CoOp prompt'}, untuned"


# The folder of a run

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
    """Returns the folder of TensorBoard's events about a run's own predictions.

    The predictions of ZeroShot are the zero-shot ones.

    Args:
        run_dir: The folder of the run.
        trainer: Name of the method.
    """
    if method_info(trainer).zero_shot:
        return zero_shot_event_folder(run_dir)
    return run_dir / "tensorboard" / "tuned"


def zero_shot_event_folder(run_dir: Path) -> Path:
    """The folder of TensorBoard's events about the predictions before tuning."""
    return run_dir / "tensorboard" / "zero-shot"
