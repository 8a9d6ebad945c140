"""The demo's figure: several methods on the same images, with what the tests say about them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from ..functional import calibration as cal
from ..functional.intervals import Interval
from ..registry import method_info
from .figures.reliability import Diagram, diagram, draw_bins
from .figures.select import NamedFigure
from .figures.style import PAGE, new_figure, styled
from .grid import Grid
from .pairs import Pair

SHOWN_BINS = 8  # of the diagrams: few, so that each bin holds enough images


@dataclass(frozen=True)
class Summary:
    """One method.

    Attributes:
        diagram: Reliability diagram with few bins.
        error: Debiased RMS calibration error.
        differs: Whether its calibration differs from the baseline's.
    """

    diagram: Diagram
    error: Interval
    differs: bool


def summarise(grid: Grid, against_baseline: Sequence[Pair]) -> list[Summary]:
    """Summarises each method on the first data set of a table.

    Args:
        grid: The runs.
        against_baseline: The tests of each method against the baseline.
    """
    column = grid.columns[0]
    differing = {pair.second for pair in against_baseline if pair.is_significant}
    summaries = []
    for row, cell in grid.cells_on(column):
        top = cell[0].tuned
        drawn = replace(diagram(row.method, *top, SHOWN_BINS), ece=cal.ece(*top, grid.bins))
        error = cell[0].metrics["rms_calibration_error"]
        summaries.append(Summary(drawn, error, row in differing))
    return summaries


def overview(grid: Grid, against_baseline: Sequence[Pair], baseline: str) -> NamedFigure:
    """Above, a reliability diagram per method; below, confidence next to accuracy, and RMS errors.

    Args:
        grid: The runs of the demo.
        against_baseline: The tests of each method against the baseline.
        baseline: Label of the baseline.
    """
    summaries = summarise(grid, against_baseline)
    labels = [method_info(summary.diagram.method).label for summary in summaries]
    with styled():
        figure = new_figure(PAGE, 3.9)
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[1, 0.95])[:, 0]
        panels = upper.subplots(1, len(summaries), sharey=True)
        for axes, summary, label in zip(panels, summaries, labels, strict=True):
            draw_bins(axes, summary.diagram)
            axes.set_title(label, fontweight="bold")
            axes.set_xticks([0, 0.5, 1])
        upper.supxlabel("confidence", fontsize=8)
        upper.supylabel("accuracy", fontsize=8)
        left, right = lower.subplots(1, 2, sharey=True)
        for row, summary in enumerate(summaries):
            draw_over_confidence(left, summary.diagram, row)
            draw_error(right, summary, row)
        left.set_yticks(range(len(summaries)), labels)
        left.invert_yaxis()
        left.margins(x=0.18, y=0.12)
        left.set_xlabel("○ accuracy, ◆ mean confidence (%)")
        left.grid(axis="x")
        right.margins(x=0.12)
        right.set(xlim=(0, None), xlabel="debiased RMS error (%, 95 % interval)")
        right.grid(axis="x")
    family = against_baseline[0].family if against_baseline else "one pair"
    caption = (
        f"Above: accuracy by confidence in {SHOWN_BINS} bins (red: over-confident, blue: "
        f"under-confident), ECE in {grid.bins} bins. Below: mean confidence next to accuracy, and "
        f"debiased RMS errors on {summaries[0].diagram.n:,} images; filled: calibration differs "
        f"from {baseline}'s on the same images (p below 0.05, {family})."
    )
    return NamedFigure("overview", caption, figure)


def draw_over_confidence(axes: Axes, data: Diagram, row: int) -> None:
    """A line from accuracy to mean confidence: its length to the right is over-confidence.

    Args:
        axes: Where it is drawn.
        data: Accuracy and confidence of a method.
        row: Vertical position of the row.
    """
    accuracy = 100 * data.accuracy
    confidence = 100 * data.confidence
    colour = method_info(data.method).colour
    axes.plot([accuracy, confidence], [row, row], color=colour, linewidth=3, alpha=0.45,
              solid_capstyle="butt")
    axes.plot(accuracy, row, "o", color="white", markeredgecolor=colour, markersize=6)
    axes.plot(confidence, row, "D", color=colour, markersize=5)
    axes.annotate(f"{confidence - accuracy:+.1f}", (max(accuracy, confidence), row), (7, 0),
                  textcoords="offset points", va="center")


def draw_error(axes: Axes, summary: Summary, row: int) -> None:
    """The debiased RMS error with its interval; filled if calibration differs from the baseline's.

    Args:
        axes: Where it is drawn.
        summary: Summary of a method.
        row: Vertical position of the row.
    """
    colour = method_info(summary.diagram.method).colour
    value = 100 * float(summary.error.value)
    low = 100 * float(summary.error.low)
    high = 100 * float(summary.error.high)
    fill = colour if summary.differs else "white"
    axes.errorbar(
        value,
        row,
        xerr=[[value - low], [high - value]],
        fmt="o",
        color=colour,
        capsize=2,
        markersize=6,
        markerfacecolor=fill,
    )
