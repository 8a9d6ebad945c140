"""Peak memory of the text side, each measured in a process of its own."""
from __future__ import annotations

import logging
from collections.abc import Sequence

from ...trainers.vlm.openai_clip import CLIP
from .baseline import fits, plain_text_side, text_need
from .measure import peak_memory
from .records import Comparison
from .shapes import class_names, random_clip, random_features
from .text_cases import VIEWS, build_engine

logger = logging.getLogger(__name__)


def load_only(backbone: str) -> CLIP:
    """What both ways need anyway."""
    class_names(1)
    return random_clip(backbone)


def plain(backbone: str, classes: int) -> None:
    model = load_only(backbone)
    plain_text_side(model, class_names(classes), random_features(VIEWS, model.text_projection.shape[1]))()


def ours(backbone: str, classes: int, episodes: int) -> None:
    model = load_only(backbone)
    build_engine(model, class_names(classes)).adapt(random_features(episodes, VIEWS, model.text_projection.shape[1]))


def text_memory(model: CLIP, backbone: str, counts: Sequence[int], episodes: int) -> list[Comparison]:
    """MB on top of the loaded model, for each number of classes, ascending."""
    base = peak_memory(load_only, backbone)
    if base is None:
        logger.warning("this system does not tell a process's peak memory: not measured")
        return []
    found: list[Comparison] = []
    measured = None
    for count in counts:
        logger.info("memory: %s, %d classes", backbone, count)
        peak = peak_memory(plain, backbone, count) if fits(text_need(model, count)) else None
        if peak:
            measured = count, (peak - base) / 1e6
        for case, at_once in (("one at a time", 1), (f"{episodes} at once", episodes)):
            needed = peak_memory(ours, backbone, count, at_once)
            if needed:
                found.append(Comparison(
                    "memory", case, backbone, count, "MB", (needed - base) / 1e6,
                    measured and measured[1] * count / measured[0], extrapolated=bool(measured) and not peak,
                ))
    return found
