"""Figures that compare methods or settings: pairs of bars (SaLS, steps) and initial prompts."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ...registry import method_info, method_order
from .style import COLUMN, FAINT, GREY, ON_LIGHT, PAGE, grid_lines, lighter, new_figure, short, styled

HATCH = "//////"
LEGEND_ENTRY = 0.9  # inches


class Pair(NamedTuple):
    """A value without and with SaLS or a second step, in percent."""

    before: float
    after: float


class Point(NamedTuple):
    """Accuracy and ECE of one setting, in percent."""

    accuracy: float
    ece: float


def draw_pairs(
    panels: Mapping[str, Mapping[str, Mapping[str, Pair]]], before: str, after: str, title: str = "",
    numbers: bool = False,
) -> Figure:
    """A panel per metric with bars by group and method (`panels[metric][group][method]`): plain for `before`, light
    and hatched for `after`; with their `numbers` if asked for."""
    methods = methods_of({(metric, group): row for metric, rows in panels.items() for group, row in rows.items()})
    bars = sum(map(len, panels.values())) * (2 * len(methods) + 1)
    with styled():
        figure = new_figure(min(PAGE, max(COLUMN, 0.8 + (0.4 if numbers else 0.14) * bars)), 2.4)
        all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (metric, groups) in zip(all_axes, panels.items(), strict=True):
            _pair_bars(axes, groups, methods, numbers)
            axes.set_ylabel(metric)
            values = [value for row in groups.values() for pair in row.values() for value in (pair.before, pair.after)]
            low = min(values) - 3 if min(values) > 30 else 0  # accuracies differ too little for an axis from 0
            axes.set_ylim(low, max(values) + 0.12 * (max(values) - low))  # room for the numbers
            if low:
                axes.text(0, -0.09, "axis does not start at 0", transform=axes.transAxes, fontsize=6, color=GREY)
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.02, ha="left")
        edge: dict[str, Any] = {"edgecolor": ON_LIGHT, "linewidth": 0.4}
        handles = [Patch(facecolor=info.colour, label=info.label, **edge) for info in map(method_info, methods)]
        handles.append(Patch(facecolor="#9A9A9A", label=before, **edge))
        handles.append(Patch(facecolor="#E0E0E0", hatch=HATCH, label=after, **edge))
        columns = min(len(handles), int(figure.get_figwidth() / LEGEND_ENTRY))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, columnspacing=1.0)
        return figure


def _pair_bars(
    axes: Axes, groups: Mapping[str, Mapping[str, Pair]], methods: Sequence[str], numbers: bool,
) -> None:
    step = 0.8 / len(methods)
    bar: dict[str, Any] = {"width": step * 0.46, "edgecolor": ON_LIGHT, "linewidth": 0.4}
    for m, method in enumerate(methods):
        colour = method_info(method).colour
        for g, row in enumerate(groups.values()):
            if method not in row:
                continue
            x, pair = g + (m - (len(methods) - 1) / 2) * step, row[method]
            axes.bar(x - step * 0.235, pair.before, color=colour, **bar)
            axes.bar(x + step * 0.235, pair.after, color=lighter(colour, 0.6), hatch=HATCH, **bar)
            for offset, value in ((-step * 0.235, pair.before), (step * 0.235, pair.after)) if numbers else ():
                axes.annotate(f"{value:.1f}", (x + offset, value), xytext=(0, 1.5), textcoords="offset points",
                              ha="center", fontsize=6)
    labels = list(groups)
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if len(labels) > 6 else {}
    axes.set_xticks(np.arange(len(labels)), labels, **slant)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.55, len(labels) - 0.45)
    grid_lines(axes)


def draw_prompts(title: str, ece: Mapping[str, Mapping[str, float]], width: float = PAGE * 0.62) -> Figure:
    """ECE by initial prompt, `ece[prompt][method]` in percent: one row per prompt, one mark per method."""
    prompts = sorted(ece, key=lambda prompt: (max(ece[prompt].values()), prompt))  # by their worst method
    methods = methods_of(ece)
    with styled():
        figure = new_figure(width, 0.75 + 0.2 * len(prompts))
        axes = figure.subplots()
        for y, prompt in enumerate(prompts):
            values = list(ece[prompt].values())
            axes.plot([min(values), max(values)], [y, y], color=FAINT, linewidth=1.2, zorder=1)
        for method in methods:
            info = method_info(method)
            at = [(ece[prompt][method], y) for y, prompt in enumerate(prompts) if method in ece[prompt]]
            x, y_of = zip(*at, strict=True)
            axes.scatter(x, y_of, color=info.colour, marker=info.marker, s=20, zorder=2, label=info.label)
        words = [f"“{short(prompt, 40)} […]”" if prompt else "“[…]” alone" for prompt in prompts]
        axes.set_yticks(range(len(prompts)), words)
        axes.invert_yaxis()
        axes.set_ylim(len(prompts) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_xlabel("ECE (%)")
        axes.set_title(title, fontweight="bold", loc="left")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        grid_lines(axes, "x")
        figure.legend(loc="outside lower right", ncols=len(methods))
        return figure


def methods_of(rows: Mapping[Any, Mapping[str, object]]) -> list[str]:
    """The methods of `rows[…][method]` in the order of papers."""
    return sorted({method for row in rows.values() for method in row}, key=method_order)
