"""Figures of a finished run for TensorBoard, drawn from its folder: reliability and confidence."""
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
from ..functional.arrays import Array
from ..functional.calibration import top_class
from ..registry import ZERO_SHOT
from .figures.reliability import diagram, draw_grid
from .figures.style import encode
from .load import FinishedRun, read_run
from .sentences import column_words, method_name

logger = logging.getLogger(__name__)

SUFFIX = ".figures"  # of the event file, after a hash of the results that it shows


def write_tensorboard_figures(run_dir: Path) -> None:
    """Adds figures to the tensorboard/ folder of a finished run, unless they are already there.

    Whatever fails is logged as a warning: the run itself is complete.
    """
    folder = run_dir / "tensorboard"
    try:
        content = read_regular(run_dir / "results.json")
        suffix = f".{hashlib.sha256(content).hexdigest()[:8]}{SUFFIX}"
        drawn = list(folder.glob(f"events.*{SUFFIX}"))
        if any(file.name.endswith(suffix) for file in drawn):
            return
        for file in drawn:  # of other results
            file.unlink()
        with SummaryWriter(str(folder), filename_suffix=suffix) as writer:
            write_figures_of(writer, read_run(run_dir))
    except Exception as error:
        logger.warning("no figures for TensorBoard: %s", one_line(error, 200),
                       exc_info=logger.isEnabledFor(logging.DEBUG))


def write_figures_of(writer: SummaryWriter, run: FinishedRun) -> None:
    """Reliability and confidence of a run, before and after tuning."""
    data = run.load_predictions()
    title = f"{method_name(run.record)} on {column_words(run.record)}"
    write_predictions(writer, run, "tuned", data.logits, data.label, run.trainer, title)
    before = f"{title}: before tuning"
    write_predictions(writer, run, "zero_shot", data.zero_shot_logits, data.label, ZERO_SHOT, before)


def write_predictions(
    writer: SummaryWriter, run: FinishedRun, tag: str, logits: Array, label: Array, method: str, title: str,
) -> None:
    """One reliability diagram and one histogram."""
    step = run.results["n"]
    bins = run.results["bins"]
    confidence, correct = top_class(logits, label)
    figure = draw_grid({method: {title: diagram(method, confidence, correct, bins)}})
    writer.add_image(f"reliability/{tag}", pixels(figure), step, dataformats="HWC")
    writer.add_histogram(f"confidence/{tag}", confidence, step, bins=np.arange(bins + 1) / bins)


def pixels(figure: Figure) -> Array:
    """A figure as uint8 (H, W, 3)."""
    return np.asarray(Image.open(io.BytesIO(encode(figure, "png", dpi=200))).convert("RGB"))
