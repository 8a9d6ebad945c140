"""How long unfinished runs take, and how much disk they need.

Times come from finished runs of the same kind. Where there is none the time is unknown.
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ..runs.run_dir import RunDir
from .plan import PlannedRun

# Numbers in a feature, by backbone.
WIDTHS = {"small": 128, "RN101": 512, "ViT-B/32": 512, "ViT-B/16": 512, "ViT-L/14": 768,
          "ViT-L/14@336px": 768}
WIDEST = 1024  # of any other backbone
BYTES_PER_CLASS = 8  # of an image in predictions.npz: two logits


@dataclass(frozen=True)
class Estimate:
    """What an unfinished run takes."""

    disk: float  # bytes
    seconds: float | None = None  # None = unknown


def estimate(
    runs: Sequence[PlannedRun], finished: Collection[PlannedRun],
) -> dict[PlannedRun, Estimate]:
    """Time and disk space of each unfinished run.

    View features count for the first run that makes them. Jacobians are not counted.
    """
    times = times_per_image(finished)
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
        measured = times.get(kind(run), [])
        if measured and not run.trains_prompt:
            # The slowest had to encode the views, the fastest read them from the cache.
            per_image = max(measured) if encodes else min(measured)
            seconds = images * per_image
        estimates[run] = Estimate(disk, seconds)
    return estimates


def times_per_image(finished: Collection[PlannedRun]) -> dict[tuple, list[float]]:
    """Seconds per image of finished runs, by kind."""
    times: dict[tuple, list[float]] = {}
    for run in finished:
        results = RunDir(run.folder).results or {}
        seconds = results.get("seconds_per_image")
        if seconds:
            times.setdefault(kind(run), []).append(seconds)
    return times


def kind(run: PlannedRun) -> tuple[str, str, int, int]:
    """Runs of one kind take about the same time per image: a penalty costs little."""
    return run.dataset, run.backbone, run.num_views, run.cfg.TTA.STEPS
