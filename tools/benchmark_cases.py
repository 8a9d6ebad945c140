"""Measures the speed of the text side of an episode, of whole images, and of making views.

Each is compared with a slow reference. For episodes it is `trainers/reference.py`: all 77 tokens of
every class, one image at a time, a forward pass, a backward pass and another forward pass. For
views it is the public pipeline: torchvision's crops and AugMix with Pillow, view by view.
"""
from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from promptcal.datasets.views.geometry import OPENAI_MEAN, OPENAI_STD, Pixels
from promptcal.datasets.views.maker import ViewMaker
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

METHOD = "SoC"  # method of the episodes; those of other methods differ by less than 1 %
NUM_VIEWS = 64
CHUNK = 8  # number of views that are normalised and encoded together, as on a CPU
EPISODES = 4  # number of images that are adapted at once


@dataclass(frozen=True)
class Settings:
    """The conditions of the measurements.

    Attributes:
        shape: Name of the shape of the CLIP with random weights; see `measuring.SHAPES`.
        classes: Number of classes.
        images: Images that views are made of.
        image_source: Words for these images, such as "8 photographs".
        rounds: Number of times that each task is timed; the median counts.
    """

    shape: str
    classes: int
    images: Sequence[Image.Image]
    image_source: str
    rounds: int = 3

    @property
    def size(self) -> int:
        """Pixels per side of a view."""
        return SHAPES[self.shape].image_resolution


