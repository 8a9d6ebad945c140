"""The TensorBoard files of a run: curves while it runs, metrics and settings when it is done."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from ...datasets.base import dataset_info
from ...datasets.utils.files import writing
from ..registry import branch_of, method_info
from .summary import result_table


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


def write_final(run_dir: Path, settings: Mapping, results: Mapping) -> None:
    """The final metrics, the settings that they belong to, and the table of results."""
    method = results["trainer"]
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
