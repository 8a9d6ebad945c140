"""Writes what TensorBoard shows of a run: curves, then its settings and final metrics.

A run has two event folders, `tensorboard/tuned` and `tensorboard/zero-shot`, with curves of the
same names. TensorBoard draws curves of one name in one chart, so each chart compares both.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import metadata as hparams
from tensorboard.plugins.hparams.api_pb2 import (
    DATA_TYPE_FLOAT64,
    DATA_TYPE_STRING,
    STATUS_SUCCESS,
    Experiment,
    HParamInfo,
    MetricInfo,
    MetricName,
)
from tensorboard.plugins.hparams.plugin_data_pb2 import (
    HParamsPluginData,
    SessionEndInfo,
    SessionStartInfo,
)
from torch.utils.tensorboard import SummaryWriter

from ...datasets.utils.files import writing
from ...datasets.utils.progress import progress_bar
from ..config.settings import event_folder, zero_shot_event_folder
from ..functional import BINS
from ..functional.arrays import top_class
from ..functional.calibration import ece
from ..registry import branch_of, method_info
from .record import RunRecord
from .run_dir import Columns
from .summary import result_table

POINTS = 50  # largest number of points of a curve, besides those at the ends of parts

# Names of curves. TensorBoard sorts charts by name: these come before those of the losses, in this
# order.
ACCURACY = "calibration/1 accuracy"
ECE = "calibration/2 ECE"
CONFIDENCE = "calibration/3 mean confidence"
OVER_CONFIDENCE = "calibration/4 over-confidence"
# The curves of which HPARAMS shows the last point. It reads them by these names.
HPARAMS_METRICS = {ACCURACY: "accuracy", ECE: "ECE", OVER_CONFIDENCE: "over-confidence"}
# TensorBoard sorts the columns of HPARAMS by name, so names begin with their place.
HPARAMS_COLUMNS = ("method", "data set", "backbone", "prompt", "λ", "steps", "seed")
NUMBERS = ("λ", "steps", "seed")


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
        """Adds a point to each curve.

        Args:
            scalars: The points by the name of their curve.
            step: Position on the x axis, the number of images so far.
        """
        with writing(self.folder):
            if self.writer is None:
                # An interrupted run may have logged more images than it saved: purge those points.
                self.writer = SummaryWriter(str(self.folder), purge_step=step)
            for name, value in scalars.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()


class RunningMetrics:
    """Accuracy and calibration of the images so far."""

    def __init__(self, bins: int) -> None:
        self.bins = bins
        self.confidence = np.empty(0)
        self.correct = np.empty(0)

    def __len__(self) -> int:
        return len(self.correct)

    def add(self, logits: np.ndarray, label: np.ndarray) -> None:
        """Adds images.

        Args:
            logits: Logits of N images, (N, K).
            label: Classes of the images, (N,).
        """
        confidence, correct = top_class(logits, label)
        self.confidence = np.append(self.confidence, confidence)
        self.correct = np.append(self.correct, correct)

    def scalars(self) -> dict[str, float]:
        """The points of the curves, in percent."""
        accuracy = 100 * float(self.correct.mean())
        confidence = 100 * float(self.confidence.mean())
        return {
            ACCURACY: accuracy,
            ece_curve(self.bins): 100 * ece(self.confidence, self.correct, self.bins),
            CONFIDENCE: confidence,
            OVER_CONFIDENCE: confidence - accuracy,
        }


class Progress(AbstractContextManager["Progress"]):
    """The bar of a run, and its curves against the number of images.

    The last point of the curves is that of `write_final`, which has the images of all processes.
    """

    def __init__(
        self, name: str, total: int, bins: int, folders: Sequence[Path],
        finished: Sequence[Columns] = (), shown: bool = True,
    ) -> None:
        """
        Args:
            name: Name of the method, which the bar shows.
            total: Number of images of the run.
            bins: Number of bins of ECE.
            folders: Folders of the curves, as `event_folders` returns them.
            finished: The columns of the parts that an earlier call has predicted.
            shown: Whether this process shows a bar and writes curves.
        """
        self.shown = shown
        self.total = total
        self.counted = 0  # images so far, unreadable ones too
        self.every = max(1, total // POINTS)  # images between two points
        self.logged = 0  # images at the last point
        self.tuned_writer = ScalarWriter(folders[0])
        self.zero_shot_writer = ScalarWriter(folders[-1])
        self.tuned = RunningMetrics(bins)
        self.zero_shot: RunningMetrics | None = None
        if len(folders) > 1:
            self.zero_shot = RunningMetrics(bins)
        for columns in finished:
            self.count(columns)
        self.bar = progress_bar(total, name, "img", initial=self.counted, shown=shown)

    def __exit__(self, *error: object) -> None:
        self.tuned_writer.__exit__(*error)
        self.zero_shot_writer.__exit__(*error)
        self.bar.close()

    def advance(self, columns: Columns) -> None:
        """Adds a batch, and a point to each curve if the last one is long ago."""
        counted_before = self.counted
        self.count(columns)
        if len(self.tuned) - self.logged >= self.every:
            self.log(columns)
        self.bar.update(self.counted - counted_before)

    def count(self, columns: Columns) -> None:
        """Adds images to the metrics."""
        label = columns["label"]
        if len(label):
            self.tuned.add(columns["logits"], label)
            if self.zero_shot is not None:
                self.zero_shot.add(columns["zero_shot_logits"], label)
        self.counted += len(label) + len(columns["bad_index"])

    def log(self, columns: Columns) -> None:
        """Shows the metrics so far beside the bar and in the curves.

        Called at the end of a part, and often enough within it that a small set has a curve.
        """
        if not self.shown or len(self.tuned) == self.logged:
            return
        self.logged = len(self.tuned)
        scalars = self.tuned.scalars()
        if self.counted < self.total:
            self.add_points(scalars, columns)
        error = scalars[ece_curve(self.tuned.bins)]
        self.bar.set_postfix_str(f"acc {scalars[ACCURACY]:.1f}, ECE {error:.1f}")

    def add_points(self, scalars: dict[str, float], columns: Columns) -> None:
        """Adds a point to each curve.

        Args:
            scalars: Scalars of the tuned predictions so far, in percent.
            columns: Columns of the last images, whose times, losses and penalties are shown.
        """
        images = max(len(columns["label"]), 1)
        scalars["episode/seconds per image"] = columns["seconds"].sum() / images
        for name in ("loss", "penalty"):
            if name in columns and np.isfinite(columns[name]).any():
                scalars[f"episode/{name}"] = float(np.nanmean(columns[name]))
        self.tuned_writer.add(scalars, self.logged)
        if self.zero_shot is not None:
            self.zero_shot_writer.add(self.zero_shot.scalars(), self.logged)


def write_final(run_dir: Path, record: RunRecord, results: Mapping[str, Any]) -> None:
    """Writes the last point of the curves, their settings, and the table of results.

    Args:
        run_dir: The run's folder.
        record: The record of the run, for HPARAMS.
        results: The content of the run's results.json.
    """
    trainer = results["trainer"]
    folder = event_folder(run_dir, trainer)
    step = results["n"]
    with writing(folder), SummaryWriter(str(folder), purge_step=step) as writer:
        add_scalars(writer, final_scalars(results, ""), step)
        writer.add_text("results", f"```\n{result_table([results])}\n```", step)
        # Not by `add_hparams`, which would write them into another folder, as another run.
        for summary in hparams_summaries(record, results["bins"]):
            writer._get_file_writer().add_summary(summary)
    if not method_info(trainer).zero_shot:
        folder = zero_shot_event_folder(run_dir)
        with writing(folder), SummaryWriter(str(folder), purge_step=step) as writer:
            add_scalars(writer, final_scalars(results, "zero_shot_"), step)


def write_other_bins(run_dir: Path, results: Mapping[str, Any]) -> None:
    """Writes ECE and the table of results of a finished run that was measured with other bins.

    The curve of ECE with the first number of bins keeps its points: each number of bins has a curve
    of its own.

    Args:
        run_dir: The run's folder.
        results: The content of the run's results.json, with the new bins.
    """
    trainer = results["trainer"]
    name = ece_curve(results["bins"])
    folder = event_folder(run_dir, trainer)
    with writing(folder), SummaryWriter(str(folder)) as writer:
        writer.add_scalar(name, results["ece"], results["n"])
        writer.add_text("results", f"```\n{result_table([results])}\n```", results["n"])
    if not method_info(trainer).zero_shot:
        folder = zero_shot_event_folder(run_dir)
        with writing(folder), SummaryWriter(str(folder)) as writer:
            writer.add_scalar(name, results["zero_shot_ece"], results["n"])


def ece_curve(bins: int) -> str:
    """The name of the curve of ECE. It states a number of bins that is not the default."""
    return ECE if bins == BINS else f"{ECE}, {bins} bins"


def final_scalars(results: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Returns the last points of the curves, in percent.

    Args:
        results: The content of results.json.
        prefix: Prefix of the metrics: `zero_shot_`, or "" for the method's.
    """
    return {
        ACCURACY: results[f"{prefix}accuracy"],
        ece_curve(results["bins"]): results[f"{prefix}ece"],
        CONFIDENCE: results[f"{prefix}confidence"],
        OVER_CONFIDENCE: results[f"{prefix}over_confidence"],
    }