@dataclass(frozen=True)
class Row:
    """One measurement, that of the reference, and the goal for their ratio.

    Attributes:
        what: Words for what was timed.
        unit: Unit of both measurements: s, views/s or images/s.
        ours: The measurement of promptcal.
        reference: The measurement of the reference.
        goal: Goal for the ratio; None if there is none.
        measured_on: Words for the conditions.
        cost: Whether the ratio is ours ÷ reference, and the goal an upper bound.
    """

    what: str
    unit: str
    ours: float
    reference: float
    goal: float | None
    measured_on: str
    cost: bool = False

    @property
    def ratio(self) -> float:
        """The number of times that ours is as good as the reference; for a cost, as much."""
        if self.unit == "s" and not self.cost:  # fewer seconds are better
            return self.reference / self.ours
        return self.ours / self.reference

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if there is none."""
        if self.goal is None:
            return None
        if self.cost:
            return self.ratio <= self.goal
        return self.ratio >= self.goal


def measure(settings: Settings) -> list[Row]:
    """Makes all measurements, on one thread."""
    torch.set_num_threads(1)
    with torch.no_grad():
        # Views first: the public pipeline is faster once a process has allocated much memory.
        rows = measure_views(settings)
        rows += measure_threads(settings)
        rows += measure_episodes(settings)
    return rows


def prepare_method(model: CLIP, names: Sequence[str], jacobian: bool = False) -> TPT:
    """Returns the method as in a run, with all that is constant in a run computed.

    Args:
        model: A CLIP with random weights.
        names: Names of the classes.
        jacobian: Whether gradients go through a Jacobian. It has random numbers, which cost as much
            to use as the real ones; those take minutes to compute.
    """
    method = build_method(build_cfg(METHOD, opts=["DEVICE", "cpu"]), model, names)
    assert isinstance(method, TPT)
    width = model.text_projection.shape[1]
    if jacobian:
        numbers = torch.randn(len(names), width, method.clip.context.numel())
        method.clip = method.clip.with_jacobian(numbers)
    method.adapt(random_features(1, NUM_VIEWS, width))
    return method


def measure_episodes(settings: Settings) -> list[Row]:
    """Measures seconds per image: of the text side, and of a whole image.

    The text side is all that is left where view features are cached. The reference encodes the
    views with CLIP's own tower, then adapts.
    """
    logger.info("episodes: %s, %d classes", settings.shape, settings.classes)
    model = random_clip(settings.shape)
    names = class_names(settings.classes)
    features = random_features(EPISODES, NUM_VIEWS, model.text_projection.shape[1])
    method = prepare_method(model, names)
    method_with_jacobian = prepare_method(model, names, jacobian=True)
    image = settings.images[0]
    make_views = ViewMaker(NUM_VIEWS, settings.size, augmix=True, seed=0)
    chunks = normalise_pixels(make_views(image, 0), Pixels(settings.size)).split(CHUNK)
    middle = len(chunks) // 2

    def encode_with_clip(chunks: Sequence[Tensor]) -> None:
        for chunk in chunks:
            model.encode_image(chunk)

    def adapt_uncached() -> None:
        views = make_views(image, 0)[None]
        method.adapt(encode_views(method.clip.backbone, views, normalised=False))

    tasks: dict[str, Callable[[], object]] = {
        # Half of the tower before and half after "uncached", so that both see the same clock rate.
        "first half": partial(encode_with_clip, chunks[:middle]),
        "uncached": adapt_uncached,
        "second half": partial(encode_with_clip, chunks[middle:]),
        "one": partial(method.adapt, features[:1]),
        "batch": partial(method.adapt, features),
        "jacobian": partial(method_with_jacobian.adapt, features),
        "reference": partial(tune_prompt, model, names, features[0], METHOD),
    }
    seconds = interleaved(tasks, settings.rounds)
    uncached = seconds["uncached"]
    batch = seconds["batch"] / EPISODES
    jacobian = seconds["jacobian"] / EPISODES
    encoding = seconds["first half"] + seconds["second half"]
    reference = seconds["reference"]
    reference_image = encoding + reference
    on = f"{settings.shape} shape, {settings.classes} classes, 1 core"
    return [
        Row("text side, one image at a time", "s", seconds["one"], reference, None, on),
        Row(f"text side, {EPISODES} images at once", "s", batch, reference, 35, on),
        Row(f"text side, {EPISODES} at once, Jacobian", "s", jacobian, reference, None, on),
        Row("image, nothing cached ÷ image tower alone", "s", uncached, encoding, 1.05, on,
            cost=True),
        Row("image, nothing cached", "s", uncached, reference_image, None, on),
        Row("image, view features cached", "s", batch, reference_image, 80, on),
        Row("image, view features and Jacobian cached", "s", jacobian, reference_image, 80, on),
    ]


def measure_views(settings: Settings) -> list[Row]:
    """Measures the way from decoded images to normalised views.

    The public pipeline allocates memory for every view, which takes a new process up to half of its
    time (page faults), and less once large blocks have been freed: both are measured.
    """
    logger.info("views")
    size = settings.size

    def make_ours(make_views: ViewMaker) -> None:
        for index, image in enumerate(settings.images):
            for chunk in make_views(image, index).split(CHUNK):
                normalise_pixels(chunk, Pixels(size))

    def make_public(augmix: bool) -> None:
        for image in settings.images:
            public_views(image, size, augmix)

    rows = []
    count = NUM_VIEWS * len(settings.images)
    on = f"{settings.image_source}, {size} pixels, 1 core"
    for what, augmix, goal in (("views with AugMix", True, 10), ("views without AugMix", False, 9)):
        make_views = ViewMaker(NUM_VIEWS, size, augmix, seed=0)
        make_ours(make_views)  # compiles
        tasks = {"ours": partial(make_ours, make_views), "public": partial(make_public, augmix)}
        seconds = interleaved(tasks, settings.rounds)
        ours = count / seconds["ours"]
        public = count / seconds["public"]
        rows.append(Row(what, "views/s", ours, public, goal, on))
    return rows


def public_views(image: Image.Image, size: int, augmix: bool) -> Tensor:
    """Makes normalised views (64, 3, size, size) as the public code of TPT does.

    It makes view by view, and normalises the result of each chain of AugMix before mixing.

    Args:
        image: A decoded image.
        size: Number of pixels per side of a view.
        augmix: Whether AugMix follows the random crop.
    """
    finish = T.Compose([T.ToTensor(), T.Normalize(OPENAI_MEAN, OPENAI_STD)])
    plain = T.Compose([T.Resize(size, T.InterpolationMode.BICUBIC), T.CenterCrop(size), finish])
    crop = T.Compose([T.RandomResizedCrop(size), T.RandomHorizontalFlip()])
    rng = np.random.default_rng(0)
    views = [plain(image)]
    for _ in range(NUM_VIEWS - 1):
        view = crop(image)
        if augmix:
            parts = [weight * finish(part) for weight, part in chains(view, rng)]
            views.append(sum(parts))
        else:
            views.append(finish(view))
    return torch.stack(views)


def measure_threads(settings: Settings) -> list[Row]:
    """Measures views with AugMix in several threads.

    Images per second are compared between two threads and one, CPU time per image between eight
    and one.
    """
    logger.info("views in threads")
    images = settings.images
    count = 32  # images per measurement
    make_views = ViewMaker(NUM_VIEWS, settings.size, augmix=True, seed=0)

    def make_and_drop(index: int) -> None:
        make_views(images[index % len(images)], index)

    def in_threads(threads: int) -> None:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(make_and_drop, range(count)))

    in_threads(8)  # allocates
    one_or_two = {threads: partial(in_threads, threads) for threads in (1, 2)}
    wall_seconds = interleaved(one_or_two, settings.rounds, time.perf_counter)
    one_or_eight = {threads: partial(in_threads, threads) for threads in (1, 8)}
    cpu_seconds = interleaved(one_or_eight, settings.rounds)
    on = f"{settings.image_source}, {settings.size} pixels"
    on_two_cores = f"{on}, wall clock: needs two idle cores"
    return [
        Row("views, two threads ÷ one", "images/s", count / wall_seconds[2],
            count / wall_seconds[1], 1.9, on_two_cores),
        Row("views, CPU time, eight threads ÷ one", "s", cpu_seconds[8] / count,
            cpu_seconds[1] / count, 1.15, on, cost=True),
    ]
