"""A run's TensorBoard: curves while it goes on, figures and settings at its end."""
from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.api_pb2 import DATA_TYPE_FLOAT64
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ...datasets.base import dataset_info
from ...datasets.utils.files import writing
from ..registry import branch_of, method_info

logger = logging.getLogger(__name__)

# What runs are compared by. TensorBoard shows the columns that are marked as different first, and sorts by key.
# It shows five at first: these, by key and as they are shown.
LEADING = {"method": "method", "method λ": "λ", "steps": "steps", "test data": "data set", "test seed": "seed"}

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
    plain = {
        "method": method_info(method).label, **({} if weight is None else {"method λ": weight}),
        "steps": settings.get("TTA.STEPS", 1), "test data": dataset_info(results["dataset"]).label,
        "test seed": results["seed"],
        **{key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))},
    }
    board = folder / "tensorboard"
    with writing(board), SummaryWriter(str(board)) as writer:
        described, *session = hparams(plain, {f"final/{name}": None for name in metrics})
        _lead(described)
        for summary in (described, *session):
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


def _lead(described: Summary) -> None:
    """Has TensorBoard show what runs are compared by before all other settings. Of several runs it asks only one which
    columns there are, so each names λ, whether its own method has one or not."""
    for value in described.value:
        data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
        infos = data.experiment.hparam_infos
        if "method λ" not in {info.name for info in infos}:
            infos.add(name="method λ", type=DATA_TYPE_FLOAT64)
        for info in infos:
            if info.name in LEADING:
                info.display_name = LEADING[info.name]
                if "differs" in info.DESCRIPTOR.fields_by_name:  # older versions keep the given order
                    info.differs = True
        value.metadata.plugin_data.content = data.SerializeToString()


def text_table(results: Mapping) -> str:
    """The run's figures as a Markdown table: the method beside zero-shot."""
    lines = [
        f"{results['dataset']}, {results['backbone']}, seed {results['seed']}, {results['n']} test images, "
        f"{results['bins']} bins; percent", "", "| | accuracy | ECE | ACE |", "|:--|--:|--:|--:|",
    ]
    rows = [(method_info(results["trainer"]).label, ""), ("Zero-shot", "zero_shot_")]
    if "sals_ece" in results:
        rows.insert(1, (f"{rows[0][0]} + SaLS", "sals_"))
    for name, prefix in rows:
        figures = " | ".join(f"{results[prefix + key]:.2f}" for key in ("accuracy", "ece", "ace"))
        lines.append(f"| {name} | {figures} |")
    return "\n".join(lines)