def add_scalars(writer: SummaryWriter, scalars: Mapping[str, float], step: int) -> None:
    """Adds a point to each curve.

    Args:
        writer: The writer of the event file.
        scalars: The points by the name of their curve.
        step: Position on the x axis, the number of images so far.
    """
    for name, value in scalars.items():
        writer.add_scalar(name, value, step)


def hparams_values(record: RunRecord) -> dict[str, object]:
    """Returns the settings of a run by column of HPARAMS. A method without λ or steps has none."""
    settings = record.method["settings"]
    values: dict[str, object] = {
        "method": record.names["method"],
        "data set": data_words(record),
        "backbone": record.names["backbone"],
        "prompt": record.names.get("prompt") or record.get("model.prompt.words") or "class texts",
        "seed": record.seed,
    }
    weight = settings.get(f"TRAINER.{branch_of(record.method['trainer'])}.LAMBDA")
    if weight is not None:
        values["λ"] = weight
    steps = settings.get("TTA.STEPS")
    if steps is not None:
        values["steps"] = steps
    return values


def data_words(record: RunRecord) -> str:
    """The images of a run in words; test images if nothing is said."""
    words = [record.images_name]
    if record.data.get("split") != "test":
        words.append(str(record.data.get("split")))
    if record.data.get("subset"):
        words.append(str(record.data["subset"]))
    return ", ".join(words)


