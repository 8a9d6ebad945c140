"""The checks of `tools/doctor.py`: the machine, the correctness of numbers, and the throughput of each part."""
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from promptcal.datasets import build_dataset
from promptcal.datasets.base import Dataset
from promptcal.datasets.download.verify import inspect
from promptcal.datasets.file_dataset import file_datasets
from promptcal.datasets.utils.cli import tool
from promptcal.datasets.views.maker import ViewMaker
from promptcal.tools.measuring import class_names, drawn_images, interleaved, machine, random_features
from promptcal.trainers.api import adapt, build_method
from promptcal.trainers.base import BaseTrainer
from promptcal.trainers.config.build import build_cfg
from promptcal.trainers.report.published import find_for_run
from promptcal.trainers.vlm.backbone import Backbone
from promptcal.trainers.vlm.device import pick_device
from promptcal.trainers.vlm.image_tower import encode_views
from promptcal.trainers.vlm.loading import as_backbone, load_clip
from promptcal.trainers.vlm.numerics import fixed_numerics
from promptcal.trainers.vlm.openai import SMALL

OK, NOTE, FAULT = "ok", "note", "fault"
VIEWS, TOWER, EPISODE = "views", "image tower", "episode"
TEST_IMAGES = 48  # that zero-shot accuracy is measured on
MAX_FLIPPED = 0.03  # share of the first step's signs; fp16 flips less than 0.1 % on the small CLIP
MIN_ACCURACY = 0.75  # of the known accuracy, on a few images
ADVICE = {
    VIEWS: "set DATALOADER.NUM_WORKERS auto, and CACHE.DIR FOLDER, which keeps view features for every later run",
    TOWER: "set CACHE.DIR FOLDER, which keeps view features for every later run; or use a GPU",
    EPISODE: "set TTA.JACOBIAN on where thousands of images follow; or a larger TTA.EPISODES",
}
TOWER_VIEWS = 8  # encoded to time the image tower; 64 take a CPU seconds


class Check(NamedTuple):
    """One row: what was checked, what was found, whether it is as it should be, and what to do if not."""

    what: str
    found: str
    state: str = OK
    advice: str = ""


@fixed_numerics()
def diagnose(
    name: str, root: Path | None, cache: Path | None, device_name: str, workers: str, classes: int, opts: Sequence[str],
) -> tuple[list[Check], dict[str, object]]:
    """All checks for runs of SoC; and the verdict, the bottleneck and the seconds per image of each part."""
    device = pick_device(device_name)
    cfg = build_cfg("SoC", flags=["DEVICE", str(device)], opts=opts)
    backbone = as_backbone(load_clip(name, device))
    method = build_method(cfg, backbone, class_names(classes))
    found, gpu = machine(), torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    checks = [
        unless(name == SMALL, "backbone", name, "many times as fast as a real CLIP: try --backbone ViT-B/16"),
        Check("versions", ", ".join(f"{package} {version}" for package, version in found["versions"].items())),
        unless(gpu == "none", "GPU", f"{gpu}; CUDA of torch: {torch.version.cuda or 'none'}",
               "if there is one: check its driver (nvidia-smi) and torch"),
        unless((found["load"] or 0) > found["cores"] / 2, "processor",
               f"{found['processor']}, {found['cores']} cores for this process, load {found['load']}",
               "other programs use it: runs will be slower than the speeds below"),
    ]
    usable = [cls.name() for cls in file_datasets() if inspect(cls, root).state in ("ok", "partial")] if root else []
    usable = ["LandCover"] if name == SMALL else usable  # the small CLIP was trained on nothing else
    dataset = build_dataset(usable[0], root or "") if usable else None
    images = [dataset.read_image(datum) for datum in dataset.test[:2]] if dataset else drawn_images(2)
    names = dataset.classnames if dataset else class_names(10)
    checks += [precision(backbone, name, names, images), zero_shot(backbone, name, dataset)]
    seconds = throughput(method, images[0])
    threads = found["cores"] if workers == "auto" else max(1, min(int(workers), found["cores"]))
    stage = max(stages(seconds, threads, device.type != "cpu", cache is not None), key=lambda one: sum(one.values()))
    slowest = max(stage, key=lambda part: stage[part])
    checks += [unless(part == slowest, f"speed: {part}", f"{1000 * needed:.3g} ms per image", ADVICE[part])
               for part, needed in seconds.items()]
    verdict = f"{slowest} is the bottleneck, about {1 / sum(stage.values()):.3g} images per second: {ADVICE[slowest]}"
    return checks, {"verdict": verdict, "bottleneck": slowest, "seconds_per_image": seconds}


