"""Accuracy and ECE over the stream of an online method: a running window with its interval."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...functional.arrays import Array
from ...functional.calibration import Interval, accuracy, bootstrap, ece
from ...registry import method_info
from .style import PAGE, new_figure, short, styled

LEAST_WINDOW = 50  # images
POINTS = 30  # windows per curve
RESAMPLES = 100


class Running(NamedTuple):
    """Of each window: the position of its last image, and accuracy and ECE with 95 % intervals, in percent."""

    position: Array  # (n,)
    accuracy: Interval  # of arrays (n,)
    ece: Interval
    window: int


def running(confidence: Array, correct: Array, position: Array, bins: int) -> Running:
    """Metrics of windows of a tenth of the images, at least `LEAST_WINDOW`, in the order of their positions."""
    order, count = position.argsort(), len(position)
    confidence, correct = confidence[order], correct[order]
    window = min(count, max(LEAST_WINDOW, count // 10))
    ends = np.unique(np.linspace(window, count, POINTS).astype(int))

    def both(sure: Array, right: Array) -> Array:
        return np.array([accuracy(sure, right), ece(sure, right, bins)])

    parts = [slice(end - window, end) for end in ends]
    found = [bootstrap(both, confidence[part], correct[part], repeats=RESAMPLES, centred=True) for part in parts]
    values = 100 * np.clip([[one.value, one.low, one.high] for one in found], 0, 1)  # (n, 3, 2)
    return Running(ends, Interval(*values[..., 0].T), Interval(*values[..., 1].T), window)


def draw_stream(curves: Mapping[str, tuple[str, Running]], title: str) -> Figure:
    """A panel for accuracy and one for ECE, with a curve and its interval for each label, given its method. Several
    curves of one method differ by their line styles."""
    with styled():
        figure = new_figure(PAGE, 2.6)
        panels = figure.subplots(1, 2)
        drawn: list[str] = []
        for label, (method, values) in curves.items():
            colour, style = method_info(method).colour, ("-", "--", ":", "-.")[drawn.count(method) % 4]
            drawn.append(method)
            for axes, metric in zip(panels, (values.accuracy, values.ece), strict=True):
                axes.fill_between(values.position, metric.low, metric.high, color=colour, alpha=0.12, linewidth=0)
                axes.plot(values.position, metric.value, color=colour, linestyle=style, label=short(label, 40))
        for axes, name in zip(panels, ("accuracy (%)", "ECE (%)"), strict=True):
            axes.set(xlabel="images so far", ylabel=name)
            axes.grid()
        panels[1].set_ylim(bottom=0)
        panels[0].set_title(short(title, 40), fontweight="bold", loc="left")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(curves)))
        return figure
