"""Accuracy and ECE over the stream of an online method: a running window."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ...functional.arrays import Array
from ...functional.calibration import accuracy_interval, ece
from ...registry import method_info
from .style import PAGE, new_figure, short, styled

LEAST_WINDOW = 50  # images
POINTS = 30  # windows per curve
LINE_STYLES = ("-", "--", ":", "-.")


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
        bins: Number of bins of ECE.
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
        title: Title of the figure.
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
                values.position,
                values.accuracy,
                color=colour,
                linestyle=style,
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
