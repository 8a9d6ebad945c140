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
from .goals import goals
from .image_cases import whole_episodes
from .limits import other_limits, peak_rate, tower_limits
from .memory_cases import text_memory
from .profiling import load, machine, one_thread, processor_seconds
from .records import BaselineComparison, Growth
from .result_tables import Findings, write
from .scale_cases import scale
from .shapes import SHAPES, random_clip
from .text_cases import growth, regularisers, text_side
from .view_cases import view_speed

logger = logging.getLogger(__name__)

PUBLISHED_CLASSES = (10, 100, 1000)  # of the paper's complexity table


@dataclass(frozen=True)
class Suite:
    """How much is measured."""

    backbones: Sequence[str] = ("ViT-B/16", "ViT-L/14")
    classes: Sequence[int] = (10, 100, 397, 1000)  # of the text side
    memory_classes: Sequence[int] = (10, 100, 397, 1000)
    regulariser_classes: Sequence[int] = (10, 100, 397, 1000)
    scale_classes: Sequence[int] = (10, 100, 1000, 10_000, 21_000)  # the last are ImageNet-21k's
    scale_text_up_to: int = 21_000  # classes
    views: Sequence[int] = (16, 32, 64, 128)  # growth with them
    episodes: Sequence[int] = (1, 2, 4, 8, 16)  # growth with them
    growth_classes: int = 100
    episode_classes: int = 100  # of the whole episode: one of `classes`, or the largest of them
    batch: int = 8  # episodes at once
    images: int = 4  # encoded for a cold episode's time
    rounds: int = 3
    short_rounds: int = 3  # of what takes little time: regularisers, views
    photos: str = ""  # folder of photographs for views; "" = pictures made for the purpose


FULL = Suite()
QUICK = Suite(
    backbones=("ViT-B/16",), classes=(10, 100), memory_classes=(25,), regulariser_classes=(10, 100, 397),
    scale_classes=(10, 100, 1000), scale_text_up_to=100, growth_classes=10, batch=4, images=1, rounds=1,
)
SCALE = Suite(
    backbones=(), classes=(), memory_classes=(), regulariser_classes=(), views=(), episodes=(), rounds=1,
)


def check(suite: Suite) -> None:
    unknown = [name for name in suite.backbones if name not in SHAPES and ":" not in name]
    if unknown:
        raise ConfigError(f"no shape called {unknown[0]!r}: use one of {', '.join(SHAPES)}, or a backbone of another "
                          f"family, such as open_clip:MODEL/TAG")
    if min([*suite.classes, *suite.memory_classes, *suite.scale_classes], default=3) < 3:
        raise ConfigError("numbers of classes must be 3 or more: with fewer the plain way's SoC is not defined")
    if suite.rounds < 1:
        raise ConfigError("--rounds must be 1 or more")


def run(suite: Suite, folder: Path) -> str:
    """Measures everything, writes benchmark.json, benchmark.txt and the charts, and returns the tables."""
    from .chart import draw  # matplotlib takes a while to load

    check(suite)
    started = processor_seconds()
    with one_thread():
        findings = Findings({**machine()}, asdict(suite))
        measure(suite, findings)
    findings.machine["load_at_end"] = load()
    findings.machine["processor_seconds"] = round(processor_seconds() - started)
    text = write(findings, folder)
    draw(findings, folder)
    return text


def measure(suite: Suite, findings: Findings) -> None:
    shape_name = next((name for name in suite.backbones if name in SHAPES), "ViT-B/16")
    shape = SHAPES[shape_name]
    for backbone in suite.backbones:
        measure_backbone(backbone, suite, findings)
    findings.scale += scale(shape_name, suite.scale_classes, suite.scale_text_up_to)
    if not suite.backbones:
        return
    rounds = max(suite.short_rounds, suite.rounds)
    findings.comparisons += regularisers(suite.regulariser_classes, shape.embed_dim, rounds)
    views = view_speed(shape.image_resolution, rounds, suite.photos)
    findings.comparisons += views
    findings.limits += other_limits(shape_name, findings.scale, views, peak_rate(shape_name))
    findings.flops += regulariser_flops(PUBLISHED_CLASSES)
    findings.goals += goals(findings.comparisons, shape_name)


def measure_backbone(backbone: str, suite: Suite, findings: Findings) -> None:
    """Everything that depends on the backbone. Of other families than OpenAI's the text side, which is where they
    differ."""
    if backbone not in SHAPES:
        texts = family_text_side(backbone, sorted(suite.classes), suite.batch, suite.rounds)
        findings.comparisons += texts
        findings.growth += growth_with_classes(texts)
        return
    model = random_clip(backbone)
    with torch.no_grad():
        model.logit_scale.fill_(torch.tensor(100.0).log())  # that of OpenAI's models
    peak = peak_rate(backbone)
    texts = text_side(model, backbone, sorted(suite.classes), suite.batch, suite.rounds)
    plain_text = next((one for one in texts if one.classes == suite.episode_classes), texts[-1])
    episodes = whole_episodes(
        model, backbone, plain_text.classes, suite.images, suite.batch, suite.rounds, plain_text,
    )
    findings.comparisons += texts + episodes
    findings.growth += growth_with_classes(texts)
    findings.growth += growth(model, backbone, suite.growth_classes, suite.views, suite.episodes, suite.rounds)
    findings.comparisons += text_memory(model, backbone, sorted(suite.memory_classes), suite.batch)
    flops = tower_flops(backbone, sorted(suite.classes))
    findings.flops += flops
    findings.limits += tower_limits(backbone, texts + episodes, flops, max(peak, peak_rate(backbone)))


def growth_with_classes(texts: list[BaselineComparison]) -> list[Growth]:
    """Read off the text side's figures."""
    return [Growth("classes", one.backbone, one.classes, one.ours) for one in texts if one.case == "one at a time"]
