"""The point of it all in one picture: how sure each method is, how often it is right, and what tuning changed."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...functional.significance import Difference
from ...registry import method_info
from .reliability import Diagram, draw_bins
from .style import INK, PAGE, grid_lines, new_figure, styled


@dataclass(frozen=True)
class Standing:
    """One method: its reliability diagram, and how its ECE differs from plain tuning's on the same images."""

    diagram: Diagram
    change: Difference | None = None


def draw_overview(standings: Sequence[Standing], reference: str) -> Figure:
    """Above, a reliability diagram for each method; below, confidence beside accuracy, and ECE against `reference`."""
    with styled():
        figure = new_figure(PAGE, 3.9)
        upper, lower = figure.subfigures(2, 1, height_ratios=[1, 0.95])
        for axes, standing in zip(upper.subplots(1, len(standings), sharey=True), standings, strict=True):
            data = standing.diagram
            draw_bins(axes, data, small=True)
            axes.set_title(method_info(data.method).label, fontweight="bold")
            axes.set_xticks([0, 0.5, 1])
        upper.supxlabel("confidence", fontsize=8)
        upper.supylabel("accuracy", fontsize=8)
        left, right = lower.subplots(1, 2, sharey=True)
        draw_confidence(left, standings)
        draw_changes(right, {s.diagram.method: s.change for s in standings}, reference)
        left.set_yticks(range(len(standings)), [method_info(s.diagram.method).label for s in standings])
        left.invert_yaxis()
        return figure


def draw_confidence(axes: Axes, standings: Sequence[Standing]) -> None:
    """A line from accuracy to mean confidence: its length to the right is over-confidence."""
    for row, standing in enumerate(standings):
        data = standing.diagram
        right, sure = 100 * data.accuracy, 100 * data.confidence
        colour = method_info(data.method).colour
        axes.plot([right, sure], [row, row], color=colour, linewidth=3, alpha=0.45, solid_capstyle="butt")
        axes.plot(right, row, "o", color="white", markeredgecolor=colour, markersize=6)
        axes.plot(sure, row, "D", color=colour, markersize=5)
        axes.annotate(f"{sure - right:+.1f}", (max(right, sure), row), (7, 0), textcoords="offset points", va="center")
    axes.margins(x=0.18, y=0.12)
    axes.set_xlabel("○ accuracy, ◆ mean confidence (%)")
    grid_lines(axes, "x")


def draw_changes(axes: Axes, changes: Mapping[str, Difference | None], reference: str) -> None:
    """Differences of ECE with their 95 % intervals: those that leave zero out are real."""
    axes.axvline(0, color=INK, linewidth=0.8)
    for row, (method, change) in enumerate(changes.items()):
        if change is None:
            continue
        value, low, high = 100 * np.array([change.value, change.low, change.high])
        face = method_info(method).colour if change.real else "white"
        axes.errorbar(
            value, row, xerr=[[value - low], [high - value]], fmt="o", color=method_info(method).colour, capsize=2,
            markersize=6, markerfacecolor=face,
        )
    axes.margins(x=0.12)
    axes.set_xlabel(f"ECE − {method_info(reference).label}'s (points, paired 95 % interval)")
    grid_lines(axes, "x")
