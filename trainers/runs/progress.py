"""The progress of a run: the bar in the terminal and the curves in TensorBoard."""
from __future__ import annotations

from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..functional.calibration import ece, top_class
from .parts import Columns
from .tensorboard import ScalarWriter

POINTS = 50  # of a curve, at most, besides those at the ends of parts


class Progress:
    """Running accuracy, ECE, confidence, losses and speed, against the number of images."""

    def __init__(self, run_dir: Path, total: int, bins: int, title: str, shown: bool = True) -> None:
        self.bins = bins
        self.confidence, self.correct = np.empty(0), np.empty(0)
        self.bar = tqdm(total=total, desc=title, unit="img", dynamic_ncols=True, disable=not shown)
        self.shown = shown
        self.scalars = ScalarWriter(run_dir / "tensorboard")
        self.every = max(1, total // POINTS)
        self.logged = 0  # images at the last point

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()
        self.scalars.__exit__(*error)

    def count(self, columns: Columns) -> None:
        """Counts images that were predicted now or before."""
        if len(columns["label"]):
            confidence, correct = top_class(columns["logits"], columns["label"])
            self.confidence = np.append(self.confidence, confidence)
            self.correct = np.append(self.correct, correct)
        self.bar.update(len(columns["label"]) + len(columns["bad_index"]))

    def advance(self, columns: Columns) -> None:
        """Moves the bar by a batch."""
        self.count(columns)
        if len(self.correct) - self.logged >= self.every:
            self.log(columns)

    def log(self, columns: Columns) -> None:
        """Adds a point to each curve: at the end of a part, and often enough within it that a small set has a curve."""
        if not self.shown or len(self.correct) == self.logged:
            return
        self.logged = len(self.correct)
        accuracy, error = 100 * self.correct.mean(), 100 * ece(self.confidence, self.correct, self.bins)
        self.bar.set_postfix_str(f"acc {accuracy:.1f}, ECE {error:.1f}")
        scalars = {
            "running/accuracy": accuracy, "running/ece": error, "running/confidence": 100 * self.confidence.mean(),
            "speed/seconds_per_image": columns["seconds"].sum() / max(len(columns["label"]), 1),
        }
        for name in ("loss", "penalty"):
            if name in columns and np.isfinite(columns[name]).any():
                scalars[f"episode/{name}"] = np.nanmean(columns[name])
        self.scalars.add(scalars, len(self.correct))
