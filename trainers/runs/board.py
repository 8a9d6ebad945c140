"""A run's TensorBoard: curves while it goes on, figures and settings at its end."""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ...datasets.utils.files import writing
from ..registry import branch_of, method_label

logger = logging.getLogger(__name__)

# Adds pictures to a finished run's board, given results.json and the columns of predictions.npz. Whoever starts a run
# hands it in: drawing belongs to the report, which stands above.
Draw = Callable[[SummaryWriter, Mapping, Mapping[str, np.ndarray]], None]


class Curves:
    """A TensorBoard run that grows for as long as one trains or tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            with writing(self.folder):
                self.writer.close()

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Adds a point to each curve."""
        with writing(self.folder):
            if self.writer is None:
                # A run that was cut off may have got further than what it kept: those points are taken back.
                self.writer = SummaryWriter(str(self.folder), purge_step=step)
            for name, value in scalars.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()


def write_final(
    folder: Path, settings: Mapping, results: Mapping, columns: Mapping[str, np.ndarray], draw: Draw | None = None,
) -> None:
    """The final figures, the settings they belong to, and what `draw` adds (`add_hparams` would open another run)."""
    metrics = {name: results[name] for name in ("accuracy", "ece", "ace", "confidence", "seconds_per_image")}
    method = results["trainer"]
    weight = settings.get(f"TRAINER.{branch_of(method)}.LAMBDA")
    # What runs are compared by comes first: TensorBoard shows columns in this order.
    plain = {
        "method": method_label(method), **({} if weight is None else {"λ": weight}),
        "steps": settings.get("TTA.STEPS", 1),
        **{key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))},
    }
    board = folder / "tensorboard"
    with writing(board), SummaryWriter(str(board)) as writer:
        for summary in hparams(plain, {f"final/{name}": None for name in metrics}):
            writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(f"final/{name}", value, results["n"])
        writer.add_text("results", text_table(results), results["n"])
        if draw is not None:
            try:
                draw(writer, results, columns)
            except OSError:  # a full disk is told as everywhere
                raise
            except Exception:  # whatever a picture stumbles over, hours of predictions are not lost for it
                logger.warning("the pictures for TensorBoard are left out", exc_info=True)


def text_table(results: Mapping) -> str:
    """The run's figures as a Markdown table: the method beside zero-shot."""
    lines = [
        f"{results['dataset']}, {results['backbone']}, seed {results['seed']}, {results['n']} test images, "
        f"{results['bins']} bins; percent", "", "| | accuracy | ECE | ACE |", "|:--|--:|--:|--:|",
    ]
    rows = [(method_label(results["trainer"]), ""), ("Zero-shot", "zero_shot_")]
    if "sals_ece" in results:
        rows.insert(1, (f"{rows[0][0]} + SaLS", "sals_"))
    for name, prefix in rows:
        figures = " | ".join(f"{results[prefix + key]:.2f}" for key in ("accuracy", "ece", "ace"))
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)
