"""What a plan will take: operations, seconds on an A100 and on this machine, bytes on disk.

Seconds on an A100 are an estimate from operation counts at an assumed rate, no measurement; reading and augmenting
images on the CPU comes on top wherever it is slower than the GPU.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from ...datasets.utils.cli import counted
from ...datasets.views.loader import num_threads
from ...datasets.views.maker import ViewMaker
from ..registry import method_info
from ..runs.run_dir import RunDir
from ..vlm.jacobian import pays
from ..vlm.loading import pick_device
from .plan import PlannedRun

CLASS_TOKENS = 4.6  # an average class name with its full stop and end token; the words before it run once an image
IMAGE_RATE = 100e12  # operations a second of an A100 in half precision on the image tower: a third of its peak
TEXT_RATE = 30e12  # and on the short sequences of the text tower
WORDS = 4  # of the usual context


@dataclass(frozen=True)
class TowerSize:
    """A transformer."""

    width: int
    layers: int

    def operations(self, tokens: float, sequence: float = 0) -> float:
        """Forward, for this many tokens in sequences of this length: 12 width² products a token and layer (attention's
        four, the MLP's eight) and the two products of attention."""
        return self.layers * tokens * (24 * self.width**2 + 4 * sequence * self.width)


@dataclass(frozen=True)
class Sizes:
    """What the cost of a backbone follows from."""

    image: TowerSize
    patches: int  # tokens of an image
    pixels: int  # of its side
    text: TowerSize
    features: int

    @property
    def view(self) -> float:
        """Operations to encode one view."""
        return self.image.operations(self.patches, self.patches)

    def text_pass(self, classes: int, words: int = WORDS) -> float:
        """Operations of one forward of all class prompts; a backward pass to the context costs as much again."""
        return self.text.operations(1 + words + CLASS_TOKENS * classes, 1 + words + CLASS_TOKENS)


BACKBONES = {
    "ViT-L/14": Sizes(TowerSize(1024, 24), 257, 224, TowerSize(768, 12), 768),
    "ViT-B/16": Sizes(TowerSize(768, 12), 197, 224, TowerSize(512, 12), 512),
    "ViT-B/32": Sizes(TowerSize(768, 12), 50, 224, TowerSize(512, 12), 512),
    "small": Sizes(TowerSize(128, 3), 65, 64, TowerSize(128, 2), 128),
}


@dataclass(frozen=True)
class Work:
    """Operations of the image and of the text tower, views to make, bytes to keep."""

    image: float = 0.0
    text: float = 0.0
    views: int = 0
    disk: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.image + other.image, self.text + other.text, self.views + other.views, self.disk + other.disk)

    @property
    def on_a100(self) -> float:
        """Seconds, by operation counts alone."""
        return self.image / IMAGE_RATE + self.text / TEXT_RATE


@dataclass(frozen=True)
class Machine:
    """How fast this machine is, measured in a moment."""

    rate: float  # operations a second of a matrix product
    view: Mapping[int, float]  # seconds to make one view, by its side in pixels
    name: str

    def seconds(self, work: Work, pixels: int, workers: int) -> float:
        making = work.views * self.view[pixels] / max(1, workers)
        return making + (work.image + 2 * work.text) / self.rate  # short sequences reach about half the rate


