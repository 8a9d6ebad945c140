"""Figures that compare methods or settings: pairs of bars (SaLS, steps), initial prompts, the
accuracy–ECE plane, severities of corruptions, the stream of an online method.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...functional.arrays import Array
from ...functional.calibration import accuracy_interval, ece
from ...registry import Method, method_info
from ..measure import Measured, mean_over_seeds
from .style import (
    COLUMN,
    FAINT,
    GREY,
    INK,
    ON_LIGHT,
    PAGE,
    legend_columns,
    lighter,
    new_figure,
    short,
    styled,
    wrapped,
)

HATCH = "//////"
NEAR = 0.05  # of an axis of the plane: points that are closer share a label
LEAST_WINDOW = 50  # images
POINTS = 30  # windows per curve
LINE_STYLES = ("-", "--", ":", "-.")


class BeforeAfter(NamedTuple):
    """A value without and with SaLS or a second step, in percent."""

    before: float
    after: float


class Point(NamedTuple):
    """Accuracy and ECE of one setting, in percent."""

    accuracy: float
    ece: float


def mean_point(cell: Sequence[Measured]) -> Point:
    """Accuracy and ECE of a cell, means over its seeds."""
    return Point(100 * mean_over_seeds(cell, "accuracy"), 100 * mean_over_seeds(cell, "ece"))


def draw_pairs(
    panels: Mapping[str, Mapping[str, Mapping[Method, BeforeAfter]]], before: str, after: str,
    numbers: bool = False,
) -> Figure:
    """A panel per metric, with two bars for each group and method.

    Args:
        panels: The values, `panels[metric][group][method]`.
        before: What the plain bars are, in words.
        after: What the light, hatched bars are, in words.
    """
    groups_of_bars: list[Mapping[Method, BeforeAfter]] = []
    for groups in panels.values():
        groups_of_bars += groups.values()
    methods = methods_of(groups_of_bars)
    bars = len(groups_of_bars) * (2 * len(methods) + 1)
    width_of_bar = 0.4 if numbers else 0.14
    with styled():
        figure = new_figure(min(PAGE, max(COLUMN, 0.8 + width_of_bar * bars)), 2.4)
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (metric, groups) in zip(all_axes, panels.items(), strict=True):
            draw_bars(axes, groups, methods, numbers)
            axes.set_ylabel(metric)
            values: list[float] = []
            for row in groups.values():
                for pair in row.values():
                    values += pair
            # Accuracies differ too little for an axis from 0.
            low = min(values) - 3 if min(values) > 30 else 0
            axes.set_ylim(low, max(values) + 0.12 * (max(values) - low))  # room for the numbers
            if low:
                axes.text(
                    0, -0.09, "axis does not start at 0", transform=axes.transAxes, fontsize=6,
                    color=GREY,
                )
        edge: dict[str, Any] = {"edgecolor": ON_LIGHT, "linewidth": 0.4}
        handles = []
        for method in methods:
            info = method_info(method)
            handles.append(Patch(facecolor=info.colour, label=wrapped(info.label), **edge))
        handles.append(Patch(facecolor="#9A9A9A", label=before, **edge))
        handles.append(Patch(facecolor="#E0E0E0", hatch=HATCH, label=after, **edge))
        labels = [str(handle.get_label()) for handle in handles]
        columns = min(len(handles), legend_columns(labels, figure.get_figwidth()))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.0)
        return figure


def draw_bars(
    axes: Axes, groups: Mapping[str, Mapping[Method, BeforeAfter]], methods: Sequence[Method],
    numbers: bool,
) -> None:
    """One panel of `draw_pairs`.

    Args:
        groups: The values, `groups[group][method]`. Group i stands around x = i.
        methods: The methods, in the order of their bars.
    """
    step = 0.8 / len(methods)  # of a method's two bars
    bar: dict[str, Any] = {"width": step * 0.46, "edgecolor": ON_LIGHT, "linewidth": 0.4}
    for number_of_method, method in enumerate(methods):
        colour = method_info(method).colour
        offset = (number_of_method - (len(methods) - 1) / 2) * step
        for number_of_group, row in enumerate(groups.values()):
            if method not in row:
                continue
            pair = row[method]
            centre = number_of_group + offset
            left = centre - step * 0.235
            right = centre + step * 0.235
            axes.bar(left, pair.before, color=colour, **bar)
            axes.bar(right, pair.after, color=lighter(colour, 0.6), hatch=HATCH, **bar)
            if numbers:
                write_above(axes, left, pair.before)
                write_above(axes, right, pair.after)
    labels = list(groups)
    slant: dict[str, Any] = {}
    if len(labels) > 6:
        slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(np.arange(len(labels)), labels, **slant)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(labels) - 0.45)
    axes.grid(axis="y")


def write_above(axes: Axes, x: float, value: float) -> None:
    """Writes a value above its bar."""
    axes.annotate(
        f"{value:.1f}", (x, value), (0, 1.5), textcoords="offset points", ha="center", fontsize=6)


def draw_prompts(title: str, ece: Mapping[str, Mapping[Method, float]]) -> Figure:
    """ECE by initial prompt: a line per prompt with a mark for each method.

    Args:
        ece: The values in percent, `ece[prompt][method]`.
    """
    # Sorted by the ECE of their worst method
    prompts = sorted(ece, key=lambda prompt: (max(ece[prompt].values()), prompt))
    methods = methods_of(ece.values())
    with styled():
        figure = new_figure(0.62 * PAGE, 0.75 + 0.2 * len(prompts))
        axes = figure.subplots()
        for line, prompt in enumerate(prompts):
            values = list(ece[prompt].values())
            axes.plot(
                [min(values), max(values)], [line, line], color=FAINT, linewidth=1.2, zorder=1
            )
        for method in methods:
            info = method_info(method)
            x = []
            y = []
            for line, prompt in enumerate(prompts):
                if method in ece[prompt]:
                    x.append(ece[prompt][method])
                    y.append(line)
            axes.scatter(x, y, color=info.colour, marker=info.marker, s=20, zorder=2,
                         label=wrapped(info.label))
        axes.set_yticks(range(len(prompts)), [prompt_label(prompt) for prompt in prompts])
        axes.set(ylim=(len(prompts) - 0.4, -0.6), xlim=(0, None), xlabel="ECE (%)")
        axes.set_title(title, fontweight="bold", loc="left")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
        labels = [wrapped(method_info(method).label) for method in methods]
        figure.legend(loc="outside lower right", ncols=legend_columns(labels, 0.62 * PAGE))
        return figure


def prompt_label(prompt: str) -> str:
    """The words before a class name."""
    if not prompt:
        return "“[…]” alone"
    return f"“{short(prompt, 40)} […]”"


def draw_plane(
    title: str, sweeps: Mapping[Method, Mapping[float, Point]], references: Mapping[Method, Point],
) -> Figure:
    """A path over λ for each swept method, single marks for the others; lower right is best.

    Args:
        sweeps: For each swept method its points by λ.
        references: The point of each other method.
    """
    with styled():
        figure = new_figure(COLUMN * 1.25, 3.1)
        axes = figure.subplots()
        all_points = list(references.values())
        for path_points in sweeps.values():
            all_points += path_points.values()
        for method in methods_of([sweeps, references]):
            info = method_info(method)
            style: dict[str, Any] = {
                "color": info.colour,
                "marker": info.marker,
                "label": wrapped(info.label),
            }
            if method in sweeps:
                x, y = coordinates([sweeps[method][weight] for weight in sorted(sweeps[method])])
                axes.plot(x, y, color=lighter(info.colour), linewidth=1, zorder=2)
                axes.scatter(x, y, s=22, zorder=3, **style)
            else:
                edge: dict[str, Any] = {"edgecolor": INK, "linewidth": 0.5}
                if info.marker in "1234x+|_":  # markers of lines, which have no area
                    edge = {"linewidth": 1.2}
                point = references[method]
                axes.scatter([point.accuracy], [point.ece], s=34, zorder=4, **edge, **style)
        axes.margins(0.14)
        axes.autoscale_view()
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        front = pareto_front(all_points)
        if len(front) > 1:
            axes.step(*coordinates(front), where="pre", color=INK, linewidth=0.8,
                      linestyle=(0, (4, 3)), zorder=1, label="not beaten in both")
        axes.set(xlabel="accuracy (%)", ylabel="ECE (%)")
        axes.set_title(short(title, 40), fontweight="bold", loc="left")
        axes.grid()
        figure.legend(
            loc="outside right upper", title="numbers: λ" if sweeps else None, title_fontsize=6.5
        )
        for sweep in sweeps.values():
            for number, (text, at) in enumerate(merged_labels(sweep, axes)):
                side = -1 if number % 2 else 1  # neighbours on a path: above, then below
                axes.annotate(
                    text, at, xytext=(3.5 * side, 7.5 * side), textcoords="offset points",
                    fontsize=6.5, ha="center", va="center", zorder=5,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.4},
                )
        return figure


def coordinates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    """The accuracies and the ECEs of points."""
    accuracies = []
    errors = []
    for point in points:
        accuracies.append(point.accuracy)
        errors.append(point.ece)
    return accuracies, errors


def draw_severities(curves: Mapping[str, Mapping[Method, Mapping[int, Point]]]) -> Figure:
    """ECE and accuracy over the severity, with a column of two panels for each corruption.

    Args:
        curves: The points of each curve, `curves[corruption][method][severity]`.
    """
    with styled():
        figure = new_figure(min(PAGE, 1 + 1.7 * len(curves)), 3.6)
        panels = figure.subplots(2, len(curves), sharex=True, sharey="row", squeeze=False)
        for column, (corruption, methods) in enumerate(curves.items()):
            severities: set[int] = set()
            for method in methods_of([methods]):
                info = method_info(method)
                levels = sorted(methods[method])
                severities |= set(levels)
                accuracies, errors = coordinates([methods[method][level] for level in levels])
                style: dict[str, Any] = {
                    "color": info.colour, "marker": info.marker, "markersize": 3.5, "linewidth": 1,
                    "label": info.label,
                }
                panels[0, column].plot(levels, errors, **style)
                panels[1, column].plot(levels, accuracies, **style)
            panels[0, column].set_title(short(corruption, 24), fontweight="bold", loc="left")
            panels[1, column].set(xlabel="severity", xticks=sorted(severities))
        for axes in panels.flat:
            axes.grid()
        panels[0, 0].set(ylabel="ECE (%)", ylim=(0, None))
        panels[1, 0].set(ylabel="accuracy (%)")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)))
        return figure


def merged_labels(
    sweep: Mapping[float, Point], axes: Axes
) -> list[tuple[str, tuple[float, float]]]:
    """The labels of a path over λ, each with its accuracy and ECE. Points that almost coincide
    share a label.

    Args:
        sweep: The points of a method by λ.
        axes: Axes whose limits say what almost coincides, see `NEAR`.
    """
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    groups: list[tuple[list[float], Point]] = []
    for weight in sorted(sweep):
        at = sweep[weight]
        for members, first in groups:
            is_near_in_x = abs(at.accuracy - first.accuracy) < NEAR * (right - left)
            is_near_in_y = abs(at.ece - first.ece) < NEAR * (high - low)
            if is_near_in_x and is_near_in_y:
                members.append(weight)
                break
        else:
            groups.append(([weight], at))
    labels = []
    for members, at in groups:
        text = ", ".join(f"{weight:g}" for weight in members)
        labels.append((text, (at.accuracy, at.ece)))
    return labels


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in both accuracy and ECE, sorted by accuracy."""
    front = []
    lowest = math.inf
    for point in sorted(points, key=lambda p: (-p.accuracy, p.ece)):
        if point.ece < lowest:
            front.append(point)
            lowest = point.ece
    return front[::-1]


