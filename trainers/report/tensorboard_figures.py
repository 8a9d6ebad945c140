"""Figures of a finished run for TensorBoard, drawn from its folder: reliability and confidence, before and after."""
from __future__ import annotations

import io
import logging
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from ...datasets.base import dataset_info
from ...datasets.utils.errors import one_line
from ..functional.arrays import Array
from ..functional.calibration import top_class
from ..registry import ZERO_SHOT, method_info
from .figures.reliability import diagram, draw_grid
from .figures.style import encode
from .load import Run, read_run

logger = logging.getLogger(__name__)

SUFFIX = ".figures"  # of the event file


def write_tensorboard_figures(run_dir: Path) -> None:
    """Adds figures to the tensorboard/ folder of a finished run, unless they are already there. Whatever fails is
    logged as a warning: the run itself is complete."""
    folder = run_dir / "tensorboard"
    try:
        finished = (run_dir / "results.json").stat().st_mtime
        drawn = list(folder.glob(f"events.*{SUFFIX}"))
        if not any(file.stat().st_mtime >= finished for file in drawn):
            for file in drawn:
                file.unlink()
            with SummaryWriter(str(folder), filename_suffix=SUFFIX) as writer:
                _write(writer, read_run(run_dir))
    except Exception as error:
        logger.warning("no figures for TensorBoard: %s", one_line(error, 200),
                       exc_info=logger.isEnabledFor(logging.DEBUG))


def _write(writer: SummaryWriter, run: Run) -> None:
    data, method = run.load_predictions(), method_info(run.trainer)
    step, bins = run.results["n"], run.results["bins"]
    title = f"{method.label} on {dataset_info(run.dataset).label}"
    for tag, logits, name, head in (
        ("tuned", data.logits, run.trainer, title),
        ("zero_shot", data.zero_shot_logits, ZERO_SHOT, f"{title}: before tuning"),
    ):
        confidence, correct = top_class(logits, data.label)
        figure = draw_grid({name: {head: diagram(name, confidence, correct, bins)}})
        writer.add_image(f"reliability/{tag}", pixels(figure), step, dataformats="HWC")
        writer.add_histogram(f"confidence/{tag}", confidence, step, bins=np.arange(bins + 1) / bins)


def pixels(figure: Figure) -> Array:
    """A figure as uint8 (H, W, 3)."""
    return np.asarray(Image.open(io.BytesIO(encode(figure, "png", dpi=200))).convert("RGB"))
