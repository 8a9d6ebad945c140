"""Five methods on the same images in one picture and a few sentences: what the demo shows."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..functional import calibration as cal
from ..functional.significance import paired_bootstrap
from ..registry import method_info
from .figures.overview import Standing, draw_overview
from .figures.reliability import diagram
from .gallery import Picture
from .reading import Run

BINS, SHOWN_BINS = 20, 8  # of ECE, and of the diagrams: few, so that a bin holds enough images to be looked at
REPEATS = 1000  # of the paired bootstrap


def standings(runs: Sequence[Run], reference: str) -> list[Standing]:
    """Each run's diagram and the difference of its ECE from the reference's, which must be one of the runs."""
    outcomes = {}
    for run in runs:
        data = run.load_predictions()
        outcomes[run.trainer] = cal.top_class(data.logits, data.label)
    error = partial(cal.ece, bins=BINS)
    found = []
    for method, outcome in outcomes.items():
        shown = replace(diagram(method_info(method).label, method, *outcome, SHOWN_BINS), ece=error(*outcome))
        change = None
        if method != reference:
            change = paired_bootstrap(error, outcomes[reference], outcome, repeats=REPEATS, centred=True)
        found.append(Standing(shown, change))
    return found


def overview(found: Sequence[Standing], reference: str) -> Picture:
    images = found[0].diagram.n
    caption = (
        f"Above, accuracy by confidence in {SHOWN_BINS} bins (red: surer than right, blue: the reverse), ECE in {BINS} "
        f"bins. Below, mean confidence beside accuracy, and each ECE against {method_info(reference).label}'s on the same "
        f"{images:,} images; filled: the paired 95 % interval leaves zero out."
    )
    return Picture("overview", caption, draw_overview(found, reference))


def sentences(found: Sequence[Standing], reference: str) -> list[str]:
    """What tuning did to zero-shot, then what each other method does about it, and whether it is more than chance."""
    told = []
    tuned = next(s.diagram for s in found if s.diagram.method == reference)
    for standing in found:
        data, change = standing.diagram, standing.change
        if change is None:
            continue
        if method_info(data.method).zero_shot:
            name, before, after, moved, low, high = (
                method_info(reference).label, data, tuned, -change.value, -change.high, -change.low)
        else:
            name, before, after, moved, low, high = (
                method_info(data.method).label, tuned, data, change.value, change.low, change.high)
        against = method_info(before.method).label
        told.append(
            f"{name} against {against}: accuracy {100 * (after.accuracy - before.accuracy):+.1f}, mean confidence "
            f"{100 * (after.confidence - before.confidence):+.1f}, ECE {100 * moved:+.1f} points (95 % interval "
            f"{100 * low:+.1f} to {100 * high:+.1f}, {'real' if change.real else 'may be chance'})."
        )
    return told
