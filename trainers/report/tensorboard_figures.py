"""The figure of a finished run for TensorBoard: reliability before and after tuning."""
from __future__ import annotations

import hashlib
import io
import logging
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from ...datasets.utils.errors import one_line
from ...datasets.utils.files import read_regular
from ..config.settings import event_folder
from ..functional.arrays import Array
from ..functional.calibration import top_class
from ..registry import ZERO_SHOT, method_info
from .figures.reliability import Diagram, diagram, draw_grid
from .figures.style import encode
from .load import FinishedRun, read_run
from .words import column_words, method_name

logger = logging.getLogger(__name__)

SUFFIX = ".figures"  # of the event file, after a hash of the results that it shows


def write_tensorboard_figures(run_dir: Path) -> None:
    """Adds a figure to the event folder of a finished run, unless it is already there.

    Whatever fails is logged as a warning: the run itself is complete.
    """
    try:
        run = read_run(run_dir)
        folder = event_folder(run_dir, run.trainer)
        content = read_regular(run_dir / "results.json")
        suffix = f".{hashlib.sha256(content).hexdigest()[:8]}{SUFFIX}"
        drawn = list(folder.glob(f"events.*{SUFFIX}"))
        if any(file.name.endswith(suffix) for file in drawn):
            return
        for file in drawn:  # of other results
            file.unlink()
        with SummaryWriter(str(folder), filename_suffix=suffix) as writer:
            write_reliability(writer, run)
    except Exception as error:
        logger.warning("no figures for TensorBoard: %s", one_line(error, 200),
                       exc_info=logger.isEnabledFor(logging.DEBUG))


def write_reliability(writer: SummaryWriter, run: FinishedRun) -> None:
    """Adds the reliability diagrams before and after tuning, side by side in one image."""
    data = run.load_predictions()
    bins = run.results["bins"]
    panels: dict[str, Diagram] = {}
    if not method_info(run.trainer).zero_shot:
        confidence, correct = top_class(data.zero_shot_logits, data.label)
        panels["before tuning"] = diagram(ZERO_SHOT, confidence, correct, bins)
    confidence, correct = top_class(data.logits, data.label)
    title = f"{method_name(run.record)} on {column_words(run.record)}"
    panels[title] = diagram(run.trainer, confidence, correct, bins)
    figure = draw_grid({run.trainer: panels})
    writer.add_image("reliability", pixels(figure), run.results["n"], dataformats="HWC")


def pixels(figure: Figure) -> Array:
    """A figure as uint8 (H, W, 3)."""
    return np.asarray(Image.open(io.BytesIO(encode(figure, "png", dpi=200))).convert("RGB"))
