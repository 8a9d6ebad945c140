"""The whole benchmark, part after part."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ...datasets.utils.errors import ConfigError
from .family_cases import family_text_side
from .flops import regulariser_flops, tower_flops
from .image_cases import whole_episodes
from .limits import limits
from .measure import load, machine
from .memory_cases import text_memory
from .output import Findings, write
from .records import Comparison, Growth
from .shapes import SHAPES, random_clip
from .text_cases import growth, regularisers, text_side
from .view_cases import view_speed

logger = logging.getLogger(__name__)

PUBLISHED_CLASSES = (10, 100, 1000)  # of the paper's complexity table


@dataclass(frozen=True)
class Settings:
    """How much is measured."""

    backbones: Sequence[str] = ("ViT-B/16", "ViT-L/14")
    classes: Sequence[int] = (10, 100, 397, 1000)  # of the text side
    memory_classes: Sequence[int] = (10, 100, 397, 1000)
    regulariser_classes: Sequence[int] = (10, 100, 397, 1000)
    episode_classes: int = 100  # of the whole episode
    growth_classes: int = 100
    views: Sequence[int] = (16, 32, 64, 128)  # growth with them
    episodes: Sequence[int] = (1, 2, 4, 8, 16)  # growth with them
    batch: int = 8  # episodes at once
    images: int = 4  # encoded for a cold episode's time
    rounds: int = 3
    photos: str = ""  # folder of photographs for views; "" = pictures made for the purpose


FULL = Settings()
QUICK = Settings(
    backbones=("ViT-B/16",), classes=(10, 100), memory_classes=(25,), regulariser_classes=(10, 100, 397),
    episode_classes=10, growth_classes=10, images=1, rounds=1,
)


def check(settings: Settings) -> None:
    unknown = [name for name in settings.backbones if name not in SHAPES and ":" not in name]
    if unknown:
        raise ConfigError(f"no shape called {unknown[0]!r}: use one of {', '.join(SHAPES)}, or a backbone of another "
                          f"family, such as open_clip:MODEL/TAG")
    if min(*settings.classes, *settings.memory_classes) < 3:
        raise ConfigError("numbers of classes must be 3 or more: with fewer the plain way's SoC is not defined")
    if settings.rounds < 1:
        raise ConfigError("--rounds must be 1 or more")


def run(settings: Settings, folder: Path) -> str:
    """Measures everything, writes benchmark.json, benchmark.txt and benchmark.png, and returns the tables."""
    from .chart import draw  # matplotlib takes a while to load

    check(settings)
    findings = Findings({**machine()}, asdict(settings))
    logger.info("load %s: figures are only worth comparing if nothing else runs", findings.machine["load"])
    for backbone in settings.backbones:
        measure(backbone, settings, findings)
    shape = next((SHAPES[name] for name in settings.backbones if name in SHAPES), SHAPES["ViT-B/16"])
    findings.comparisons += regularisers(settings.regulariser_classes, shape.embed_dim, max(3, settings.rounds))
    findings.comparisons += view_speed(shape.image_resolution, settings.rounds, settings.photos)
    findings.flops += regulariser_flops(PUBLISHED_CLASSES)
    findings.machine["load_at_end"] = load()
    text = write(findings, folder)
    draw(findings, folder / "benchmark.png")
    return text


def measure(backbone: str, settings: Settings, findings: Findings) -> None:
    """Everything that depends on the backbone. Of other families than OpenAI's the text side, which is where they
    differ."""
    if backbone not in SHAPES:
        texts = family_text_side(backbone, sorted(settings.classes), settings.batch, settings.rounds)
        findings.comparisons += texts
        findings.growth += growth_with_classes(texts)
        return
    model = random_clip(backbone)
    with torch.no_grad():
        model.logit_scale.fill_(torch.tensor(100.0).log())  # that of OpenAI's models
    texts = text_side(model, backbone, sorted(settings.classes), settings.batch, settings.rounds)
    findings.comparisons += texts
    findings.growth += growth_with_classes(texts)
    findings.growth += growth(
        model, backbone, settings.growth_classes, settings.views, settings.episodes, settings.rounds,
    )
    findings.comparisons += whole_episodes(
        model, backbone, settings.episode_classes, settings.images, settings.batch, settings.rounds,
    )
    findings.comparisons += text_memory(model, backbone, sorted(settings.memory_classes), settings.batch)
    flops = tower_flops(backbone, sorted(settings.classes))
    findings.flops += flops
    findings.limits += limits(backbone, texts, flops, settings.rounds)


def growth_with_classes(texts: list[Comparison]) -> list[Growth]:
    """Read off the text side's figures."""
    return [Growth("classes", one.backbone, one.classes, one.ours) for one in texts if one.case == "one at a time"]
