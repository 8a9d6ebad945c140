"""The accuracy–ECE plane: methods as points, sweeps of λ as paths, and the Pareto front."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...registry import method_info, method_order
from .comparison import Point
from .style import COLUMN, INK, grid_lines, lighter, new_figure, short, styled

NEAR = 0.05  # of an axis: points that are closer share a label


def draw_plane(
    title: str, sweeps: Mapping[str, Mapping[float, Point]], references: Mapping[str, Point],
) -> Figure:
    """A path over λ for each swept method, single marks for the others; lower right is best."""
    with styled():
        figure = new_figure(COLUMN * 1.25, 3.1)
        axes = figure.subplots()
        for method in sorted({*sweeps, *references}, key=method_order):
            info = method_info(method)
            look: dict[str, Any] = {"color": info.colour, "marker": info.marker, "label": short(info.label)}
            if method in sweeps:
                path = [sweeps[method][weight] for weight in sorted(sweeps[method])]
                x, y = [point.accuracy for point in path], [point.ece for point in path]
                axes.plot(x, y, color=lighter(info.colour), linewidth=1, zorder=2)
                axes.scatter(x, y, s=22, zorder=3, **look)
            else:
                edge = INK if info.marker not in "12" else None
                point = references[method]
                axes.scatter([point.accuracy], [point.ece], s=34, zorder=4, edgecolor=edge, linewidth=0.5, **look)
        every = [*references.values(), *(point for sweep in sweeps.values() for point in sweep.values())]
        axes.margins(0.14)
        axes.autoscale_view()
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        if len(front := pareto_front(every)) > 1:
            axes.step([p.accuracy for p in front], [p.ece for p in front], where="pre", color=INK, linewidth=0.8,
                      linestyle=(0, (4, 3)), zorder=1, label="not beaten in both")
        axes.set(xlabel="accuracy (%)", ylabel="ECE (%)")
        axes.set_title(short(title, 40), fontweight="bold", loc="left")
        grid_lines(axes, "both")
        figure.legend(loc="outside right upper", title="numbers: λ" if sweeps else None, title_fontsize=6.5)
        for sweep in sweeps.values():
            for number, (text, at) in enumerate(merged_labels(sweep, axes)):
                side = -1 if number % 2 else 1  # neighbours on a path: above, then below
                axes.annotate(text, at, xytext=(3.5 * side, 7.5 * side), textcoords="offset points", fontsize=6.5,
                              ha="center", va="center", zorder=5,
                              bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4})
        return figure


def merged_labels(sweep: Mapping[float, Point], axes: Axes) -> list[tuple[str, tuple[float, float]]]:
    """A label per λ with its accuracy and ECE; points that almost coincide share one."""
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
    """The points that no other point beats in both accuracy and ECE, sorted by accuracy."""
    front, lowest = [], math.inf
    for point in sorted(points, key=lambda p: (-p.accuracy, p.ece)):
        if point.ece < lowest:
            front.append(point)
            lowest = point.ece
    return front[::-1]
