"""The accuracy–ECE plane: where methods stand, the paths that they take over λ, and which none other beats in both."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...registry import method_colour as colour
from ...registry import method_label
from ...registry import method_marker as marker
from .comparison import Point
from .style import COLUMN, FAINT, GREY, INK, grid_lines, lighter, new_figure, styled

NEAR = 0.05  # of an axis: labels of points that are closer than this would overprint


def draw_plane(
    title: str, sweeps: Mapping[str, Mapping[float, Point]], references: Mapping[str, Point],
) -> Figure:
    """A path over λ for each swept method, single marks for the others; lower right is best."""
    with styled():
        figure = new_figure(COLUMN * 1.25, 3.1)
        axes = figure.subplots()
        for method, sweep in sweeps.items():
            weights = sorted(sweep)
            x, y = [sweep[w].accuracy for w in weights], [sweep[w].ece for w in weights]
            axes.plot(x, y, color=lighter(colour(method)), linewidth=1, zorder=2)
            axes.scatter(x, y, color=colour(method), marker=marker(method), s=22, zorder=3, label=method_label(method))
        for method, point in references.items():
            axes.scatter(
                [point.accuracy], [point.ece], color=colour(method), marker=marker(method), s=34, zorder=4,
                edgecolor=INK if marker(method) not in "12" else None, linewidth=0.5, label=method_label(method),
            )
        every = [*references.values(), *(point for sweep in sweeps.values() for point in sweep.values())]
        axes.margins(0.14)
        axes.autoscale_view()
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        _draw_iso_lines(axes)
        _draw_front(axes, every)
        for method, sweep in sweeps.items():
            for text, at in merged_labels(sweep, axes):
                axes.annotate(text, at, xytext=(4, 4), textcoords="offset points", fontsize=6.5, color=colour(method))
        axes.set(xlabel="accuracy (%)", ylabel="ECE (%)")
        axes.set_title(title, fontweight="bold", loc="left")
        grid_lines(axes, "both")
        figure.legend(loc="outside right upper", title="numbers: λ" if sweeps else None, title_fontsize=6.5)
        return figure


def merged_labels(sweep: Mapping[float, Point], axes: Axes) -> list[tuple[str, tuple[float, float]]]:
    """λ beside its point; points that all but coincide share one label."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    groups: list[tuple[list[float], Point]] = []
    for weight in sorted(sweep):
        at = sweep[weight]
        for members, first in groups:
            beside = abs(at.accuracy - first.accuracy) < NEAR * (right - left)
            if beside and abs(at.ece - first.ece) < NEAR * (high - low):
                members.append(weight)
                break
        else:
            groups.append(([weight], at))
    return [(", ".join(f"{weight:g}" for weight in members), (at.accuracy, at.ece)) for members, at in groups]


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other beats in accuracy and ECE at once, by accuracy."""
    front, lowest = [], np.inf
    for point in sorted(points, key=lambda p: (-p.accuracy, p.ece)):
        if point.ece < lowest:
            front.append(point)
            lowest = point.ece
    return front[::-1]


def _draw_front(axes: Axes, points: Sequence[Point]) -> None:
    front = pareto_front(points)
    if len(front) > 1:
        axes.step([p.accuracy for p in front], [p.ece for p in front], where="pre", color=INK, linewidth=0.8,
                  linestyle=(0, (4, 3)), zorder=1, label="not beaten in both")


def _draw_iso_lines(axes: Axes) -> None:
    """Lines of equal accuracy less ECE: along one, a point of accuracy is worth a point of ECE."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    levels = np.linspace(left - high, right - low, 8)[1:-1]
    for level in levels:
        axes.plot([level + low, level + high], [low, high], color=FAINT, linewidth=0.6, zorder=0)
        x = min(right, level + high)
        axes.annotate(f"{level:.0f}", (x, x - level), xytext=(-2, -1), textcoords="offset points", fontsize=5.5,
                      color=GREY, ha="right", va="top", clip_on=True)
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.plot([], [], color=FAINT, linewidth=0.6, label="accuracy − ECE")
