"""Matrices as pictures: a metric over methods and data sets, and how alike classes are before and after tuning."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ...functional.arrays import Array
from .style import INK, ON_DARK, ON_LIGHT, OVER, PAGE, UNDER, luminance, new_figure, short, styled

MOST_NAMES = 40  # of classes that can be read along an axis; of more, some stand for their neighbours
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
        def tone(value: float) -> str:
            """That of the two which stands out more from a cell."""
            cell = luminance(drawn.cmap(drawn.norm(value)))
            return ON_DARK if 1.05 / (cell + 0.05) > (cell + 0.05) / (luminance(ON_LIGHT) + 0.05) else ON_LIGHT

        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=6.5, color=tone(value))
        for j in range(len(columns)):
            if np.isfinite(grid[:, j]).sum() > 1:
                i = int(np.nanargmin(grid[:, j]) if best_is_low else np.nanargmax(grid[:, j]))
                axes.add_patch(_frame(i, j, tone(grid[i, j])))
        axes.set_xticks(range(len(columns)), map(short, columns), rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), map(short, rows))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontweight="bold", loc="left")
        figure.colorbar(drawn, ax=axes, label=label, shrink=0.9)
        return figure


def _frame(row: int, column: int, colour: str) -> Rectangle:
    return Rectangle((column - 0.46, row - 0.44), 0.92, 0.88, fill=False, edgecolor=colour, linewidth=1.2)


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
    """Both matrices in one order, alike classes side by side; below, the pairs that moved most.

    A class is like itself: the diagonal is left blank, so that the colours tell the others apart.
    """
    order = cluster_order(before)
    matrices = [np.where(np.eye(len(names), dtype=bool), np.nan, matrix)[np.ix_(order, order)]
                for matrix in (before, after)]
    most = max(0.05, *(float(np.nanmax(np.abs(matrix))) for matrix in matrices))
    with styled():
        figure = new_figure(PAGE, 4.7)
        panels = figure.subplot_mosaic([["before", "after"], ["moved", "moved"]], height_ratios=[1, 0.42])
        upper = [panels["before"], panels["after"]]
        for axes, matrix, head in zip(upper, matrices, ("before tuning", "after tuning"), strict=True):
            drawn = axes.imshow(matrix, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="nearest")
            axes.set_title(head)
            axes.set_anchor("N")
            axes.set_xticks([])
            axes.set_yticks([])
        named = np.arange(0, len(names), -(-len(names) // MOST_NAMES))
        upper[0].set_yticks(named, [short(names[order[k]]) for k in named], fontsize=5.5)
        figure.colorbar(drawn, ax=upper, label="correlation of logits", shrink=0.8)
        figure.suptitle(title, fontweight="bold", fontsize=8.5, x=0.01, ha="left")
        low = panels["moved"]
        pairs = moved_pairs(before, after)[::-1]
        changes = [change for *_, change in pairs]
        low.barh(range(len(pairs)), changes, height=0.65, color=[OVER if change > 0 else UNDER for change in changes])
        for place, (i, j, change) in enumerate(pairs):  # opposite the bar, where there is always room
            low.annotate(f"{short(names[i])} – {short(names[j])}", (0, place), xytext=(-4 if change > 0 else 4, 0),
                         textcoords="offset points", ha="right" if change > 0 else "left", va="center", fontsize=6.5)
        widest = max(map(abs, changes), default=0) or 1
        low.set(xlim=(-1.05 * widest, 1.05 * widest), yticks=[])
        low.spines["left"].set_visible(False)
        low.axvline(0, color=INK, linewidth=0.6)
        low.set_xlabel("the pairs that moved most: change of the correlation")
        return figure
