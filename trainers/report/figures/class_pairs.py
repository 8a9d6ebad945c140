"""Mistakes by pair of classes (Fig. 2 of the SoC paper), and the confidence floor of Proposition 1."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...functional import theory
from ...functional.arrays import Array, ArrayLike, check_scores, log_softmax
from ...registry import method_info
from .style import COLUMN, FAINT, GREY, INK, PAGE, grid_lines, lighter, new_figure, short, styled

FLOOR_NOTE = "The floor holds for an image feature equal to the winning prototype (v = t_i*), not for every unit v."


@dataclass(frozen=True)
class PairErrors:
    """Wrong predictions by class pair. Accuracy among them is 0, so a pair's ECE is its mean confidence."""

    predicted: Array  # (P,)
    label: Array  # (P,)
    count: Array  # (P,)
    error: Array  # (P,), fraction
    similarity: Array  # (P,), zero-shot cosine of the two class prompts


@dataclass(frozen=True)
class Spread:
    """The prototypes of a method before and after its step; Δs of all pairs, predicted to first order and measured."""

    mu_before: float
    mu_after: float
    floor_before: float
    floor_after: float
    predicted: Array | None = None  # (K(K−1)/2,)
    measured: Array | None = None  # (K(K−1)/2,)


def pair_errors(logits: ArrayLike, labels: ArrayLike, similarity: ArrayLike) -> PairErrors:
    """The wrong predictions of a run, grouped by predicted class and label."""
    logits, labels = check_scores(logits, labels, "logits")
    similarity = np.asarray(similarity, dtype=np.float64)
    if similarity.shape != (logits.shape[1],) * 2:
        raise ValueError(f"similarity must be K×K with K = {logits.shape[1]}, got shape {similarity.shape}.")
    predicted = logits.argmax(axis=1)
    confidence = np.exp(log_softmax(logits).max(axis=1))
    wrong = predicted != labels
    codes, group, count = np.unique(
        predicted[wrong] * logits.shape[1] + labels[wrong], return_inverse=True, return_counts=True,
    )
    i, j = np.divmod(codes, logits.shape[1])
    error = np.bincount(group, weights=confidence[wrong], minlength=len(codes)) / count
    return PairErrors(i, j, count, error, similarity[i, j])


def spread(before: ArrayLike, after: ArrayLike, scale: float, predicted: ArrayLike | None = None) -> Spread:
    """μ and floor of the prototypes (K, d) before and after a step; `predicted` is the first-order Δs (K, K)."""
    s_before, s_after = theory.similarity(before), theory.similarity(after)
    mu = theory.coherence(s_before), theory.coherence(s_after)
    floor = theory.confidence_floor(mu, len(s_before), scale)
    shifts = None if predicted is None else (theory.pairs(predicted), theory.pairs(s_after - s_before))
    return Spread(*mu, float(floor[0]), float(floor[1]), *(shifts or ()))


def draw_pair_errors(methods: Mapping[str, PairErrors], title: str = "") -> Figure:
    """One panel per method: confidence of the wrong predictions by zero-shot similarity; circles by their number."""
    with styled():
        figure = new_figure(max(COLUMN, 1.1 + 2.1 * len(methods)), 2.55)
        largest = max((data.count.max() for data in methods.values() if len(data.count)), default=1)
        panels = figure.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (method, data) in zip(panels, methods.items(), strict=True):
            info = method_info(method)
            axes.scatter(data.similarity, 100 * data.error, s=_area(data.count, largest), color=info.colour, alpha=0.45,
                         edgecolor=info.colour, linewidth=0.6)
            if len(data.count):
                mean = 100 * np.average(data.error, weights=data.count)
                axes.axhline(mean, color=INK, linestyle=(0, (4, 3)), linewidth=0.7)
                axes.annotate(
                    f"mean {mean:.0f} %", (0.02, mean), xycoords=("axes fraction", "data"), xytext=(0, 3),
                    textcoords="offset points", fontsize=6.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
                )
            axes.set_title(f"{short(info.label)}: {data.count.sum():,} mistakes")
            axes.set_ylim(-3, 107)  # room for the circles at either end
            axes.set_yticks(range(0, 101, 20))
            axes.margins(x=0.08)
            grid_lines(axes, "both")
            axes.set_xlabel("similarity of the two classes")
        panels[0].set_ylabel("confidence of the mistakes (%)")
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.02, ha="left")
        sizes = sorted({1, max(1, round(largest / 4)), int(largest)})
        handles = [
            panels[0].scatter([], [], s=_area(np.array([size]), largest), color="#BBBBBB", edgecolor=GREY,
                              linewidth=0.6, label=f"{size}")
            for size in sizes
        ]
        figure.legend(handles=handles, loc="outside right center", title="mistakes\nof the pair", title_fontsize=7)
        return figure


def draw_spread(methods: Mapping[str, Spread], title: str = "") -> Figure:
    """μ and the confidence floor before (hollow) and after (filled) the step; Δs predicted against measured."""
    shown = {name: data for name, data in methods.items() if data.predicted is not None}
    with styled():
        figure = new_figure(PAGE, 2.5)
        panels = figure.subplots(1, 3 if shown else 2, width_ratios=[1, 1, 1.15] if shown else None)
        _arrows(panels[0], {name: (data.mu_before, data.mu_after) for name, data in methods.items()})
        panels[0].set(xlabel="μ = largest similarity of two classes")
        _arrows(panels[1], {name: (data.floor_before, data.floor_after) for name, data in methods.items()})
        panels[1].set(xlabel="confidence floor", yticklabels=[])
        if shown:
            _draw_first_order(panels[2], shown)
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.01, ha="left")
        figure.supxlabel(f"hollow: before the step, filled: after it.  {FLOOR_NOTE}", fontsize=6.5, x=0.01, ha="left")
        return figure


def _draw_first_order(axes: Axes, methods: Mapping[str, Spread]) -> None:
    ends = []
    for name, data in methods.items():
        predicted, measured = np.asarray(data.predicted), np.asarray(data.measured)
        ends += [predicted.min(), predicted.max(), measured.min(), measured.max()]
        info = method_info(name)
        axes.scatter(predicted, measured, s=5, color=info.colour, alpha=0.5, linewidth=0, label=info.label)
    line = [min(ends), max(ends)]
    axes.plot(line, line, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, zorder=0)
    axes.set(xlabel="Δs predicted, first order", ylabel="Δs measured")
    axes.locator_params(nbins=4)
    grid_lines(axes, "both")
    axes.legend(loc="upper left", markerscale=2, handlelength=0.8)


def _area(count: Array, largest: int) -> Array:
    return 6 + 150 * count / largest


def _arrows(axes: Axes, values: Mapping[str, tuple[float, float]]) -> None:
    for y, (name, (before, after)) in enumerate(values.items()):
        info = method_info(name)
        axes.plot([before, after], [y, y], color=lighter(info.colour, 0.4), linewidth=1.6, zorder=1)
        axes.scatter([before], [y], facecolor="white", edgecolor=info.colour, marker=info.marker, s=26, zorder=2)
        axes.scatter([after], [y], color=info.colour, marker=info.marker, s=30, zorder=3)
        axes.annotate(f"{after:.4g}", (after, y), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=6.5)
    axes.axvline(next(iter(values.values()))[0], color=FAINT, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(values)), [method_info(name).label for name in values])
    axes.set_ylim(len(values) - 0.5, -0.7)
    axes.margins(x=0.15)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=4)
    grid_lines(axes, "x")
