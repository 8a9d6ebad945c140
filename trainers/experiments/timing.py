"""How long runs on embedded data take here, from a few images that are run for it: most of a small run is its start."""
from __future__ import annotations

import io
import logging
import tempfile
import time
from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from ...datasets.utils.cli import LOGGER
from ..registry import build_trainer
from .plan import PlannedRun

IMAGES = 16
OUTCOME = 6  # an experiment's tables, figures and page take as long as the starts of so many runs


@dataclass(frozen=True)
class Trial:
    """Seconds, measured."""

    start: float  # of a run, whatever its images: data, model, files, pictures
    view: float  # to make and encode one view
    step: float  # to adapt to one image, a step

    def seconds(self, run: PlannedRun, views: int) -> float:
        """Of a run that makes so many `views`."""
        steps = run.cfg.TTA.STEPS if run.many_views else 0
        return self.start + views * self.view + run.size[0] * steps * self.step

    @property
    def outcome(self) -> float:
        """Of what is made of an experiment's finished runs."""
        return OUTCOME * self.start


def try_out(runs: Iterable[PlannedRun]) -> Trial | None:
    """Runs a few images of the first run that takes a step, twice: the second time their features are there."""
    run = next((run for run in runs if run.many_views and run.cfg.TTA.STEPS and not run.shots), None)
    if run is None:
        return None
    taken, within, level = [], [], LOGGER.level
    with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
        for name in ("first", "second"):
            cfg = run.cfg.clone()
            cfg.defrost()
            cfg.OUTPUT_DIR, cfg.CACHE.DIR = str(Path(folder, name)), str(Path(folder, "cache"))
            cfg.TEST.LIMIT = IMAGES
            cfg.freeze()
            started = time.perf_counter()
            LOGGER.setLevel(logging.CRITICAL)
            try:
                results = build_trainer(cfg).run()
            finally:
                LOGGER.setLevel(level)
            taken.append(time.perf_counter() - started)
            within.append(results["seconds"])
    cfg = run.cfg
    encoding, adapting = max(0.0, within[0] - within[1]), within[1]
    return Trial(taken[1] - within[1], encoding / (IMAGES * cfg.TTA.VIEWS), adapting / (IMAGES * cfg.TTA.STEPS))
