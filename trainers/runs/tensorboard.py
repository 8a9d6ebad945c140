"""The TensorBoard files of a run: curves while it runs, metrics and settings when it is done."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.api_pb2 import DATA_TYPE_FLOAT64
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from ...datasets.base import dataset_info
from ...datasets.utils.files import writing
from ..registry import branch_of, method_info

# TensorBoard's table of settings shows five columns at first, those marked as different, sorted by key: these, by key
# and display name.
FIRST_COLUMNS = {"method": "method", "method λ": "λ", "steps": "steps", "test data": "data set", "test seed": "seed"}


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
    """The final metrics and the settings that they belong to. (`add_hparams` would open a second TensorBoard run.)"""
    metrics = {name: results[name] for name in ("accuracy", "ece", "ace", "confidence", "seconds_per_image")}
    method = results["trainer"]
    weight = settings.get(f"TRAINER.{branch_of(method)}.LAMBDA")
    plain = {
        "method": method_info(method).label, **({} if weight is None else {"method λ": weight}),
        "steps": settings.get("TTA.STEPS", 1), "test data": dataset_info(results["dataset"]).label,
        "test seed": results["seed"],
        **{key: value for key, value in settings.items() if isinstance(value, (bool, int, float, str))},
    }
    folder = run_dir / "tensorboard"
    with writing(folder), SummaryWriter(str(folder)) as writer:
        described, *session = hparams(plain, {f"final/{name}": None for name in metrics})
        mark_first_columns(described)
        for summary in (described, *session):
            writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(f"final/{name}", value, results["n"])
        writer.add_text("results", text_table(results), results["n"])


def mark_first_columns(described: Summary) -> None:
    """Makes TensorBoard show FIRST_COLUMNS first. It asks one run of several for the columns, so every run names λ."""
    for value in described.value:
        data = HParamsPluginData.FromString(value.metadata.plugin_data.content)
        infos = data.experiment.hparam_infos
        if "method λ" not in {info.name for info in infos}:
            infos.add(name="method λ", type=DATA_TYPE_FLOAT64)
        for info in infos:
            if info.name in FIRST_COLUMNS:
                info.display_name = FIRST_COLUMNS[info.name]
                if "differs" in info.DESCRIPTOR.fields_by_name:  # older versions keep the given order
                    info.differs = True
        value.metadata.plugin_data.content = data.SerializeToString()


def text_table(results: Mapping) -> str:
    """The run's metrics as a Markdown table: the method beside zero-shot."""
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