def methods_of(rows: Iterable[Mapping[Method, object]]) -> list[Method]:
    """The methods that are keys of any of the mappings, in the order of papers."""
    methods: dict[Method, None] = {}
    for row in rows:
        methods.update(dict.fromkeys(row))
    return sorted(methods, key=lambda method: method_info(method).order)


class Running(NamedTuple):
    """Metrics of n successive windows of the stream, (n,) each.

    Attributes:
        position: Position of the window's last image.
        accuracy: Accuracy in percent.
        low: Lower end of its 95 % interval.
        high: Upper end of its 95 % interval.
        ece: ECE in percent.
        window: Number of images in a window.
    """

    position: Array
    accuracy: Array
    low: Array
    high: Array
    ece: Array
    window: int


def running(confidence: Array, correct: Array, position: Array, bins: int) -> Running:
    """Metrics of windows of a tenth of the images, at least `LEAST_WINDOW`, in order of position.

    Args:
        confidence: Probability of the predicted class, from 0 to 1, (N,).
        correct: Whether the prediction is right, 0 or 1, (N,).
        position: Place of each image in the stream, (N,).
    """
    order = position.argsort()
    confidence = confidence[order]
    correct = correct[order]
    count = len(position)
    window = min(count, max(LEAST_WINDOW, count // 10))
    ends = np.unique(np.linspace(window, count, POINTS).astype(int))
    values = []
    for end in ends:
        part = slice(end - window, end)
        accuracy = accuracy_interval(confidence[part], correct[part])
        error = ece(confidence[part], correct[part], bins)
        values.append((accuracy.value, accuracy.low, accuracy.high, error))
    columns = 100 * np.array(values, dtype=np.float64).T
    return Running(ends, columns[0], columns[1], columns[2], columns[3], window)


def draw_stream(curves: Mapping[str, tuple[str, Running]], title: str) -> Figure:
    """A panel for accuracy with its interval and one for ECE, a curve for each label.

    Several curves of one method differ by their line styles.

    Args:
        curves: For each label the name of the method and its values.
    """
    with styled():
        figure = new_figure(PAGE, 2.6)
        left, right = figure.subplots(1, 2)
        drawn: list[str] = []
        for label, (method, values) in curves.items():
            colour = method_info(method).colour
            style = LINE_STYLES[drawn.count(method) % len(LINE_STYLES)]
            drawn.append(method)
            left.fill_between(
                values.position, values.low, values.high, color=colour, alpha=0.12, linewidth=0
            )
            left.plot(
                values.position, values.accuracy, color=colour, linestyle=style,
                label=short(label, 40),
            )
            right.plot(values.position, values.ece, color=colour, linestyle=style)
        for axes, name in ((left, "accuracy (%)"), (right, "ECE (%)")):
            axes.set(xlabel="images so far", ylabel=name)
            axes.grid()
        right.set_ylim(bottom=0)
        left.set_title(short(title, 40), fontweight="bold", loc="left")
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(curves))
        )
        return figure
