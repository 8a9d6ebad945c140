"""The whole check-up, part after part."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ...datasets import build_dataset
from ...datasets.base import Dataset
from ...datasets.utils.cli import tool
from ...datasets.utils.errors import DataError
from ...datasets.views.loader import num_threads
from ...datasets.views.maker import ViewMaker
from ...trainers import build_cfg, build_trainer
from ...trainers.vlm.loading import as_backbone, load_clip, pick_device
from ...trainers.vlm.numerics import fixed_numerics
from ...trainers.vlm.openai_weights import SMALL
from ..speed.image_cases import make_pictures
from ..speed.result_tables import number
from ..speed.shapes import class_names
from . import pace, sight, surroundings
from .findings import FAULT, NOTE, Check, Diagnosis


@dataclass(frozen=True)
class Wishes:
    """What is looked at, and for which set-up."""

    backbone: str
    root: Path | None = None
    cache: Path | None = None  # of view features; given, a run finds them there
    device: str = "auto"
    workers: int = 2
    classes: int = 100
    episodes: int = 8
    images: int = 48  # that zero-shot accuracy is measured on
    opts: Sequence[str] = ()  # settings of the runs


def check_up(wishes: Wishes) -> Diagnosis:
    with fixed_numerics(), TemporaryDirectory() as folder:
        return examine(wishes, Path(folder))


def examine(wishes: Wishes, folder: Path) -> Diagnosis:
    device = pick_device(wishes.device)
    cfg = build_cfg("SoC", flags=["DEVICE", str(device)], opts=wishes.opts)
    backbone = as_backbone(load_clip(wishes.backbone, device, cfg.MODEL.ACTIVATION, cfg.MODEL.HEAD_WIDTH))
    method = build_trainer(cfg)
    method.use_model(backbone, class_names(wishes.classes))
    found = [Check("backbone", wishes.backbone, *remark_on(wishes.backbone))]
    found += surroundings.surroundings(device, wishes.cache, backbone.features, cfg.TTA.VIEWS)

    sets = sight.data_found(wishes.root) if wishes.root else []
    found += sight.describe(sets, wishes.root) if wishes.root else []
    usable = next((one for one in sets if one.state in ("ok", "partial")), None)
    real = build_dataset(usable.cls.name(), wishes.root) if usable else None
    pictures = real or make_pictures(folder / "pictures", 4)
    maker = ViewMaker.of(cfg.TTA.VIEWS, backbone.pixels, cfg.TTA.AUGMIX != "off", 0)
    with torch.no_grad():
        if device.type == "cuda" or wishes.backbone == SMALL:
            # Of what a model knows: where nothing is likely, gradients are noise, and signs turn by chance.
            known = build_dataset("LandCover", "") if wishes.backbone == SMALL else pictures
            names = known.classnames[:10] if known is not pictures else class_names(10)
            views = torch.stack([maker(known.read_image(item), 0)[:8] for item in known.test[:2]])
            found.append(sight.precision(backbone, names, views))
        else:
            found.append(Check(f"precision on {device}", "fp32, as MODEL.PREC auto has it on a CPU"))
        found.append(known_images(wishes, backbone, real))
        seconds = pace.measure(method, maker, pictures, pictures.test[:8], wishes.episodes)

    workers = num_threads(wishes.workers)
    set_up = pace.SetUp(workers, num_threads(-1), device.type != "cpu", wishes.cache is not None)
    slowest = set_up.bottleneck(seconds)
    advice = set_up.advice(slowest, wishes.episodes, method.prompt.jacobian is not None)
    rates = set_up.rates(seconds)
    for part, needed in seconds.items():
        rate = f", {number(rates[part])} images/s" if part in rates else ", not needed: view features are there"
        held_up = part == slowest
        found.append(Check(
            f"speed: {part}", f"{duration(needed)} an image{rate}", NOTE if held_up else "ok",
            advice if held_up else "",
        ))
    faults = [finding.what for finding in found if finding.state == FAULT]
    verdict = f"{slowest} is the bottleneck, about {number(set_up.images_a_second(seconds))} images a second: {advice}"
    return Diagnosis(found, seconds, slowest, f"not well: {', '.join(faults)}; {verdict}" if faults else verdict)


def remark_on(backbone: str) -> tuple[str, ...]:
    return (NOTE, "many times as fast as a real CLIP: --backbone ViT-B/16 measures one") if backbone == SMALL else ()


def duration(seconds: float) -> str:
    return f"{number(seconds)} s" if seconds >= 1 else f"{number(1000 * seconds)} ms"


def known_images(wishes: Wishes, backbone: object, real: Dataset | None) -> Check:
    """Zero-shot accuracy on what is at hand: a benchmark, or the drawn tiles that the embedded model knows."""
    if wishes.backbone == SMALL:
        real = None  # it knows nothing of the world
    elif real is None:
        return Check("zero-shot accuracy", "no data to measure it on", NOTE, "--root DATA")
    dataset = real or build_dataset("LandCover", "")
    try:
        return sight.zero_shot(backbone, wishes.backbone, dataset, dataset.test, wishes.images)
    except DataError as error:
        return Check("zero-shot accuracy", str(error), FAULT, tool("check-data"))