def work_of(run: PlannedRun, encodes: bool, half: bool = False) -> Work:
    """The work of one run. `encodes`: whether it is the one that makes the view features; `half`: 2-byte features."""
    sizes, cfg = BACKBONES.get(run.backbone, BACKBONES["ViT-L/14"]), run.cfg
    images, classes = run.size
    strong = 2 * classes + 4 if run.many_views else 0  # what CoTS and E-CoTS need
    predictions = images * (2 * 4 * classes + 17 + strong)  # logits before and after, index, label, flag
    if method_info(run.method).trained:
        from ..coop import epochs_of

        epochs, shown = epochs_of(cfg), classes * run.shots
        batches = epochs * -(-shown // cfg.DATALOADER.TRAIN_X.BATCH_SIZE)
        seen = shown if cfg.TRAINER.COOP.FIXED_VIEWS else epochs * shown
        return Work(seen * sizes.view, 2 * batches * sizes.text_pass(classes), seen, predictions)
    views = cfg.TTA.VIEWS if run.many_views else 1
    # One step is a backward pass from the shared first pass and a final forward; each further step is one of both.
    steps = cfg.TTA.STEPS if method_info(run.method).tunes_context else 0
    text = images * 2 * steps * sizes.text_pass(classes, len(cfg.PROMPT.CTX_INIT.split()))
    if run.method == "FPP":  # its prompt: in each step all noises forward, and the prompt itself forward and back
        text += cfg.TRAINER.FPP.STEPS * (cfg.TRAINER.FPP.NOISES + 3) * sizes.text_pass(classes)
    work = Work(0, text, 0, predictions)
    if encodes:
        kept = images * views * sizes.features * (2 if half else 4)
        work += Work(images * views * sizes.view, 0, images * views, kept)
    return work


def jacobian_bytes(run: PlannedRun) -> float:
    """What the run's kept Jacobian takes, if it makes one: where it fits, and where enough images profit."""
    sizes, cfg = BACKBONES.get(run.backbone, BACKBONES["ViT-L/14"]), run.cfg
    images, classes = run.size
    words = len(cfg.PROMPT.CTX_INIT.split())
    size = 4.0 * classes * sizes.features * words * sizes.text.width
    worth = pays(images, sizes.features * (1 + (1 + words) / CLASS_TOKENS), kept=True)
    return size if method_info(run.method).tunes_context and cfg.TTA.STEPS and worth and size <= 1e9 * cfg.TTA.JACOBIAN_GB else 0.0


def works(runs: Sequence[PlannedRun], finished: Collection[PlannedRun], half: bool) -> dict[PlannedRun, Work]:
    """The work left in each unfinished run, in order: features and Jacobians count where they are made first."""
    encoded = {run.features for run in finished if run.many_views}
    wanted = {run.features for run in runs if run.many_views}
    kept: set[tuple] = {jacobian_key(run) for run in finished if run.many_views}
    left = {}
    for run in runs:
        if run in finished:
            continue
        encodes = run.features not in encoded and (run.many_views or run.features not in wanted)
        left[run] = work_of(run, encodes, half)
        if run.many_views:
            encoded.add(run.features)
            if jacobian_key(run) not in kept:
                kept.add(jacobian_key(run))
                left[run] += Work(disk=jacobian_bytes(run))
    return left


def jacobian_key(run: PlannedRun) -> tuple:
    return run.dataset, run.backbone, run.cfg.PROMPT.CTX_INIT, run.shots and run.seed


def measure_machine(pixels: Collection[int]) -> Machine:
    """A matrix product and a few augmented views, timed."""
    device = pick_device("auto")
    half = device.type == "cuda"
    side = 4096 if half else 768
    a = torch.randn(side, side, device=device, dtype=torch.float16 if half else torch.float32)

    def product() -> None:
        a @ a
        if half:
            torch.cuda.synchronize()

    rate = 2 * side**3 / quickest(product)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8))
    view = {size: quickest(lambda size=size: ViewMaker(9, size, True, 0)(picture, 0)) / 9 for size in pixels}
    name = torch.cuda.get_device_name(device) if half else f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    return Machine(rate, view, name)


def quickest(call: Callable[[], object]) -> float:
    """The seconds of the best of several calls: the first ones load and compile."""
    times = []
    for _ in range(4):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def seconds_here(run: PlannedRun, work: Work, machine: Machine, known: Mapping[tuple, float]) -> float:
    """By finished runs of the same kind where features are there already, else by operations."""
    per_image = known.get(kind_of(run))
    if per_image is not None and not work.views:
        return run.size[0] * per_image
    pixels = BACKBONES.get(run.backbone, BACKBONES["ViT-L/14"]).pixels
    return machine.seconds(work, pixels, num_threads(run.cfg.DATALOADER.NUM_WORKERS))


def known_speeds(finished: Collection[PlannedRun]) -> dict[tuple, float]:
    """Seconds an image by kind of finished run, the fastest of each: it had its features from the cache."""
    speeds: dict[tuple, float] = {}
    for run in finished:
        results = RunDir(run.folder).results() or {}
        if "seconds_per_image" in results:
            speeds[kind_of(run)] = min(results["seconds_per_image"], speeds.get(kind_of(run), float("inf")))
    return speeds


def kind_of(run: PlannedRun) -> tuple:
    """Runs alike in this take about the same time an image: the methods' own penalties weigh little."""
    return run.many_views, run.cfg.TTA.STEPS, run.dataset, run.backbone
