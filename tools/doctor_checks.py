"""Checks a machine for `tools/doctor.py`: its parts, its numbers, and the speed of each step."""
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.base import Dataset
from promptcal.datasets.download.verify import inspect
from promptcal.datasets.file_dataset import file_datasets
from promptcal.datasets.utils.cli import tool
from promptcal.datasets.views.maker import ViewMaker
from promptcal.tools.measuring import (
    class_names,
    drawn_images,
    interleaved,
    machine,
    random_features,
)
from promptcal.trainers.api import adapt, build_method
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.config.build import build_cfg
from promptcal.trainers.engine.features import ENCODE_AT_ONCE
from promptcal.trainers.report.published import find_for_run
from promptcal.trainers.vlm.backbone import Backbone
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import SMALL, load_backbone
from promptcal.trainers.vlm.numerics import (
    fixed_numerics,
    gpu_name,
    is_gpu,
    pick_device,
    pin,
    synchronise,
)

# States of a check
OK = "ok"
NOTE = "note"
FAULT = "fault"
# Parts of a run that are timed
VIEWS = "views"
TOWER = "image tower"
EPISODE = "episode"
TEST_IMAGES = 48  # number of images on which zero-shot accuracy is measured
# Largest share of the first step's signs that fp16 may flip. It flips less than 0.1 % on the small
# CLIP.
MAX_FLIPPED = 0.03
MIN_ACCURACY = 0.75  # least share of the known accuracy that a few images may reach
# Number of views that are encoded to time the image tower on a CPU, where time is proportional to
# it. 64 would take seconds.
VIEWS_ON_CPU = 8
# Advice for the slowest part, on a CPU and on a GPU.
CACHE_SETTING = "CACHE.DIR FOLDER, which keeps view features for every later run"
ADVICE = {
    VIEWS: f"set DATALOADER.NUM_WORKERS auto, and {CACHE_SETTING}",
    TOWER: f"set {CACHE_SETTING}; or use a GPU",
    EPISODE: "set TTA.JACOBIAN on where thousands of images follow; or a larger TTA.EPISODES",
}
GPU_ADVICE = {
    VIEWS: f"give the process more cores, or set {CACHE_SETTING}",
    TOWER: f"set {CACHE_SETTING}",
    EPISODE: ADVICE[EPISODE],
}


@dataclass(frozen=True)
class PlannedRuns:
    """The runs of SoC for which the machine is checked.

    Attributes:
        backbone: Name of the backbone, as in MODEL.BACKBONE.NAME.
        root: Folder of the data sets; None = there are none.
        cache: Folder of cached view features, CACHE.DIR; None = there is none.
        device: Device of the runs, as in DEVICE.
        workers: Number of threads, as in DATALOADER.NUM_WORKERS, or auto.
        classes: Number of classes to adapt with.
        opts: Further settings of the runs, as KEY VALUE pairs.
    """

    backbone: str
    root: Path | None = None
    cache: Path | None = None
    device: str = "auto"
    workers: str = "auto"
    classes: int = 100
    opts: Sequence[str] = ()


class MachineCheck(NamedTuple):
    """The result of a check, one row of the table.

    Attributes:
        what: Name of what was checked.
        found: Result of the check, in words.
        state: State of the check: OK, NOTE or FAULT.
        advice: Advice if it is not OK; "" otherwise.
    """

    what: str
    found: str
    state: str = OK
    advice: str = ""


