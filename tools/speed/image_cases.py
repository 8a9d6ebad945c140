"""Whole episodes, from the image file on."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...datasets import build_dataset
from ...datasets.base import Dataset
from ...datasets.views.maker import ViewMaker
from ...trainers.engine.cache import ArrayCache
from ...trainers.engine.features import FeatureBatch, ViewFeatures
from ...trainers.tpt import TPT
from ...trainers.vlm.image_tower import normalise_pixels, views_at_once
from ...trainers.vlm.openai_clip import CLIP
from .profiling import interleaved
from .records import BaselineComparison
from .shapes import class_names, random_features
from .text_cases import VIEWS, build_engine, with_jacobian

logger = logging.getLogger(__name__)

WORKERS = 2  # the default of DATALOADER.NUM_WORKERS
PICTURE = (500, 375)  # a usual size in ImageNet
COLD, WARM, WARM_JACOBIAN = "nothing cached", "views cached", "views and Jacobian cached"
TOWER = "64 views"


def make_pictures(folder: Path, count: int) -> Dataset:
    """A data set of JPEG files that are as large and as detailed as photographs."""
    rng = np.random.default_rng(0)
    for n in range(count):
        kind = folder / f"picture_{n % 2}"  # a single class would be remarked on
        kind.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(PICTURE, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = (smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(kind / f"{n:03d}.jpg", quality=90)
    return build_dataset("ImageFolder", folder)


def whole_episodes(
    model: CLIP, backbone: str, classes: int, images: int, episodes: int, rounds: int, plain_text: BaselineComparison,
) -> list[BaselineComparison]:
    """An episode from the file on: the plain way's; ours with nothing in the cache, with the views' features there, and
    with the Jacobian; and the image tower alone, with which ours with an empty cache is compared.

    The plain way encodes its views and then adapts, so its time is that of the image tower and of its text side, given
    as one of the text side's figures. Its tower counts as if it took as few views at once as is fastest.
    """
    logger.info("whole episodes: %s, %d classes", backbone, classes)
    names, size = class_names(classes), model.visual.input_resolution
    engine, product = build_engine(model, names), with_jacobian(model, names)
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
        pieces = pixels.split(views_at_once(engine.backbone))
        half = len(pieces) // 2

        def encode(some: Sequence[Tensor]) -> None:
            for piece in some:
                model.encode_image(piece)

        def run(trainer: TPT, features: ViewFeatures, indices: list[int], at_once: int) -> None:
            for batch in features.batches([indices], at_once):
                trainer.adapt(batch.views)

        tasks = {  # half of the tower's views before and half after, so that both see the same pace of the machine
            "first half": lambda: encode(pieces[:half]),
            COLD: lambda: run(engine, fresh, list(range(images)), max(1, images // 2)),
            "second half": lambda: encode(pieces[half:]),
            WARM: lambda: run(engine, cached, part, episodes),
        }
        if product:
            tasks[WARM_JACOBIAN] = lambda: run(product, cached, part, episodes)
        seconds = interleaved(tasks, rounds)
    tower = seconds.pop("first half") + seconds.pop("second half")
    plain = None if plain_text.plain is None else tower + plain_text.plain
    cold = seconds[COLD] / images
    return [
        *(BaselineComparison("episode", case, backbone, classes, "s", cold if case == COLD else whole / episodes, plain,
                             plain_text.extrapolated) for case, whole in seconds.items()),
        BaselineComparison("tower", TOWER, backbone, classes, "s", cold, tower),
    ]
