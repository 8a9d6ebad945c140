"""How long each part of a run takes for one image, which part the others wait for, and what to set then."""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from ...datasets.base import Dataset, Datum
from ...datasets.views.maker import ViewMaker
from ...trainers.base import BaseTrainer
from ...trainers.vlm.image_tower import encode_views
from ..speed.shapes import random_features

ROUNDS, LONG = 3, 2.0  # so many rounds, but none after so many seconds
TOWER_VIEWS = 8  # encoded to time the image tower: a CPU takes seconds for all
DECODE, VIEWS, TOWER, EPISODE = "decode", "views", "image tower", "episode"


def timed(task: Callable[[], object], device: torch.device) -> float:
    """Median seconds; the first time does not count, unless it took long. On a CPU they are the processor's, which
    others on the machine take none of, so that the verdict is that of a quiet one."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    found: list[float] = []
    while len(found) <= ROUNDS and sum(found) < LONG:
        started = clock()
        task()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(clock() - started)
    return median(found[1:] or found)


def measure(
    method: BaseTrainer, maker: ViewMaker, dataset: Dataset, items: Sequence[Datum], episodes: int,
) -> dict[str, float]:
    """Seconds an image of each part, one at a time: on one core, or on the GPU."""
    backbone, device = method.backbone, method.backbone.device
    images = [dataset.read_image(item) for item in items[:2]]
    views = maker(images[0], 0)[None, :TOWER_VIEWS]
    features = random_features(episodes, maker.num_views, backbone.features).to(device)
    return {
        DECODE: timed(lambda: [dataset.read_image(item) for item in items], device) / len(items),
        VIEWS: timed(lambda: [maker(image, 0) for image in images], device) / len(images),
        TOWER: timed(lambda: encode_views(backbone, views, method.precision, normalised=False), device)
        * maker.num_views / views.shape[1],
        EPISODE: timed(lambda: method.adapt(features), device) / episodes,
    }


@dataclass(frozen=True)
class SetUp:
    """How a run is set, as far as its speed goes."""

    workers: int
    cores: int
    on_gpu: bool
    cached: bool  # view features are there

    def rates(self, seconds: dict[str, float]) -> dict[str, float]:
        """Images a second that each part manages on what it has. On a CPU whole images go to different cores, and
        workers that decode take theirs from them; on a GPU one thing runs after the other."""
        if self.cached:
            return {EPISODE: 1 / seconds[EPISODE]}
        hands = max(1, min(self.workers, self.cores))
        cores = 1 if self.on_gpu else self.cores
        return {DECODE: hands / seconds[DECODE], VIEWS: cores / seconds[VIEWS], TOWER: cores / seconds[TOWER],
                EPISODE: 1 / seconds[EPISODE]}

    def bottleneck(self, seconds: dict[str, float]) -> str:
        """The part that the others wait for. On a GPU views, tower and episodes share it: decoding holds them up only
        if it is slower than all three together."""
        rates = self.rates(seconds)
        if self.on_gpu and not self.cached:
            together = 1 / sum(seconds[part] for part in (VIEWS, TOWER, EPISODE))
            if rates[DECODE] < together:
                return DECODE
            del rates[DECODE]
        return min(rates, key=rates.get)

    def images_a_second(self, seconds: dict[str, float]) -> float:
        """About what a run manages: on a CPU all parts share its cores; on a GPU decoding is done beside the rest."""
        if self.cached:
            return 1 / seconds[EPISODE]
        work = sum(seconds[part] for part in (VIEWS, TOWER))
        if self.on_gpu:
            return min(self.rates(seconds)[DECODE], 1 / (work + seconds[EPISODE]))
        return 1 / ((work + seconds[DECODE]) / self.cores + seconds[EPISODE])

    def advice(self, part: str, episodes: int, jacobian: bool) -> str:
        """The setting to change."""
        if part == DECODE and self.workers < self.cores:
            return f"set DATALOADER.NUM_WORKERS auto ({self.cores} here)"
        if part == DECODE:
            return "more cores, or images stored at a smaller size"
        if part in (VIEWS, TOWER):
            return "set CACHE.DIR FOLDER, which keeps view features for every later run" + (
                "" if self.on_gpu else "; or use a GPU")
        more = f"more than {episodes} TTA.EPISODES at once"
        return more if jacobian else f"set TTA.JACOBIAN on where thousands of images follow; or {more}"
