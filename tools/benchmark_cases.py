"""The benchmark's measurements: the text side of an episode, whole images, and views.

Compared with a slow reference: for episodes `trainers/reference.py`, all 77 tokens of every class,
one image at a time, a forward pass, a backward pass and another forward pass. For views it is the
public pipeline: torchvision's crops and AugMix with Pillow, view by view.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from promptcal.datasets.views.maker import ViewMaker
from promptcal.datasets.views.pixels import OPENAI_MEAN, OPENAI_STD, Pixels
from promptcal.datasets.views.reference import chains
from promptcal.tools.measuring import SHAPES, class_names, interleaved, random_clip, random_features
from promptcal.trainers.api import build_method
from promptcal.trainers.config.build import build_cfg
from promptcal.trainers.reference import tune_prompt
from promptcal.trainers.tpt import TPT
from promptcal.trainers.vlm.image_tower import encode_views, normalise_pixels
from promptcal.trainers.vlm.openai_clip import CLIP
from torch import Tensor

logger = logging.getLogger(__name__)

METHOD = "SoC"  # whose episodes are timed; other methods differ by less than 1 %
NUM_VIEWS = 64
CHUNK = 8  # views that are normalised and encoded together, as on a CPU
EPISODES = 4  # adapted at once


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    shape: str  # of the CLIP with random weights
    classes: int
    images: Sequence[Image.Image]  # that views are made of
    image_source: str
    rounds: int = 3

    @property
    def size(self) -> int:
        return SHAPES[self.shape][1]


@dataclass(frozen=True)
class Row:
    """One figure, the reference's, and the goal for their ratio."""

    what: str
    unit: str  # s, views/s, images/s
    ours: float
    reference: float
    goal: float | None
    measured_on: str
    cost: bool = False  # the ratio is ours ÷ reference, and the goal an upper bound

    @property
    def ratio(self) -> float:
        """How many times as good as the reference; of a cost, how many times as much."""
        return (
            self.reference / self.ours
            if self.unit == "s" and not self.cost
            else self.ours / self.reference
        )

    @property
    def reached(self) -> bool | None:
        if self.goal is None:
            return None
        return self.ratio <= self.goal if self.cost else self.ratio >= self.goal


def measure(settings: Settings) -> list[Row]:
    torch.set_num_threads(1)
    with torch.no_grad():
        # Views first: the public pipeline is faster once a process has allocated much memory.
        return views(settings) + thread_scaling(settings) + episodes(settings)


def prepare_method(model: CLIP, names: Sequence[str], jacobian: bool = False) -> TPT:
    """The method as in a run, with all that is constant in a run computed.

    A Jacobian of random numbers costs as much to use as the real one, which takes minutes to
    compute.
    """
    method = build_method(build_cfg(METHOD, opts=["DEVICE", "cpu"]), model, names)
    assert isinstance(method, TPT)
    width = model.text_projection.shape[1]
    if jacobian:
        numbers = torch.randn(len(names), width, method.clip.context.numel())
        method.clip = method.clip.with_jacobian(numbers)
    method.adapt(random_features(1, NUM_VIEWS, width))
    return method


