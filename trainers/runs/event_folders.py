"""Where TensorBoard's files of a run are: two event folders, so that curves of both overlay."""
from __future__ import annotations

from pathlib import Path

from ..registry import method_info

FOLDER = "tensorboard"  # of a run
TUNED = "tuned"  # event folders in it
ZERO_SHOT = "zero-shot"


def event_folder(run_dir: Path, trainer: str) -> Path:
    """The event folder of a run's own predictions. Those of ZeroShot are the zero-shot ones."""
    name = ZERO_SHOT if method_info(trainer).zero_shot else TUNED
    return run_dir / FOLDER / name