def unless(bad: bool, what: str, found: str, advice: str, state: str = NOTE) -> Check:
    return Check(what, found, state, advice) if bad else Check(what, found)


def precision(backbone: Backbone, name: str, classnames: Sequence[str], images: Sequence[Image.Image]) -> Check:
    """TPT's first step in fp16 against fp32. AdamW's first step is the learning rate times the gradient's sign."""
    what, step = f"precision on {backbone.device}", 0.005
    if backbone.device.type == "cpu" and name != SMALL:
        return Check(what, "fp32, the default on a CPU")
    opts = ["TTA.VIEWS", 8, "TTA.SELECT", 0.5, "OPTIM.LR", step, "MODEL.PREC"]
    full, half = (adapt("TPT", backbone, classnames, list(images), [*opts, prec]).ctx for prec in ("fp32", "fp16"))
    assert full is not None and half is not None
    flipped = 1 - ((full - half).abs() < step).float().mean().item()  # NaN counts as flipped
    return unless(flipped > MAX_FLIPPED, what, f"fp16 flips {flipped:.2%} of the first step's signs", "MODEL.PREC fp32",
                  FAULT)


def zero_shot(backbone: Backbone, name: str, dataset: Dataset | None) -> Check:
    """Accuracy on a few images compared with the known accuracy on the whole set."""
    if dataset is None:
        return Check("zero-shot accuracy", "no data to measure it on", NOTE, f"--root DATA; {tool('check-data')}")
    chosen = dataset.test[:: max(1, len(dataset.test) // TEST_IMAGES)][:TEST_IMAGES]
    images = [dataset.read_image(datum) for datum in chosen]
    guessed = adapt("ZeroShot", backbone, dataset.classnames, images).logits.argmax(-1).cpu()
    right = (guessed == torch.tensor([datum.label for datum in chosen])).float().mean().item()
    known = find_for_run("accuracy", "ZeroShot", type(dataset).__name__, name)
    low = right < MIN_ACCURACY * float(known.value) / 100 if known else right <= 1.5 / len(dataset.classnames)
    found = f"{100 * right:.0f} % of {len(chosen)} images" + (f"; SoC paper: {known.value} % of all" if known else "")
    return unless(low, f"zero-shot on {type(dataset).__name__}", found,
                  f"are these the right weights and class names? {tool('check-data')}", FAULT)


def throughput(method: BaseTrainer, image: Image.Image) -> dict[str, float]:
    """Seconds per image of each part on its own: on one core, or on the GPU."""
    backbone, device, cfg = method.clip.backbone, method.numerics.device, method.cfg
    num_views, episodes, file = cfg.TTA.VIEWS, cfg.TTA.EPISODES, BytesIO()
    image.save(file, "JPEG", quality=90)
    make_views = ViewMaker.of(num_views, backbone.pixels, cfg.TTA.AUGMIX != "off", 0)
    views = make_views(image, 0)[None, :TOWER_VIEWS].to(device)
    features = random_features(episodes, num_views, backbone.features).to(device)
    tasks = {
        VIEWS: lambda: make_views(Image.open(file).convert("RGB"), 0),
        TOWER: lambda: encode_views(backbone, views, method.numerics.precision, normalised=False),
        EPISODE: lambda: method.adapt(features),
    }

    def gpu_clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    for task in tasks.values():
        task()  # first calls load and compile
    seconds = interleaved(tasks, 1, time.process_time if device.type == "cpu" else gpu_clock)
    return {**seconds, TOWER: seconds[TOWER] * num_views / views.shape[1], EPISODE: seconds[EPISODE] / episodes}


def stages(seconds: Mapping[str, float], threads: int, gpu: bool, cached: bool) -> list[dict[str, float]]:
    """Seconds per image of the parts that a run needs, in groups that run at the same time: threads prepare images
    while a GPU works; on a CPU everything shares the cores."""
    if cached:
        return [{EPISODE: seconds[EPISODE]}]
    shared = (VIEWS,) if gpu else (VIEWS, TOWER)
    cost = {part: needed / (threads if part in shared else 1) for part, needed in seconds.items()}
    return [{part: cost[part] for part in group} for group in ((shared, (TOWER, EPISODE)) if gpu else (cost,))]
