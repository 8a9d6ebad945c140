"""The accuracy–ECE plane: where methods stand, the paths that they take over λ, and which none other beats in both."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from ...functional.arrays import Array
from ...registry import method_info, method_order
from .comparison import Point
from .style import COLUMN, FAINT, GREY, INK, grid_lines, lay_out, lighter, new_figure, short, styled

Label = tuple[str, tuple[float, float]]  # words, and the accuracy and ECE that they belong to

NEAR = 0.05  # of an axis: labels of points that are closer than this would overprint
# Where a label may stand around its point, the best place first.
SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))


def draw_plane(
    title: str, sweeps: Mapping[str, Mapping[float, Point]], references: Mapping[str, Point],
) -> Figure:
    """A path over λ for each swept method, single marks for the others; lower right is best."""
    with styled():
        figure = new_figure(COLUMN * 1.25, 3.1)
        axes = figure.subplots()
        for method in sorted({*sweeps, *references}, key=method_order):
            look = {"color": method_info(method).colour, "marker": method_info(method).marker, "label": short(method_info(method).label)}
            if method in sweeps:
                path = [sweeps[method][weight] for weight in sorted(sweeps[method])]
                x, y = [point.accuracy for point in path], [point.ece for point in path]
                axes.plot(x, y, color=lighter(method_info(method).colour), linewidth=1, zorder=2)
                axes.scatter(x, y, s=22, zorder=3, **look)
            else:
                edge = INK if method_info(method).marker not in "12" else None
                point = references[method]
                axes.scatter([point.accuracy], [point.ece], s=34, zorder=4, edgecolor=edge, linewidth=0.5, **look)
        every = [*references.values(), *(point for sweep in sweeps.values() for point in sweep.values())]
        axes.margins(0.14)
        axes.autoscale_view()
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        iso_lines = _draw_iso_lines(axes)
        _draw_front(axes, every)
        axes.set(xlabel="accuracy (%)", ylabel="ECE (%)")
        axes.set_title(short(title, 40), fontweight="bold", loc="left")
        grid_lines(axes, "both")
        figure.legend(loc="outside right upper", title="numbers: λ" if sweeps else None, title_fontsize=6.5)
        lay_out(figure)  # where there is room for a label is only known when the axes have their size
        weights = [label for sweep in sweeps.values() for label in merged_labels(sweep, axes)]
        _write_labels(axes, weights, iso_lines, every)
        return figure


def merged_labels(sweep: Mapping[float, Point], axes: Axes) -> list[Label]:
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


def _draw_iso_lines(axes: Axes) -> list[Label]:
    """Lines of equal accuracy less ECE: along one, a point of accuracy is worth a point of ECE. Returns their labels,
    each with the end of its line."""
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    ends = []
    least, most = left - high, right - low
    for level in MaxNLocator(7, steps=(1, 2, 5, 10)).tick_values(least, most):
        if not least < level < most:
            continue
        axes.plot([level + low, level + high], [low, high], color=FAINT, linewidth=0.6, zorder=0)
        x = min(right, level + high)
        ends.append((f"{level:g}", (x, x - level)))
    axes.set(xlim=(left, right), ylim=(low, high))
    axes.plot([], [], color=FAINT, linewidth=0.6, label="equal accuracy − ECE")
    return ends


def _write_labels(axes: Axes, weights: Sequence[Label], iso_lines: Sequence[Label], points: Sequence[Point]) -> None:
    """λ beside its point, on the side that is free; then the values of the iso-lines, as far as there is room."""
    def place(at: tuple[float, float]) -> Array:
        return axes.transData.transform(at) * 72 / axes.figure.dpi  # in points, as sizes of type are

    taken = [_box(*place((point.accuracy, point.ece)), 6, 6) for point in points]
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
    for text, at in iso_lines:
        x, y = place(at)
        box = _box(x - 7, y - 5, 12, 7)
        if not any(_common(box, other) for other in taken) and box.y0 > frame.y0:
            axes.annotate(text, at, xytext=(-2, -1), textcoords="offset points", fontsize=5.5, color=GREY, ha="right",
                          va="top")


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def _common(first: Bbox, second: Bbox) -> float:
    """The area that two boxes share."""
    shared = Bbox.intersection(first, second)
    return 0.0 if shared is None else shared.width * shared.height
