"""Measures the speed of the text side of an episode, of whole images, and of making views.

Each is compared with a slow reference. For episodes it is `trainers/reference.py`: all 77 tokens of
every class, one image at a time, a forward pass, a backward pass and another forward pass. For
views it is the public pipeline: torchvision's crops and AugMix with Pillow, view by view.

`count_launches` counts the operations that a GPU must be told to do for each image, without a GPU.
A cached image on a GPU takes as long as the host needs to launch its operations. Their number
depends neither on the width of the model nor on the speed of the machine, so it is counted on the
second device of `far_device`, for a text tower of ViT-B/16's depth that is thin. Fused attention
counts as the operations that it is made of, so a GPU has fewer.
"""
from __future__ import annotations

import logging
import multiprocessing
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
from promptcal.tools import far_device
from promptcal.tools.measuring import SHAPES, class_names, interleaved, random_clip, random_features
from promptcal.trainers.api import build_method
from promptcal.trainers.config.build import build_cfg
from promptcal.trainers.engine.adapted import Adapted
from promptcal.trainers.reference import tune_prompt
from promptcal.trainers.tpt import TPT
from promptcal.trainers.vlm.image_tower import encode_views, normalise_pixels
from promptcal.trainers.vlm.loading import as_backbone
from promptcal.trainers.vlm.numerics import EPISODES_ON_GPU
from promptcal.trainers.vlm.openai_clip import CLIP
from promptcal.trainers.vlm.text_encoder import TextEncoder
from torch import Tensor

logger = logging.getLogger(__name__)

METHOD = "SoC"  # method of the episodes; those of other methods differ by less than 1 %
NUM_VIEWS = 64
CHUNK = 8  # number of views that are normalised and encoded together, as on a CPU
EPISODES = 4  # number of images that are adapted at once
# Of the count of launches
REAL_SHAPE = "ViT-B/16"  # model whose memory decides how many episodes run in one pass
THIN_SHAPE = "thin"  # model whose operations are counted
FEW_EPISODES = 8
GOALS = {100: 250, 1000: 350}  # launches per image with default settings, by number of classes


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


@dataclass(frozen=True)
class Launches:
    """The number of operations that one image takes.

    Attributes:
        classes: Number of classes.
        episodes: Number of images that are adapted at once.
        jacobian: Whether gradients go through a Jacobian.
        per_image: Launches per image.
        goal: Largest number that reaches the goal; None if there is no goal.
    """

    classes: int
    episodes: int
    jacobian: bool
    per_image: float
    goal: int | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is reached; None if there is none."""
        if self.goal is None:
            return None
        return self.per_image <= self.goal


def count_launches(all_classes: bool = True) -> list[Launches]:
    """Counts the launches per image of a run with stored view features, with and without Jacobian.

    They are counted in another process: torch cannot compute gradients on a device that is
    registered after the first backward pass.

    Args:
        all_classes: Whether the larger number of classes is counted too, which takes a minute.

    Returns:
        The counts; empty if this version of torch can have no second device.
    """
    if not far_device.available():
        return []
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(count_in_this_process, (all_classes,))


def count_in_this_process(all_classes: bool) -> list[Launches]:
    """Counts as `count_launches` does. This process must not have run a backward pass."""
    far_device.register()
    rows = []
    for classes, goal in GOALS.items():
        if classes > min(GOALS) and not all_classes:
            continue
        rows.append(count(classes, EPISODES_ON_GPU, goal=goal))
        rows.append(count(classes, FEW_EPISODES))
    rows.append(count(100, EPISODES_ON_GPU, jacobian=True))
    return rows


@torch.no_grad()
def count(
    classes: int, episodes: int, jacobian: bool = False, goal: int | None = None,
) -> Launches:
    """Counts launches while a batch is adapted and CoTS's temperatures of a part are solved.

    Args:
        classes: Number of classes.
        episodes: Number of images in the batch.
        jacobian: Whether gradients go through a Jacobian.
        goal: Goal for the launches per image; None = there is none.
    """
    cfg = build_cfg(METHOD, opts=["MODEL.PREC", "fp32"])
    names = class_names(classes)
    model = random_clip(THIN_SHAPE).to(far_device.NAME)
    width = model.text_projection.shape[1]
    method = build_method(cfg, model, names)
    clip = method.clip
    if jacobian:
        numbers = torch.randn(classes, width, clip.context.numel())
        clip = method.clip = clip.with_jacobian(numbers.to(far_device.NAME))
    real = as_backbone(random_clip(REAL_SHAPE).to(far_device.NAME))
    clip.budget.episodes = TextEncoder(real, clip.encoder.class_tokens).budget.episodes
    features = random_features(episodes, NUM_VIEWS, width).to(far_device.NAME)
    method.adapt(features[:1])  # computes what is constant in a run

    far_device.Counts.clear()
    adapted: Adapted = method.adapt(features)
    of_batch = far_device.Counts.launches.total()
    adapted.with_cots()
    of_part = far_device.Counts.launches.total() - of_batch
    return Launches(
        classes=classes,
        episodes=episodes,
        jacobian=jacobian,
        per_image=of_batch / episodes + of_part / cfg.TEST.PART,
        goal=goal,
    )
