"""How long unfinished runs take, and how much disk they need.

Times are measured: by finished runs of the same kind, or by a trial, which runs a few images on this machine. Where
neither is possible the time is unknown.
"""
from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch

from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError, one_line
from ..registry import build_trainer, method_info
from ..runs.run_dir import inspect_folder
from ..vlm.openai import BACKBONES, cache_folder
from .plan import PlannedRun

TRIAL_IMAGES = 8
FINISHED = "finished runs of the same kind"
TRIAL = f"a trial of {TRIAL_IMAGES} images"
WIDTHS = {"small": 128, "RN101": 512, "ViT-B/32": 512, "ViT-B/16": 512, "ViT-L/14": 768, "ViT-L/14@336px": 768}
WIDEST = 1024  # features of any other backbone


@dataclass(frozen=True)
class Estimate:
    """What an unfinished run takes."""

    disk: float  # bytes
    seconds: float | None = None  # None = unknown
    source: str = ""  # what the seconds come from, or why they are unknown


def estimate(runs: Sequence[PlannedRun], finished: Collection[PlannedRun], trial: bool) -> dict[PlannedRun, Estimate]:
    """For each unfinished run. View features count for the first run that makes them; Jacobians are not counted."""
    left = [run for run in runs if run not in finished]
    times: dict[tuple, list[float]] = {}
    for run in finished:
        if seconds := (inspect_folder(run.folder).results or {}).get("seconds_per_image"):
            times.setdefault(kind(run), []).append(seconds)
    trials = {backbone: try_out(left, backbone) if trial else "no run of this kind is finished; --dry-run tries one"
              for backbone in dict.fromkeys(run.backbone for run in left)}
    shared = {run.features_key for run in runs if run.uses_views}
    made = {run.features_key for run in finished if run.uses_views}
    estimates = {}
    for run in left:
        (images, classes), measured = run.size, trials[run.backbone]
        encodes = run.features_key not in made and (run.uses_views or run.features_key not in shared)
        num_views = (run.cfg.TTA.VIEWS if run.uses_views else 1) if encodes else 0
        bytes_per_number = 2 if torch.cuda.is_available() else 4
        disk = images * (8 * classes + num_views * WIDTHS.get(run.backbone, WIDEST) * bytes_per_number)
        if run.uses_views:
            made.add(run.features_key)
        if method_info(run.method).trained:
            estimates[run] = Estimate(disk, source="learning a prompt has no trial")
        elif own := times.get(kind(run)):
            # The slowest had to encode the views, the fastest read them from the cache.
            estimates[run] = Estimate(disk, images * (max(own) if num_views else min(own)), FINISHED)
        elif isinstance(measured, str):
            estimates[run] = Estimate(disk, source=measured)
        else:
            encoding, step = measured
            steps = run.cfg.TTA.STEPS if run.uses_views else 0
            estimates[run] = Estimate(disk, images * (num_views * encoding + steps * classes * step), TRIAL)
    return estimates


def kind(run: PlannedRun) -> tuple:
    """Runs of one kind take about the same time per image: a penalty costs little."""
    return run.uses_views, run.cfg.TTA.STEPS, run.dataset, run.backbone


def try_out(runs: Sequence[PlannedRun], backbone: str) -> tuple[float, float] | str:
    """Seconds per view that is encoded, and per step and class; or why they cannot be measured. Runs a few images
    twice, the second time with cached view features."""
    file = cache_folder() / f"{backbone.replace('/', '-').replace('@', '-')}.pt"
    if backbone in BACKBONES and not file.is_file():
        return f"the weights of {backbone} are not downloaded yet"
    if backbone.startswith("open_clip:") and "@" not in backbone:
        return f"the weights of {backbone} may have to be downloaded"
    run = next((run for run in runs if run.backbone == backbone and not run.shots and run.uses_views
                and run.cfg.TTA.STEPS and (run.data_state is None or run.data_state.state in ("ok", "partial"))), None)
    if run is None:
        return "no run for a trial is left, or its data is not there"
    seconds, level = [], LOGGER.level
    LOGGER.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
            for name in ("first", "second"):
                cfg = run.cfg.clone()
                cfg.defrost()
                cfg.OUTPUT_DIR, cfg.CACHE.DIR = str(Path(folder, name)), str(Path(folder, "cache"))
                cfg.TEST.LIMIT = TRIAL_IMAGES
                cfg.freeze()
                seconds.append(build_trainer(cfg).run()["seconds"] / min(TRIAL_IMAGES, run.size[0]))
    except (UserError, OSError, RuntimeError) as error:
        return f"a trial failed ({one_line(error, 160)})"
    finally:
        LOGGER.setLevel(level)
    first, second = seconds
    return max(0.0, first - second) / run.cfg.TTA.VIEWS, second / (run.cfg.TTA.STEPS * run.size[1])
