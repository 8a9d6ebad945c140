"""The accuracy–ECE plane: methods as points, sweeps of λ as paths, and the Pareto front."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from ...functional.arrays import Array
from ...registry import method_info, method_order
from .comparison import Point
from .style import COLUMN, INK, grid_lines, lay_out, lighter, new_figure, short, styled

Label = tuple[str, tuple[float, float]]  # text, and the accuracy and ECE that it belongs to

NEAR = 0.05  # of an axis: labels of points that are closer would overlap
# Positions of a label around its point, the preferred one first.
SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))


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
        _draw_front(axes, every)
        axes.set(xlabel="accuracy (%)", ylabel="ECE (%)")
        axes.set_title(short(title, 40), fontweight="bold", loc="left")
        grid_lines(axes, "both")
        figure.legend(loc="outside right upper", title="numbers: λ" if sweeps else None, title_fontsize=6.5)
        lay_out(figure)  # labels are placed by the final size of the axes
        weights = [label for sweep in sweeps.values() for label in merged_labels(sweep, axes)]
        _write_labels(axes, weights, every)
        return figure


def merged_labels(sweep: Mapping[float, Point], axes: Axes) -> list[Label]:
    """A label per λ; points that almost coincide share one."""
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


def _draw_front(axes: Axes, points: Sequence[Point]) -> None:
    front = pareto_front(points)
    if len(front) > 1:
        axes.step([p.accuracy for p in front], [p.ece for p in front], where="pre", color=INK, linewidth=0.8,
                  linestyle=(0, (4, 3)), zorder=1, label="not beaten in both")


def _write_labels(axes: Axes, weights: Sequence[Label], points: Sequence[Point]) -> None:
    """Labels of λ on the free side of their points."""
    def place(at: tuple[float, float]) -> Array:
        return axes.transData.transform(at) * 72 / axes.figure.dpi  # in points, as font sizes are

    spots = [place((point.accuracy, point.ece)) for point in points]
    taken = [_box(x, y, 6, 6) for x, y in spots]
    frame = axes.get_window_extent().transformed(axes.figure.dpi_scale_trans.inverted())
    frame = Bbox(frame.get_points() * 72)
    for text, at in weights:
        width, height = 4.2 * len(text), 7.5
        x, y = place(at)
        boxes = [_box(x + dx * (width / 2 + far), y + dy * (height / 2 + far), width, height)
                 for far in (3.5, 8) for dx, dy in SIDES]
        best = min(boxes, key=lambda box: sum(_common(box, other) for other in taken)
                   + width * height - _common(box, frame))  # the first of equal ones
        taken.append(best)
        offset = (best.x0 + best.x1) / 2 - x, (best.y0 + best.y1) / 2 - y
        axes.annotate(text, at, xytext=offset, textcoords="offset points", fontsize=6.5, ha="center", va="center",
                      zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4})


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _common(first: Bbox, second: Bbox) -> float:
    """The common area of two boxes."""
    shared = Bbox.intersection(first, second)
    return 0.0 if shared is None else shared.width * shared.height