def column_name(column: str) -> str:
    """The name of a column of HPARAMS in event files, such as `1 method`."""
    return f"{HPARAMS_COLUMNS.index(column) + 1} {column}"


def hparams_summaries(record: RunRecord, bins: int) -> list[Summary]:
    """Returns what HPARAMS shows of a run, as events.

    All runs with the same bins declare the same columns, because TensorBoard shows those of one run
    for all of them.

    Args:
        record: The record of the run.
        bins: Number of bins of its ECE.
    """
    experiment = Experiment()
    for column in HPARAMS_COLUMNS:
        kind = DATA_TYPE_FLOAT64 if column in NUMBERS else DATA_TYPE_STRING
        experiment.hparam_infos.append(
            HParamInfo(name=column_name(column), display_name=column, type=kind))
    for tag, title in HPARAMS_METRICS.items():
        if tag == ECE and bins != BINS:
            tag = ece_curve(bins)
            title = f"ECE, {bins} bins"
        experiment.metric_infos.append(MetricInfo(name=MetricName(tag=tag), display_name=title))
    start = SessionStartInfo()
    for column, value in hparams_values(record).items():
        entry = start.hparams[column_name(column)]
        if column in NUMBERS:
            entry.number_value = float(str(value))
        else:
            entry.string_value = str(value)
    end = SessionEndInfo(status=STATUS_SUCCESS)
    contents = {
        hparams.EXPERIMENT_TAG: HParamsPluginData(experiment=experiment),
        hparams.SESSION_START_INFO_TAG: HParamsPluginData(session_start_info=start),
        hparams.SESSION_END_INFO_TAG: HParamsPluginData(session_end_info=end),
    }
    return [hparams_summary(tag, content) for tag, content in contents.items()]


def hparams_summary(tag: str, content: HParamsPluginData) -> Summary:
    """Returns one event of HPARAMS, as TensorBoard stores it.

    Args:
        tag: The tag of the event: the columns, the start of a run, or its end.
        content: The content of the event.
    """
    metadata = hparams.create_summary_metadata(content)
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=hparams.NULL_TENSOR)])
