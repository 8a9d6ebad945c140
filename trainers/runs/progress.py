"""What a person watches while a run goes on: the bar in the terminal and the curves in TensorBoard."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams
from tqdm import tqdm

from ...datasets.utils.files import writing
from ..calibration import ece, top_class

Columns = Mapping[str, np.ndarray]


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


class Progress:
    """Running accuracy, ECE, confidence, loss terms and speed, against images seen."""

    def __init__(self, folder: Path, total: int, bins: int, title: str, shown: bool = True) -> None:
        self.bins = bins
        self.confidence, self.correct = np.empty(0), np.empty(0)
        self.bar = tqdm(total=total, desc=title, unit="img", dynamic_ncols=True, disable=not shown)
        self.shown = shown
        self.curves = Curves(folder / "tensorboard")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *failure: object) -> None:
        self.bar.close()
        self.curves.__exit__(*failure)

    def remember(self, columns: Columns) -> None:
        """Counts images that were predicted before or just now."""
        if len(columns["label"]):
            confidence, correct = top_class(columns["logits"], columns["label"])
            self.confidence = np.append(self.confidence, confidence)
            self.correct = np.append(self.correct, correct)
        self.bar.update(len(columns["label"]) + len(columns["bad_index"]))

    def running(self) -> dict[str, float]:
        if not len(self.correct):
            return {}
        return {
            "accuracy": 100 * float(self.correct.mean()),
            "ece": 100 * ece(self.confidence, self.correct, self.bins),
            "confidence": 100 * float(self.confidence.mean()),
        }

    def advance(self, columns: Columns) -> None:
        """Moves the bar by a batch."""
        self.remember(columns)
        if running := self.running():
            speed = columns["seconds"].sum() / max(len(columns["label"]), 1)
            self.bar.set_postfix_str(f"acc {running['accuracy']:.1f}, ECE {running['ece']:.1f}, {speed:.3f} s/img")

    def log(self, columns: Columns) -> None:
        """Adds a point to each curve, once a part."""
        if not self.shown:
            return
        scalars = {f"running/{name}": value for name, value in self.running().items()}
        scalars["speed/seconds_per_image"] = columns["seconds"].sum() / max(len(columns["label"]), 1)
        for name in ("loss", "penalty"):
            if np.isfinite(columns[name]).any():
                scalars[f"episode/{name}"] = np.nanmean(columns[name])
        self.curves.add(scalars, len(self.correct))


def write_final(folder: Path, settings: Mapping, results: Mapping, columns: Columns, similarity: np.ndarray) -> None:
    """The final figures and pictures, and the settings they belong to, in this run (`add_hparams` would open another).

    `similarity` (K, K) tells which classes are close.
    """
    from .board import write_pictures  # draws, and drawing takes long to import

    metrics = {name: results[name] for name in ("accuracy", "ece", "ace", "confidence", "seconds_per_image")}
    plain = {key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))}
    board = folder / "tensorboard"
    with writing(board), SummaryWriter(str(board)) as writer:
        for summary in hparams(plain, {f"final/{name}": None for name in metrics}):
            writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(f"final/{name}", value, results["n"])
        write_pictures(
            writer, results, columns["label"], columns["logits"], columns["zero_shot_logits"], similarity,
        )