@fixed_numerics()
def diagnose(runs: PlannedRuns) -> tuple[list[MachineCheck], dict[str, object]]:
    """Makes all checks for planned runs.

    Returns:
        The checks; and a summary with the verdict, the bottleneck and the seconds per image of each
        part.
    """
    name = runs.backbone
    device = pick_device(runs.device)
    cfg = build_cfg("SoC", flags=["DEVICE", str(device)], opts=runs.opts)
    backbone = load_backbone(name, device)
    method = build_method(cfg, backbone, class_names(runs.classes))
    facts = machine()
    dataset = usable_dataset(name, runs.root)
    if dataset is None:
        images = drawn_images(2)
        names = class_names(10)
    else:
        images = [dataset.read_image(item) for item in dataset.test[:2]]
        names = dataset.classnames
    checks = [
        *machine_checks(name, device, facts),
        precision(backbone, name, names, images),
        zero_shot(backbone, name, dataset),
    ]

    seconds = throughput(method, images[0])
    threads = facts["cores"]
    if runs.workers != "auto":
        threads = max(1, min(int(runs.workers), threads))
    groups = stages(seconds, threads, is_gpu(device), cached=runs.cache is not None)
    slowest_group = max(groups, key=lambda group: sum(group.values()))
    slowest = max(slowest_group, key=lambda part: slowest_group[part])
    advice = GPU_ADVICE if is_gpu(device) else ADVICE
    for part, needed in seconds.items():
        checks.append(check_unless(
            part == slowest, f"speed: {part}", f"{1000 * needed:.3g} ms per image", advice[part]))
    per_second = 1 / sum(slowest_group.values())
    verdict = (f"{slowest} is the bottleneck, about {per_second:.3g} images per second: "
               f"{advice[slowest]}")
    return checks, {"verdict": verdict, "bottleneck": slowest, "seconds_per_image": seconds}


def machine_checks(name: str, device: torch.device, facts: Mapping[str, Any]) -> list[MachineCheck]:
    """Checks backbone, versions, GPU and processor."""
    versions = [f"{package} {version}" for package, version in facts["versions"].items()]
    gpu = gpu_name(device) or "none"
    load = facts["load"] or 0  # None where the system does not count it
    is_busy = load > facts["cores"] / 2
    return [
        check_unless(
            name == SMALL,
            "backbone",
            name,
            "many times as fast as a real CLIP: try --backbone ViT-B/16",
        ),
        MachineCheck("versions", ", ".join(versions)),
        check_unless(
            gpu == "none",
            "GPU",
            f"{gpu}; CUDA of torch: {torch.version.cuda or 'none'}",
            "if there is one: check its driver (nvidia-smi) and torch",
        ),
        check_unless(
            is_busy,
            "processor",
            f"{facts['processor']}, {facts['cores']} cores for this process, load {facts['load']}",
            "other programs use it: runs will be slower than the speeds below",
        ),
    ]


def usable_dataset(name: str, root: Path | None) -> Dataset | None:
    """Finds a data set on which zero-shot accuracy can be measured; None if there is none.

    Args:
        name: Name of the backbone. The small CLIP is measured on the data that it was trained for.
        root: Folder of the data sets, of which the first complete one is taken; None = there are
            none.
    """
    if name == SMALL:
        return build_dataset("LandCover", root or "")
    if root is None:
        return None
    for cls in file_datasets():
        if inspect(cls, root).state in ("ok", "partial"):
            return build_dataset(cls.name(), root)
    return None


def check_unless(bad: bool, what: str, result: str, advice: str, state: str = NOTE) -> MachineCheck:
    """Returns a check that is OK, or has a state and an advice if `bad`.

    Args:
        bad: Whether something is not as it should be.
        what: Name of what was checked.
        result: Result of the check, in words.
        advice: Advice if `bad`.
        state: State of the check if `bad`: NOTE or FAULT.
    """
    if bad:
        return MachineCheck(what, result, state, advice)
    return MachineCheck(what, result)


def precision(
    backbone: Backbone, name: str, classnames: Sequence[str], images: Sequence[Image.Image],
) -> MachineCheck:
    """Checks whether TPT's first step is the same in fp16 as in fp32.

    AdamW's first step is the learning rate times the gradient's sign, so wrong gradients show as
    flipped signs. It is checked on a GPU, and for the small CLIP on a CPU too.

    Args:
        backbone: The model.
        name: Name of the backbone.
        classnames: Names of the classes to adapt with.
        images: Images to adapt to.
    """
    what = f"precision on {backbone.device}"
    if not is_gpu(backbone.device) and name != SMALL:
        return MachineCheck(what, "fp32, the default on a CPU")
    step = 0.005
    contexts = []
    for setting in ("fp32", "fp16"):
        opts = {"TTA.VIEWS": 8, "TTA.SELECT": 0.5, "OPTIM.LR": step, "MODEL.PREC": setting}
        context = adapt("TPT", backbone, classnames, list(images), opts).ctx
        assert context is not None
        contexts.append(context)
    full, half = contexts
    same = (full - half).abs() < step
    flipped = 1 - same.float().mean().item()  # NaN counts as flipped
    return check_unless(
        flipped > MAX_FLIPPED,
        what,
        f"fp16 flips {flipped:.2%} of the first step's signs",
        "MODEL.PREC fp32",
        FAULT,
    )


