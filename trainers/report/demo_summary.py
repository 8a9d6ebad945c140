"""The demo's summary: several methods on the same images in one figure and a few sentences."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..functional import calibration as cal
from ..functional.significance import Difference, corrected, paired_bootstrap
from ..registry import method_info
from .figures.reliability import Diagram, diagram, draw_bins
from .figures.style import PAGE, new_figure, styled
from .gallery import NamedFigure
from .load import Run

SHOWN_BINS = 8  # of the diagrams: few, so that each bin holds enough images
REPEATS = 1000  # of the bootstrap


@dataclass(frozen=True)
class Summary:
    """One method: its reliability diagram, its RMS calibration error, and the difference of its square from the
    reference's on the same images, with a p-value that is corrected for all methods."""

    diagram: Diagram
    error: cal.Interval
    change: Difference | None = None  # None for the reference itself


def summarise(runs: Sequence[Run], reference: str) -> list[Summary]:
    """A summary of each run; `reference` must be the method of one of them."""
    tops = {}
    for run in runs:
        data = run.load_predictions()
        tops[run.trainer] = cal.top_class(data.logits, data.label)
    others = [method for method in tops if method != reference]
    changes = dict(zip(others, corrected([
        paired_bootstrap(cal.squared_calibration_error, tops[reference], tops[method], repeats=REPEATS)
        for method in others
    ]), strict=True))
    return [
        Summary(replace(diagram(method, *top, SHOWN_BINS), ece=cal.ece(*top)), cal.rms_interval(*top), changes.get(method))
        for method, top in tops.items()
    ]


def sentences(found: Sequence[Summary], reference: str) -> list[str]:
    """What the reference changes against zero-shot, then what each other method changes against the reference."""
    lines = []
    base = next(one for one in found if one.diagram.method == reference)
    for one in found:
        if one.change is None:
            continue
        first, second = (one, base) if method_info(one.diagram.method).zero_shot else (base, one)
        before, after = first.diagram, second.diagram
        lines.append(
            f"{method_info(after.method).label} against {method_info(before.method).label}: "
            f"accuracy {100 * (after.accuracy - before.accuracy):+.1f}, mean confidence "
            f"{100 * (after.confidence - before.confidence):+.1f}, ECE {100 * (after.ece - before.ece):+.1f} points; "
            f"RMS calibration error {100 * float(first.error.value):.1f} → {100 * float(second.error.value):.1f} % "
            f"(p = {one.change.p:.3f}, {'significant' if one.change.significant else 'may be chance'})."
        )
    return [*lines, f"p: paired bootstrap, corrected by Holm's method for {len(lines)} comparisons."]


def overview(found: Sequence[Summary], reference: str) -> NamedFigure:
    """Above, a reliability diagram per method; below, confidence next to accuracy, and RMS calibration errors."""
    labels = [method_info(one.diagram.method).label for one in found]
    base = method_info(reference).label
    with styled():
        figure = new_figure(PAGE, 3.9)
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[1, 0.95])[:, 0]
        for axes, one, label in zip(upper.subplots(1, len(found), sharey=True), found, labels, strict=True):
            draw_bins(axes, one.diagram)
            axes.set_title(label, fontweight="bold")
            axes.set_xticks([0, 0.5, 1])
        upper.supxlabel("confidence", fontsize=8)
        upper.supylabel("accuracy", fontsize=8)
        left, right = lower.subplots(1, 2, sharey=True)
        for row, one in enumerate(found):
            accuracy, confidence = 100 * one.diagram.accuracy, 100 * one.diagram.confidence
            colour = method_info(one.diagram.method).colour
            # A line from accuracy to mean confidence: its length to the right is over-confidence.
            left.plot([accuracy, confidence], [row, row], color=colour, linewidth=3, alpha=0.45, solid_capstyle="butt")
            left.plot(accuracy, row, "o", color="white", markeredgecolor=colour, markersize=6)
            left.plot(confidence, row, "D", color=colour, markersize=5)
            left.annotate(f"{confidence - accuracy:+.1f}", (max(accuracy, confidence), row), (7, 0),
                          textcoords="offset points", va="center")
            value, low, high = (100 * float(end) for end in (one.error.value, one.error.low, one.error.high))
            right.errorbar(value, row, xerr=[[value - low], [high - value]], fmt="o", color=colour, capsize=2,
                           markersize=6, markerfacecolor=colour if one.change and one.change.significant else "white")
        left.set_yticks(range(len(found)), labels)
        left.invert_yaxis()
        left.margins(x=0.18, y=0.12)
        left.set_xlabel("○ accuracy, ◆ mean confidence (%)")
        right.margins(x=0.12)
        right.set(xlim=(0, None), xlabel="RMS calibration error (%, 95 % interval)")
        for axes in (left, right):
            axes.grid(axis="x")
    caption = (
        f"Above: accuracy by confidence in {SHOWN_BINS} bins (red: over-confident, blue: under-confident), ECE in "
        f"{cal.BINS} bins. Below: mean confidence next to accuracy, and RMS calibration errors on "
        f"{found[0].diagram.n:,} images; filled: differs from {base}'s on the same images (paired bootstrap, p below "
        "0.05 after Holm's correction)."
    )
    return NamedFigure("overview", caption, figure)
