"""The progress of a run: its bar and TensorBoard curves while it runs, metrics and settings when it is done."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from ...datasets.base import dataset_info
from ...datasets.utils.files import writing
from ..functional.calibration import ece, top_class
from ..registry import branch_of, method_info
from .parts import Columns
from .record import RunRecord
from .summary import result_table

POINTS = 50  # of a curve, at most, besides those at the ends of parts


class ScalarWriter:
    """Writes curves; the file is created with the first point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None

    def __enter__(self) -> ScalarWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            with writing(self.folder):
                self.writer.close()

    def add(self, scalars: Mapping[str, float], step: int) -> None:
        """Adds a point to each curve."""
        with writing(self.folder):
            if self.writer is None:
                # An interrupted run may have logged more images than it saved: purge those points.
                self.writer = SummaryWriter(str(self.folder), purge_step=step)
            for name, value in scalars.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()


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


def write_final(run_dir: Path, record: RunRecord, results: Mapping) -> None:
    """The final metrics, the settings that they belong to, and the table of results."""
    method = results["trainer"]
    settings = record.method["settings"]
    weight = settings.get(f"TRAINER.{branch_of(method)}.LAMBDA")
    compared = {"method": method_info(method).label, "data set": dataset_info(results["dataset"]).label,
                **({} if weight is None else {"λ": weight})}
    plain = {key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))}
    names = ("accuracy", "ece", "ace", "confidence", "seconds_per_image")
    metrics = {f"final/{name}": results[name] for name in names}
    folder = run_dir / "tensorboard"
    with writing(folder), SummaryWriter(str(folder)) as writer:
        writer.add_text("results", f"```\n{result_table([results])}\n```", results["n"])
        writer.add_hparams({**compared, **plain}, metrics, run_name=".", global_step=results["n"])
