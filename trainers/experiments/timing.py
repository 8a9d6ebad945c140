"""How long unfinished runs take, and how much disk they need.

Times are measured: by finished runs of the same kind, or by a trial, which runs a few images on this machine. Where
neither is possible the time is unknown. Disk space follows from the shapes of the arrays that are stored.
"""
from __future__ import annotations

import io
import logging
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch

from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError, one_line
from ..registry import method_info
from ..runs.run_dir import RunDir
from ..vlm.openai import BACKBONES, cache_folder
from .plan import PlannedRun
from .run import run_with_figures

TRIAL_IMAGES = 8
FINISHED = "finished runs of the same kind"
TRIAL = f"a trial of {TRIAL_IMAGES} images"
# Width of features and of the text tower; a backbone that is not listed counts as the largest.
WIDTHS = {
    "RN50": (1024, 512), "RN101": (512, 512), "ViT-B/32": (512, 512), "ViT-B/16": (512, 512), "ViT-L/14": (768, 768),
    "ViT-L/14@336px": (768, 768), "small": (128, 128),
}
LARGEST = (1024, 768)


@dataclass(frozen=True)
class Estimate:
    """What an unfinished run takes."""

    disk: float  # bytes
    seconds: float | None = None  # None = unknown
    source: str = ""  # what the seconds come from, or why they are unknown


@dataclass(frozen=True)
class Trial:
    """Seconds, measured with one method on one data set."""

    start: float  # per run, whatever its images: data, model, files, figures
    view: float  # per view that is made and encoded
    step: float  # per image, step and class

    def seconds(self, run: PlannedRun, num_views: int) -> float:
        """Of a run that encodes `num_views` views of each image."""
        images, classes = run.size
        steps = run.cfg.TTA.STEPS if run.uses_views else 0
        return self.start + images * (num_views * self.view + steps * classes * self.step)


def estimate(runs: Sequence[PlannedRun], finished: Collection[PlannedRun], trial: bool) -> dict[PlannedRun, Estimate]:
    """For each unfinished run. View features and Jacobians count for the first run that makes them."""
    left = [run for run in runs if run not in finished]
    known = finished_times(finished)
    trials = {backbone: try_out(left, backbone) if trial else "no run of this kind is finished; --dry-run tries one"
              for backbone in dict.fromkeys(run.backbone for run in left)}
    shared = {run.features_key for run in runs if run.uses_views}
    made = {key for run in finished if run.uses_views for key in (run.features_key, jacobian_key(run))}
    estimates = {}
    for run in left:
        encodes = run.features_key not in made and (run.uses_views or run.features_key not in shared)
        num_views = (run.cfg.TTA.VIEWS if run.uses_views else 1) if encodes else 0
        disk = stored_bytes(run, num_views)
        if run.uses_views:
            disk += 0 if jacobian_key(run) in made else jacobian_bytes(run)
            made |= {run.features_key, jacobian_key(run)}
        estimates[run] = Estimate(disk, *seconds_of(run, num_views, known, trials[run.backbone]))
    return estimates


def seconds_of(
    run: PlannedRun, num_views: int, known: dict[tuple, list[float]], trial: Trial | str,
) -> tuple[float | None, str]:
    """The seconds and what they come from."""
    if method_info(run.method).trained:
        return None, "learning a prompt has no trial"
    if times := known.get(kind(run)):
        # The slowest had to encode the views, the fastest read them from the cache.
        return run.size[0] * (max(times) if num_views else min(times)), FINISHED
    return (None, trial) if isinstance(trial, str) else (trial.seconds(run, num_views), TRIAL)


def finished_times(finished: Collection[PlannedRun]) -> dict[tuple, list[float]]:
    """Seconds per image of finished runs by kind."""
    times: dict[tuple, list[float]] = {}
    for run in finished:
        if seconds := (RunDir(run.folder).results or {}).get("seconds_per_image"):
            times.setdefault(kind(run), []).append(seconds)
    return times


def kind(run: PlannedRun) -> tuple:
    """Runs of one kind take about the same time per image: a penalty costs little."""
    return run.uses_views, run.cfg.TTA.STEPS, run.dataset, run.backbone


def try_out(runs: Sequence[PlannedRun], backbone: str) -> Trial | str:
    """Runs a few images twice, the second time with cached view features; or says why that is not possible."""
    if reason := missing_weights(backbone):
        return reason
    candidates = [run for run in runs if run.backbone == backbone and not run.shots and run.uses_views]
    present = [run for run in candidates if (state := run.data_state) is None or state.state in ("ok", "partial")]
    run = next((run for run in present if run.cfg.TTA.STEPS), None)
    if run is None:
        return "their data is not there" if candidates and not present else "no run for a trial is left"
    totals, within, level = [], [], LOGGER.level
    LOGGER.setLevel(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
            for name in ("first", "second"):
                cfg = run.cfg.clone()
                cfg.defrost()
                cfg.OUTPUT_DIR, cfg.CACHE.DIR = str(Path(folder, name)), str(Path(folder, "cache"))
                cfg.TEST.LIMIT = TRIAL_IMAGES
                cfg.freeze()
                started = time.perf_counter()
                within.append(run_with_figures(cfg)["seconds"])
                totals.append(time.perf_counter() - started)
    except (UserError, OSError, RuntimeError) as error:
        return f"a trial failed ({one_line(error, 160)})"
    finally:
        LOGGER.setLevel(level)
    images, classes = min(TRIAL_IMAGES, run.size[0]), run.size[1]
    encoding = max(0.0, within[0] - within[1])
    return Trial(totals[1] - within[1], encoding / (images * run.cfg.TTA.VIEWS),
                 within[1] / (images * run.cfg.TTA.STEPS * classes))


def missing_weights(backbone: str) -> str:
    """Why a backbone cannot be loaded without a download; "" if it can."""
    if backbone in BACKBONES:
        file = cache_folder() / f"{backbone.replace('/', '-').replace('@', '-')}.pt"
        return "" if file.is_file() else f"the weights of {backbone} are not downloaded yet"
    if backbone.startswith("open_clip:") and "@" not in backbone:
        return f"the weights of {backbone} may have to be downloaded"
    return ""


def stored_bytes(run: PlannedRun, num_views: int) -> float:
    """Predictions, and the features of the views that the run encodes."""
    images, classes = run.size
    consensus = 2 * classes + 4 if run.uses_views else 0  # what CoTS and E-CoTS are computed from
    predictions = images * (2 * 4 * classes + 17 + consensus)  # logits before and after, index, label, flag
    bytes_per_number = 2 if torch.cuda.is_available() else 4
    return predictions + images * num_views * WIDTHS.get(run.backbone, LARGEST)[0] * bytes_per_number


def jacobian_bytes(run: PlannedRun) -> float:
    """The cached Jacobian of the text features, where a run makes one: for enough images, and within its limit."""
    features, width = WIDTHS.get(run.backbone, LARGEST)
    images, classes = run.size
    size = 4.0 * classes * features * len(run.cfg.PROMPT.CTX_INIT.split()) * width
    makes = method_info(run.method).tunes_context and run.cfg.TTA.STEPS and run.cfg.TTA.JACOBIAN != "off"
    return size if makes and images > 2 * features and size <= 1e9 * run.cfg.TTA.JACOBIAN_GB else 0.0


def jacobian_key(run: PlannedRun) -> tuple:
    return run.dataset, run.backbone, run.cfg.PROMPT.CTX_INIT, run.shots and run.seed
