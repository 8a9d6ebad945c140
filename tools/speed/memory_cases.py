"""Peak memory of the text side, for each number of classes in a process of its own."""
from __future__ import annotations

import logging
from collections.abc import Sequence

from ...trainers.vlm.openai_clip import CLIP
from .baseline import fits, plain_text_side, text_need
from .profiling import extra_memory, in_fresh_process
from .records import BaselineComparison
from .shapes import class_names, random_clip, random_features
from .text_cases import VIEWS, build_engine

logger = logging.getLogger(__name__)

PLAIN = "plain"


def text_peaks(backbone: str, classes: int, at_once: dict[str, int], with_plain: bool) -> dict[str, int | None]:
    """Bytes beyond the loaded model that the text side takes, by the number of episodes at once, and the plain way."""
    model, names = random_clip(backbone), class_names(classes)
    features = random_features(max(at_once.values()), VIEWS, model.text_projection.shape[1])
    build_engine(model, names[:3]).adapt(features[:1])  # for what torch loads when it is first used
    found = {
        case: extra_memory(lambda episodes=episodes: build_engine(model, names).adapt(features[:episodes]))
        for case, episodes in at_once.items()
    }
    if with_plain:
        found[PLAIN] = extra_memory(plain_text_side(model, names, features[0]))
    return found


def text_memory(model: CLIP, backbone: str, counts: Sequence[int], episodes: int) -> list[BaselineComparison]:
    """MB on top of the loaded model, for each number of classes, ascending."""
    found: list[BaselineComparison] = []
    measured = None
    for count in counts:
        logger.info("memory: %s, %d classes", backbone, count)
        runs = fits(text_need(model, count))
        at_once = {"one at a time": 1, f"{episodes} at once": episodes}
        peaks = in_fresh_process(text_peaks, backbone, count, at_once, runs) or {}
        plain = peaks.pop(PLAIN, None)
        if plain:
            measured = count, plain / 1e6
        for case, needed in peaks.items():
            if needed is None:
                logger.warning("this system does not tell a process's peak memory: not measured")
                return []
            found.append(BaselineComparison(
                "memory", case, backbone, count, "MB", needed / 1e6,
                measured and measured[1] * count / measured[0], extrapolated=bool(measured) and not plain,
            ))
    return found