def zero_shot(backbone: Backbone, name: str, dataset: Dataset | None) -> MachineCheck:
    """Checks the accuracy on a few images against the known accuracy on the whole set."""
    if dataset is None:
        return MachineCheck("zero-shot accuracy", "no data to measure it on", NOTE,
                            f"--root DATA; {tool('check-data')}")
    # Evenly spaced, because test sets list class after class.
    interval = max(1, len(dataset.test) // TEST_IMAGES)
    chosen = dataset.test[::interval][:TEST_IMAGES]
    images = [dataset.read_image(item) for item in chosen]
    labels = torch.tensor([item.label for item in chosen])
    predicted = adapt("ZeroShot", backbone, dataset.classnames, images).logits.argmax(-1).cpu()
    accuracy = (predicted == labels).float().mean().item()
    text = f"{100 * accuracy:.0f} % of {len(chosen)} images"
    known = find_for_run("accuracy", "ZeroShot", type(dataset).__name__, name)
    if known:
        text += f"; SoC paper: {known.value} % of all"
        is_low = accuracy < MIN_ACCURACY * float(known.value) / 100
    else:
        is_low = accuracy <= 1.5 / len(dataset.classnames)
    return check_unless(is_low, f"zero-shot on {type(dataset).__name__}", text,
                  f"are these the right weights and class names? {tool('check-data')}", FAULT)


def throughput(method: BaseTrainer, image: Image.Image) -> dict[str, float]:
    """Measures seconds per image of each part of a run by itself: on one core, or on the GPU.

    On a GPU the image tower is timed as in a run, with as many images and with their upload: a
    batch that does not fill it would look slower. A CPU encodes image by image, in pieces.
    """
    cfg = method.cfg
    backbone = method.clip.backbone
    device = method.numerics.device
    num_views = cfg.TTA.VIEWS
    file = BytesIO()
    image.save(file, "JPEG", quality=90)
    make_views = ViewMaker.of(num_views, backbone.pixels, cfg.TTA.AUGMIX != "off", 0)
    if is_gpu(device):
        views = [pin(make_views(image, 0), device)] * ENCODE_AT_ONCE
    else:
        views = [make_views(image, 0)[:VIEWS_ON_CPU]]
    features = random_features(method.numerics.episodes, num_views, backbone.features).to(device)

    def prepare() -> None:
        make_views(Image.open(file).convert("RGB"), 0)

    def encode() -> None:
        encode_views(
            backbone, views, method.numerics.precision, normalised=False, budget=method.clip.budget)

    def tune() -> None:
        method.adapt(features).with_cots()

    def gpu_clock() -> float:
        synchronise(device)
        return time.perf_counter()

    tasks = {VIEWS: prepare, TOWER: encode, EPISODE: tune}
    for task in tasks.values():
        task()  # first calls load and compile
    clock = gpu_clock if is_gpu(device) else time.process_time
    seconds = interleaved(tasks, 1, clock)
    encoded = len(views) * len(views[0])
    return {
        VIEWS: seconds[VIEWS],
        TOWER: seconds[TOWER] * num_views / encoded,
        EPISODE: seconds[EPISODE] / method.numerics.episodes,
    }


def stages(
    seconds: Mapping[str, float], threads: int, gpu: bool, cached: bool,
) -> list[dict[str, float]]:
    """Groups the seconds per image of the parts that a run needs: groups run at the same time.

    Threads prepare images while a GPU computes; on a CPU everything shares the cores.

    Args:
        seconds: Seconds per image of each part on its own.
        threads: Number of threads that make views, and on a CPU encode them.
        gpu: Whether the runs use a GPU.
        cached: Whether view features are stored.
    """
    if cached:
        return [{EPISODE: seconds[EPISODE]}]
    views = seconds[VIEWS] / threads
    if gpu:
        return [{VIEWS: views}, {TOWER: seconds[TOWER], EPISODE: seconds[EPISODE]}]
    return [{VIEWS: views, TOWER: seconds[TOWER] / threads, EPISODE: seconds[EPISODE]}]
