"""What adaptation changes: the confidence of all images, and the top classes of single images."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL.Image import Image

from ...functional.arrays import Array
from ...registry import method_info
from .style import GREY, INK, grid_lines, lighter, new_figure, short, styled

NARROW = 4.5  # inches: a narrower figure breaks the label of its axis
CELLS = 25  # of a histogram


@dataclass(frozen=True)
class Histogram:
    """Confidences of one method on the same images, before and after adaptation, both (N,)."""

    before: Array
    after: Array


@dataclass(frozen=True)
class Slopes:
    """One image: its top classes by method, as `methods[method][class] = (before, after)`, in fractions."""

    truth: str
    methods: Mapping[str, Mapping[str, tuple[float, float]]]
    image: Image | None = None


def draw_histograms(methods: Mapping[str, Histogram], title: str = "") -> Figure:
    """One panel per method: grey before, coloured after, with both means."""
    columns = min(len(methods), 4)
    rows = -(-len(methods) // columns)
    with styled():
        figure = new_figure(max(3.4, 1.75 * columns), 0.5 + 1.45 * rows)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        edges = np.linspace(0, 1, CELLS + 1).tolist()
        for axes in panels.flat[len(methods) :]:
            axes.set_visible(False)
        for axes, (method, data) in zip(panels.flat, methods.items(), strict=False):
            info = method_info(method)
            for values, look in (
                (data.before, {"color": "#B9B9B9", "label": "before"}),
                (data.after, {"color": info.colour, "histtype": "step", "linewidth": 1.4, "label": "after"}),
            ):
                axes.hist(values, bins=edges, weights=np.full(len(values), 100 / len(values)), **look)
            axes.axvline(data.before.mean(), color=GREY, linestyle=":", linewidth=1)
            axes.axvline(data.after.mean(), color=info.colour, linestyle=":", linewidth=1)
            change = 100 * (data.after.mean() - data.before.mean())
            axes.set_title(f"{short(info.label, 12)}: mean {change:+.1f} points", fontsize=7.5)
            axes.set_xticks([0, 0.5, 1])
            grid_lines(axes)
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.01, ha="left")
        between = "\n" if figure.get_figwidth() < NARROW else " "
        figure.supxlabel(f"confidence (grey area: before tuning,{between}line: after it; dotted: means)", fontsize=7.5)
        figure.supylabel("% of images", fontsize=7.5)
        return figure


def draw_slopes(cases: Sequence[Slopes], title: str = "") -> Figure:
    """One row per image: the image, then each method's confidence in the top classes before and after tuning."""
    methods = list(dict.fromkeys(name for case in cases for name in case.methods))
    with styled():
        shown = int(any(case.image is not None for case in cases))  # a column for the images, if there are any
        figure = new_figure(0.4 + 1.1 * shown + 1.6 * len(methods), 0.45 + 1.65 * len(cases))
        panels = figure.subplots(len(cases), shown + len(methods), squeeze=False)
        for line, case in zip(panels, cases, strict=True):
            truth = f"true: {short(case.truth, 20)}"
            if shown:
                line[0].set_axis_off()
                if case.image is not None:
                    line[0].imshow(np.asarray(case.image.convert("RGB")))
                line[0].set_title(truth, fontsize=6.5, fontweight="bold")
            for axes, method in zip(line[shown:], methods, strict=True):
                _draw_slope(axes, case, method)
                axes.set_title(short(method_info(method).label, 18), fontsize=7.5, fontweight="bold")
            line[shown].set_ylabel("confidence (%)" if shown else f"{truth}\nconfidence (%)", fontsize=6.5)
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.01, ha="left")
        return figure


def _draw_slope(axes: Axes, case: Slopes, method: str) -> None:
    shown = sorted(case.methods.get(method, {}).items(), key=lambda item: item[1][1])
    colour, free = lighter(method_info(method).colour, 0.1), -1.0
    for name, (before, after) in shown:
        right = name == case.truth
        axes.plot([0, 1], [100 * before, 100 * after], color=INK if right else colour, linewidth=2 if right else 1.2,
                  marker="o", markersize=3)
        free = max(free + 13, 100 * after)  # labels of near values are moved apart
        axes.annotate(f"{100 * after:.0f} {short(name, 15)}", (1, 100 * after), xytext=(1.08, free), textcoords="data",
                      va="center", fontsize=6.2, fontweight="bold" if right else "normal", annotation_clip=False)
    axes.set(xlim=(-0.1, 2.3), ylim=(-4, 104), xticks=[0, 1], yticks=[0, 50, 100])
    axes.set_xticklabels(["before", "after"], fontsize=6)
    axes.tick_params(axis="y", labelsize=6)
    axes.spines["bottom"].set_visible(False)
