"""Figures of confidence: reliability diagrams, selective accuracy, and the demo's overview."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ...functional import calibration as cal
from ...functional.arrays import Array
from ...functional.intervals import Interval
from ...registry import Method, method_info
from ..grid import Grid
from ..pairs import Pair
from .style import (
    COLUMN,
    GREY,
    INK,
    ON_LIGHT,
    OVER,
    PAGE,
    UNDER,
    NamedFigure,
    legend_columns,
    lighter,
    new_figure,
    styled,
    wrapped,
)

ACROSS = 6  # panels per line of a grid with one row
DENSITY_CELLS = 100
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:g} %")
THRESHOLDS = np.arange(0, 100, 5) / 100
# Transparent grey, for light and dark themes.
DENSITY = LinearSegmentedColormap.from_list("density", ["#80808000", "#808080FF"])
OVER_HATCH = "/////"
UNDER_HATCH = "\\" * 5
SHOWN_BINS = 8  # of the diagrams: few, so that each bin holds enough images


@dataclass(frozen=True)
class Diagram:
    """The data of one reliability diagram."""

    method: str
    table: cal.Reliability
    density: Array  # (DENSITY_CELLS,), share of samples in fine cells of confidence
    accuracy: float
    confidence: float
    ece: float
    n: int


class Panel(NamedTuple):
    """One place of a grid: what stands above its column and beside its line, and its data."""

    title: str
    label: str
    data: Diagram | None


def diagram(method: str, confidence: Array, correct: Array, bins: int = cal.BINS) -> Diagram:
    """The reliability diagram of one method on one data set.

    Args:
        method: Registered name.
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        bins: Number of bins.
    """
    density, _ = np.histogram(confidence, bins=DENSITY_CELLS, range=(0, 1))
    return Diagram(
        method,
        cal.reliability(confidence, correct, bins),
        density / len(confidence),
        float(np.mean(correct)),
        float(np.mean(confidence)),
        cal.ece(confidence, correct, bins),
        len(confidence),
    )


def draw_grid(diagrams: Mapping[Method, Mapping[str, Diagram]]) -> Figure:
    """A grid of methods × data sets (`diagrams[method][data set]`), wider than high.

    A single row that is too long is continued below. Missing runs are blank.
    """
    lines = panel_lines(diagrams)
    broken = len(lines) == 1 and len(lines[0]) > ACROSS
    if broken:
        row = lines[0]
        lines = []
        for start in range(0, len(row), ACROSS):
            lines.append(row[start : start + ACROSS])
    width = len(lines[0])
    with styled():
        figure = new_figure(
            max(COLUMN, 0.55 + 1.6 * width), 0.55 + 1.5 * len(lines), hspace=0.02, h_pad=0.02
        )
        panels = figure.subplots(
            2 * len(lines), width, sharex=True, squeeze=False, height_ratios=[1, 0.07] * len(lines),
        )
        for r, line in enumerate(lines):
            for axes in panels[2 * r : 2 * r + 2, len(line) :].flat:
                axes.set_axis_off()
            for c, panel in enumerate(line):
                axes, strip = panels[2 * r : 2 * r + 2, c]
                draw_panel(axes, strip, panel.data)
                if r == 0 or broken:
                    axes.set_title(wrapped(panel.title, 22), fontweight="bold")
                if c == 0:
                    axes.set_ylabel(wrapped(panel.label, 22), fontweight="bold")
                axes.tick_params(labelleft=c == 0)
                is_lowest = r + 1 == len(lines) or c >= len(lines[r + 1])
                strip.tick_params(labelbottom=is_lowest)
        figure.align_ylabels(panels[::2, 0])
        figure.supxlabel("confidence", fontsize=8)
        figure.supylabel("accuracy", fontsize=8)
        handles = [
            Patch(facecolor="white", edgecolor=OVER, hatch=OVER_HATCH, label="over-confidence"),
            Patch(facecolor="white", edgecolor=UNDER, hatch=UNDER_HATCH, label="under-confidence"),
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=7)
        return figure


def draw_panel(axes: Axes, strip: Axes, data: Diagram | None) -> None:
    """One reliability diagram with the density of confidence below it.

    Args:
        data: The diagram; None for a run that is missing.
    """
    if data:
        draw_bins(axes, data)
        # The square root shows sparse regions beside a spike.
        strip.imshow(
            np.sqrt(data.density)[None], cmap=DENSITY, aspect="auto", extent=(0, 1, 0, 1), vmin=0,
        )
        strip.spines[["top", "right"]].set_visible(True)
        strip.set(xlim=(0, 1))
    else:
        axes.text(0.5, 0.5, "no run", ha="center", va="center", fontsize=6.5, color=GREY)
    strip.set(yticks=[], xticks=[0, 0.5, 1])
    axes.set(ylim=(0, 1), yticks=[0, 0.5, 1])


def panel_lines(diagrams: Mapping[Method, Mapping[str, Diagram]]) -> list[list[Panel]]:
    """The panels of a grid line by line: a line per method, or per data set if these are fewer."""
    sets: dict[str, None] = {}
    for row in diagrams.values():
        sets.update(dict.fromkeys(row))
    lines: list[list[Panel]] = []
    if len(diagrams) > len(sets):
        for name in sets:
            line = []
            for method, row in diagrams.items():
                line.append(Panel(method_info(method).label, name, row.get(name)))
            lines.append(line)
        return lines
    for method, row in diagrams.items():
        line = []
        for name in sets:
            line.append(Panel(name, method_info(method).label, row.get(name)))
        lines.append(line)
    return lines


def draw_selective(series: Mapping[Method, tuple[Array, Array]], title: str = "") -> Figure:
    """Selective accuracy by method, and below it the share of images that remain.

    Args:
        series: For each method accuracy and share, as fractions, at THRESHOLDS.
    """
    with styled():
        labels = [wrapped(method_info(method).label) for method in series]
        columns = min(3, legend_columns(labels, COLUMN))
        lines_of_labels = sum(len(label.splitlines()) for label in labels)
        rows_of_legend = math.ceil(lines_of_labels / columns)
        figure = new_figure(COLUMN, 3.5 + 0.17 * rows_of_legend)
        top, low = figure.subplots(2, 1, sharex=True, height_ratios=[1, 0.5])
        for method, (accuracy, coverage) in series.items():
            info = method_info(method)
            look: dict[str, Any] = {
                "color": info.colour,
                "marker": info.marker,
                "markersize": 3,
                "markevery": 2,
                "linestyle": "-" if info.tuned else "--",
            }
            top.plot(THRESHOLDS, accuracy, label=wrapped(info.label), **look)
            low.plot(THRESHOLDS, coverage, **look)
        for axes in (top, low):
            axes.grid(axis="y")
            axes.yaxis.set_major_formatter(PERCENT)
            axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        top.set_title(title, fontweight="bold", loc="left")
        top.set_ylabel("accuracy of those kept")
        low.set(
            ylabel="share kept", ylim=(0, 1.03), xlim=(0, 1),
            xlabel="keep predictions with confidence above",
        )
        figure.legend(loc="outside lower center", ncols=columns)
        figure.align_ylabels([top, low])
        return figure


def draw_bins(axes: Axes, data: Diagram) -> None:
    """Bars of accuracy, hatched bars from accuracy to mean confidence, the diagonal, and ECE in the
    corner.
    """
    filled = data.table.count > 0
    x = data.table.edges[:-1][filled]
    width = 1 / len(filled)
    accuracy = data.table.accuracy[filled]
    gap = data.table.gap[filled]
    face = lighter(method_info(data.method).colour, 0.25)
    axes.bar(x, accuracy, width=width, align="edge", color=face, edgecolor=ON_LIGHT, linewidth=0.3)
    for mask, tone, hatch in ((gap > 0, OVER, OVER_HATCH), (gap < 0, UNDER, UNDER_HATCH)):
        axes.bar(
            x[mask], gap[mask], bottom=accuracy[mask], width=width, align="edge",
            color=(1, 1, 1, 0.8), edgecolor=tone, hatch=hatch, linewidth=0.4,
        )
    axes.add_line(Line2D([0, 1], [0, 1], color=INK, linestyle=(0, (4, 3)), linewidth=0.8))
    axes.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1])
    axes.text(
        0.97, 0.05, f"ECE {100 * data.ece:.1f}", transform=axes.transAxes, ha="right",
        fontweight="bold", fontsize=7,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
    )


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
    """Summarises each method on the first data set of a table."""
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
        data: Accuracy and confidence of a method.
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
    """
    colour = method_info(summary.diagram.method).colour
    value = 100 * float(summary.error.value)
    low = 100 * float(summary.error.low)
    high = 100 * float(summary.error.high)
    fill = colour if summary.differs else "white"
    axes.errorbar(
        value, row, xerr=[[value - low], [high - value]], fmt="o", color=colour, capsize=2,
        markersize=6, markerfacecolor=fill,
    )