def episodes(settings: Settings) -> list[Row]:
    """Seconds per image: of the text side, which is all that is left where view features are
    cached, and of a whole image. The reference encodes the views with CLIP's own tower, then
    adapts.
    """
    logger.info("episodes: %s, %d classes", settings.shape, settings.classes)
    model, names = random_clip(settings.shape), class_names(settings.classes)
    features = random_features(EPISODES, NUM_VIEWS, model.text_projection.shape[1])
    method, with_jacobian = (
        prepare_method(model, names),
        prepare_method(model, names, jacobian=True),
    )
    image, make_views = settings.images[0], ViewMaker(NUM_VIEWS, settings.size, True, 0)
    chunks = normalise_pixels(make_views(image, 0), Pixels(settings.size)).split(CHUNK)

    def tower(some: Sequence[Tensor]) -> None:
        for chunk in some:
            model.encode_image(chunk)

    def cold() -> None:
        method.adapt(
            encode_views(method.clip.backbone, make_views(image, 0)[None], normalised=False)
        )

    # Half of the tower before and half after `cold`, so that both see the same clock rate
    seconds = interleaved(
        {
            "first half": lambda: tower(chunks[: len(chunks) // 2]),
            "cold": cold,
            "second half": lambda: tower(chunks[len(chunks) // 2 :]),
            "one": lambda: method.adapt(features[:1]),
            "batch": lambda: method.adapt(features),
            "jacobian": lambda: with_jacobian.adapt(features),
            "plain": lambda: tune_prompt(model, names, features[0], METHOD),
        },
        settings.rounds,
    )
    encoding, plain = seconds["first half"] + seconds["second half"], seconds["plain"]
    cold_image, batch, jacobian = (
        seconds["cold"],
        seconds["batch"] / EPISODES,
        seconds["jacobian"] / EPISODES,
    )
    whole, on = encoding + plain, f"{settings.shape} shape, {settings.classes} classes, 1 core"
    return [
        Row("text side, one image at a time", "s", seconds["one"], plain, None, on),
        Row(f"text side, {EPISODES} images at once", "s", batch, plain, 35, on),
        Row(f"text side, {EPISODES} at once, Jacobian", "s", jacobian, plain, None, on),
        Row(
            "image, nothing cached ÷ image tower alone",
            "s",
            cold_image,
            encoding,
            1.05,
            on,
            cost=True,
        ),
        Row("image, nothing cached", "s", cold_image, whole, None, on),
        Row("image, view features cached", "s", batch, whole, 80, on),
        Row("image, view features and Jacobian cached", "s", jacobian, whole, 80, on),
    ]


def views(settings: Settings) -> list[Row]:
    """From decoded images to normalised views.

    The public pipeline allocates memory for every view, which takes a new process up to half of its
    time (page faults), and less once large blocks have been freed: both are measured.
    """
    logger.info("views")
    size, rows, count = settings.size, [], NUM_VIEWS * len(settings.images)

    def ours(make_views: ViewMaker) -> None:
        for i, image in enumerate(settings.images):
            for chunk in make_views(image, i).split(CHUNK):
                normalise_pixels(chunk, Pixels(size))

    def public(augmix: bool) -> None:
        for image in settings.images:
            public_views(image, size, augmix)

    on = f"{settings.image_source}, {size} pixels, 1 core"
    for augmix, goal in ((True, 10), (False, 9)):
        make_views = ViewMaker(NUM_VIEWS, size, augmix, 0)
        ours(make_views)  # compiles
        seconds = interleaved(
            {"ours": partial(ours, make_views), "public": partial(public, augmix)}, settings.rounds
        )
        rows.append(
            Row(
                f"views {'with' if augmix else 'without'} AugMix",
                "views/s",
                count / seconds["ours"],
                count / seconds["public"],
                goal,
                on,
            )
        )
    return rows


def public_views(image: Image.Image, size: int, augmix: bool) -> Tensor:
    """As the public code of TPT makes them: view by view, each chain's result normalised before
    mixing.
    """
    finish = T.Compose([T.ToTensor(), T.Normalize(OPENAI_MEAN, OPENAI_STD)])
    plain = T.Compose([T.Resize(size, T.InterpolationMode.BICUBIC), T.CenterCrop(size), finish])
    crop = T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip()])
    rng, made = np.random.default_rng(0), [plain(image)]
    for _ in range(NUM_VIEWS - 1):
        parts = chains(crop(image), rng) if augmix else [(1.0, crop(image))]
        made.append(sum(weight * finish(part) for weight, part in parts))
    return torch.stack(made)


def thread_scaling(settings: Settings) -> list[Row]:
    """Views with AugMix in several threads: images per second with two, CPU time per image with
    eight.
    """
    logger.info("views in threads")
    images, count, make_views = settings.images, 32, ViewMaker(NUM_VIEWS, settings.size, True, 0)

    def in_threads(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda i: make_views(images[i % len(images)], i).shape, range(count)))

    in_threads(8)  # allocates
    wall = interleaved(
        {n: partial(in_threads, n) for n in (1, 2)}, settings.rounds, time.perf_counter
    )
    cpu = interleaved({n: partial(in_threads, n) for n in (1, 8)}, settings.rounds)
    on = f"{settings.image_source}, {settings.size} pixels"
    return [
        Row(
            "views, two threads ÷ one",
            "images/s",
            count / wall[2],
            count / wall[1],
            1.9,
            f"{on}, wall clock: needs two idle cores",
        ),
        Row(
            "views, CPU time, eight threads ÷ one",
            "s",
            cpu[8] / count,
            cpu[1] / count,
            1.15,
            on,
            cost=True,
        ),
    ]
