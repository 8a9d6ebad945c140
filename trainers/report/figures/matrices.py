"""Matrices as pictures: a metric over methods and data sets, and how alike classes are before and after tuning."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...arrays import Array
from .style import INK, PAGE, new_figure, styled

ON_DARK = "#FEFEFE"  # type on a dark cell; not plain white, which a page in dark colours would darken
MOST_NAMES = 40  # of classes that can be read along an axis
PAIRS = 8  # of classes that moved most, listed beside the matrices


def draw_heat_map(
    values: Mapping[str, Mapping[str, float]], label: str, best_is_low: bool = True, title: str = "",
) -> Figure:
    """`values[row][column]`, printed in each cell; the best of a column is framed. Missing cells stay blank."""
    rows, columns = list(values), list(dict.fromkeys(name for row in values.values() for name in row))
    grid = np.array([[values[row].get(column, np.nan) for column in columns] for row in rows])
    with styled():
        figure = new_figure(min(PAGE * 1.3, 1.5 + 0.62 * len(columns)), 0.9 + 0.26 * len(rows))
        axes = figure.subplots()
        drawn = axes.imshow(
            grid, cmap="YlOrRd" if best_is_low else "YlGn", aspect="auto", vmin=0 if best_is_low else None,
        )
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                dark = drawn.norm(value) > 0.6
                axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=6.5,
                          color=ON_DARK if dark else "#212121")
        for j in range(len(columns)):
            if np.isfinite(grid[:, j]).sum() > 1:
                i = int(np.nanargmin(grid[:, j]) if best_is_low else np.nanargmax(grid[:, j]))
                axes.add_patch(_frame(i, j))
        axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontweight="bold", loc="left")
        figure.colorbar(drawn, ax=axes, label=label, shrink=0.9)
        return figure


def _frame(row: int, column: int) -> Rectangle:
    return Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor=INK, linewidth=1.2)


def class_correlation(logits: Array) -> Array:
    """(K, K): how the logits of two classes go together over the images, less what all classes share."""
    own = logits - logits.mean(axis=1, keepdims=True)
    own = own - own.mean(axis=0)
    length = np.linalg.norm(own, axis=0)
    return (own.T @ own) / np.maximum(np.outer(length, length), 1e-12)


def cluster_order(similarity: Array) -> Array:
    """An order in which alike classes are neighbours: that of the second eigenvector of the graph Laplacian."""
    weights = np.clip(similarity, 0, None)
    np.fill_diagonal(weights, 0)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    return np.argsort(np.linalg.eigh(laplacian)[1][:, min(1, len(weights) - 1)], kind="stable")


def moved_pairs(before: Array, after: Array, count: int = PAIRS) -> list[tuple[int, int, float]]:
    """The pairs of classes whose similarity changed most, with the change."""
    first, second = np.triu_indices(len(before), k=1)
    change = (after - before)[first, second]
    most = np.argsort(-np.abs(change), kind="stable")[:count]
    return [(int(first[k]), int(second[k]), float(change[k])) for k in most]


def draw_class_similarity(before: Array, after: Array, names: Sequence[str], title: str = "") -> Figure:
    """Both matrices in one order, alike classes side by side; below, the pairs that moved most."""
    order = cluster_order(before)
    with styled():
        figure = new_figure(PAGE, 5.3)
        upper, lower = figure.subfigures(2, 1, height_ratios=[1, 0.45])
        panels = upper.subplots(1, 2)
        for axes, matrix, head in zip(panels, (before, after), ("before tuning", "after tuning"), strict=True):
            drawn = axes.imshow(matrix[np.ix_(order, order)], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
            axes.set_title(head)
            axes.set_xticks([])
            axes.set_yticks([])
        if len(names) <= MOST_NAMES:
            panels[0].set_yticks(range(len(names)), [_short(names[k]) for k in order], fontsize=5.5)
        upper.colorbar(drawn, ax=panels, label="correlation of logits", shrink=0.8)
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.01, ha="left")
        low = lower.subplots()
        pairs = moved_pairs(before, after)[::-1]
        low.barh(range(len(pairs)), [change for *_, change in pairs], height=0.65,
                 color=["#B2182B" if change > 0 else "#2166AC" for *_, change in pairs])
        words = [f"{_short(names[i], 20)} – {_short(names[j], 20)}" for i, j, _ in pairs]
        low.set_yticks(range(len(pairs)), words, fontsize=6)
        low.axvline(0, color=INK, linewidth=0.6)
        low.set_xlabel("change of the correlation: pairs that moved most")
        return figure


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
