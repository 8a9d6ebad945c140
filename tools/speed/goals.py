"""The ratios that the project has set itself, read off the figures."""
from __future__ import annotations

from collections.abc import Sequence

from .image_cases import TOWER, WARM, WARM_JACOBIAN
from .records import BaselineComparison, Goal
from .view_cases import PLAIN_VIEWS, WITH_AUGMIX

MOST_COLD, LEAST_WARM, LEAST_AUGMIX, LEAST_VIEWS = 1.05, 80, 5, 4


def goals(comparisons: Sequence[BaselineComparison], backbone: str) -> list[Goal]:
    gains = {one.case: one.gain for one in comparisons if one.gain and one.backbone in ("", backbone)}
    found = []
    if TOWER in gains:
        found.append(Goal("whole episode, nothing cached ÷ CLIP's own image tower", 1 / gains[TOWER], MOST_COLD,
                          at_most=True))
    for case, goal in ((WARM, LEAST_WARM), (WARM_JACOBIAN, LEAST_WARM)):
        if case in gains:
            found.append(Goal(f"whole episode, {case}: times faster than the plain way", gains[case], goal))
    for case, goal in ((PLAIN_VIEWS, LEAST_VIEWS), (WITH_AUGMIX, LEAST_AUGMIX)):
        if case in gains:
            found.append(Goal(f"views, {case}: times the public pipeline's", gains[case], goal))
    return found
