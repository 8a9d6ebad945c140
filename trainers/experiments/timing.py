"""How long unfinished runs take, and how much disk they need.

Times come from finished runs of the same kind. Where there is none the time is unknown: a pilot
with a few images (`--limit`) makes it known.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ...datasets.utils.files import read_json
from ..runs.record import RunRecord
from .planned_run import PlannedRun

# Numbers in a feature, by backbone.
WIDTHS = {"small": 128, "RN101": 512, "ViT-B/32": 512, "ViT-B/16": 512, "ViT-L/14": 768,
          "ViT-L/14@336px": 768}
WIDEST = 1024  # of any other backbone
BYTES_PER_CLASS = 8  # of an image in predictions.npz: two logits


@dataclass(frozen=True)
class Estimate:
    """What an unfinished run takes.

    Attributes:
        disk: Disk space in bytes.
        seconds: Time; None if it is not known.
    """

    disk: float
    seconds: float | None = None


def estimate(
    runs: Sequence[PlannedRun], finished: Collection[PlannedRun],
) -> dict[PlannedRun, Estimate]:
    """Time and disk space of each unfinished run.

    View features count for the first run that makes them. Jacobians are not counted.

    Args:
        runs: The planned runs, in their order.
        finished: The runs that are finished.
    """
    times: dict[tuple, list[float]] = {}
    # Features that are on disk, or that a run before in the plan makes.
    available = {run.features_key for run in finished}
    bytes_per_number = 2 if torch.cuda.is_available() else 4

    estimates = {}
    for run in runs:
        if run in finished:
            continue
        images, classes = run.size
        disk = images * BYTES_PER_CLASS * classes
        encodes = run.features_key not in available
        available.add(run.features_key)
        if encodes:
            width = WIDTHS.get(run.backbone, WIDEST)
            disk += images * run.num_views * width * bytes_per_number
        seconds = None
        if kind(run) not in times:
            times[kind(run)] = times_per_image(run)
        measured = times[kind(run)]
        if measured and not run.trains_prompt:
            # The slowest had to encode the views, the fastest read them from the cache.
            per_image = max(measured) if encodes else min(measured)
            seconds = images * per_image
        estimates[run] = Estimate(disk, seconds)
    return estimates


def times_per_image(run: PlannedRun) -> list[float]:
    """Seconds per image of finished runs of the same kind, pilots with fewer images included.

    They have the same data set, backbone, number of views and steps, and may have another method: a
    penalty costs little.
    """
    # A folder is <data set>/<method>/<backbone>/<tag>/<seed>.
    backbone = run.folder.parents[1].name
    times = []
    for file in sorted(run.folder.parents[3].glob(f"*/{backbone}/*/*/results.json")):
        results = read_json(file)
        if not isinstance(results, dict) or not results.get("complete"):
            continue
        try:
            record = RunRecord.from_json(results.get("record"))
        except ValueError:  # of another release, or damaged
            continue
        steps = record.method.get("settings", {}).get("TTA.STEPS", run.cfg.TTA.STEPS)
        seconds = results.get("seconds_per_image")
        if record.views.get("count") == run.num_views and steps == run.cfg.TTA.STEPS and seconds:
            times.append(float(seconds))
    return times


def kind(run: PlannedRun) -> tuple[Path, str, int, int]:
    """Runs of one kind take about the same time per image."""
    dataset_folder = run.folder.parents[3]
    backbone = run.folder.parents[1].name
    return dataset_folder, backbone, run.num_views, run.cfg.TTA.STEPS
