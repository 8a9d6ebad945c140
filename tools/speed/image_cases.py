"""Whole episodes, image encoding included, and the making of views."""
from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image

from ...datasets import build_dataset
from ...datasets.base import Dataset
from ...datasets.views.maker import ViewMaker
from ...trainers.engine.cache import ArrayCache
from ...trainers.engine.features import FeatureBatch, ViewFeatures
from ...trainers.vlm.image_tower import normalise_pixels
from ...trainers.vlm.openai_clip import CLIP
from .baseline import METHOD, WEIGHT, fits, reference, text_need
from .measure import interleaved
from .records import Comparison
from .shapes import class_names, random_features
from .text_cases import VIEWS, build_engine

logger = logging.getLogger(__name__)

WORKERS = 2  # the default of DATALOADER.NUM_WORKERS
PICTURE = (500, 375)  # a usual size in ImageNet


def make_pictures(folder: Path, count: int) -> Dataset:
    """A data set of JPEG files that are as large and as detailed as photographs."""
    rng = np.random.default_rng(0)
    (folder / "picture").mkdir(parents=True)
    for n in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(PICTURE, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = (smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / "picture" / f"{n:03d}.jpg", quality=90)
    return build_dataset("ImageFolder", folder)


def whole_episodes(
    model: CLIP, backbone: str, classes: int, images: int, episodes: int, rounds: int,
) -> list[Comparison]:
    """An episode from the file on: the reference's; ours with nothing in the cache, and with the views' features there;
    and the image tower alone, with which ours with an empty cache is compared."""
    logger.info("whole episodes: %s, %d classes", backbone, classes)
    names, size = class_names(classes), model.visual.input_resolution
    engine, slow = build_engine(model, names), reference()
    with TemporaryDirectory() as folder, torch.no_grad():
        dataset = make_pictures(Path(folder, "images"), max(images, episodes))
        maker = ViewMaker(VIEWS, size, augmix=True, seed=0)
        fresh = ViewFeatures(
            engine.backbone, dataset, dataset.test, maker, "fp32", WORKERS, skip_bad=False, cache=None, dtype="fp32",
        )
        cached = replace(fresh, cache=ArrayCache(folder, "views", {}))
        part = list(range(episodes))
        cached.store(part, [FeatureBatch(part, random_features(episodes, VIEWS, model.text_projection.shape[1]), {})])
        pixels = normalise_pixels(maker(dataset.read_image(dataset.test[0]), 0), engine.backbone.pixels)

        def run(features: ViewFeatures, indices: list[int], at_once: int) -> None:
            for batch in features.batches([indices], at_once):
                engine.adapt(batch.views)

        tasks = {
            "tower": lambda: model.encode_image(pixels),
            "cold": lambda: run(fresh, list(range(images)), max(1, images // 2)),
            "warm": lambda: run(cached, part, episodes),
        }
        if fits(text_need(model, classes)):
            tasks["plain"] = torch.enable_grad()(lambda: slow.run_episode(model, names, pixels, METHOD, WEIGHT))
        seconds = interleaved(tasks, rounds)
    plain, cold, warm = seconds.get("plain"), seconds["cold"] / images, seconds["warm"] / episodes
    return [
        Comparison("episode", "cold, empty cache", backbone, classes, "s", cold, plain),
        Comparison("episode", "warm, views cached", backbone, classes, "s", warm, plain),
        Comparison("episode", "cold, against the image tower alone", backbone, classes, "s", cold, seconds["tower"]),
    ]
