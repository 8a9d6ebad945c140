"""The runs of a report as TensorBoard shows them best: under names one can read, methods laid over each other."""
from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from ...datasets.base import dataset_info
from ...datasets.utils.files import make_folder
from ..registry import method_info
from .measure import Measured
from .settings import setting_words

logger = logging.getLogger(__name__)

# Charts that hold the same curve of every run.
LAYOUT = {
    "methods side by side": {
        "running accuracy (%)": ["Multiline", ["running/accuracy"]],
        "running ECE (%)": ["Multiline", ["running/ece"]],
        "mean confidence (%)": ["Multiline", ["running/confidence"]],
        "loss of the episodes": ["Multiline", ["episode/loss"]],
        "penalty of the episodes": ["Multiline", ["episode/penalty"]],
    },
}


def link_boards(out: Path, measured: Sequence[Measured]) -> Path | None:
    """A folder with a link to each run's own board. TensorBoard calls a run by its folder, and here that is `O-TPT on
    UCF101, λ 20, seed 0` instead of a path that ends in `/tensorboard`. None where no run has a board."""
    folder = out / "tensorboard"
    boards = [(m, m.run.folder / "tensorboard") for m in measured if (m.run.folder / "tensorboard").is_dir()]
    if not boards:
        return None
    make_folder(folder)
    for old in folder.iterdir():
        if old.is_symlink() or old.name.startswith("events."):
            old.unlink()
    words = setting_words([m.run for m in measured])
    try:
        for m, board in boards:
            name = ", ".join(filter(None, (
                f"{method_info(m.run.trainer).label} on {dataset_info(m.run.dataset).label}", words[m.run.folder],
                f"{m.run.results['n']} images", f"seed {m.run.seed}",
            )))
            link = folder / re.sub(r"[^\w ,.+=-]", "-", name)[:120]
            if not link.is_symlink():  # the same run found twice
                link.symlink_to(os.path.relpath(board.resolve(), folder.resolve()), target_is_directory=True)
    except OSError as error:  # a file system without links
        logger.info("no boards by name: %s", error)
        return None
    with SummaryWriter(str(folder)) as writer:
        writer.add_custom_scalars(LAYOUT)
    return folder
