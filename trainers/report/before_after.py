"""Pictures of what tuning changes: where methods stand, confidences before and after, single images, alike classes."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from PIL.Image import Image

from ..functional.arrays import log_softmax
from ..registry import method_info
from .figures.comparison import Point
from .figures.confidence import Histogram, Slopes, draw_histograms, draw_slopes
from .figures.matrices import class_correlation, draw_class_similarity, draw_heat_map
from .figures.plane import draw_plane
from .grid import Column, Comparison, Row
from .measure import Measured
from .metrics import METRICS
from .picture import Picture, cells_of, in_percent, slug
from .reading import Predictions, Run

MOST_CLASSES = 400  # of a similarity matrix; beyond that it is a grey square
MOST_METHODS = 6  # beside an image
TOP = 3  # classes shown of an image


def plane_picture(comparison: Comparison, columns: Sequence[Column], name: str) -> Picture:
    """Accuracy against ECE, both averaged over these columns."""
    points = {
        row.method: Point(*(100 * comparison.mean(row, columns, metric) for metric in ("accuracy", "ece")))
        for row in comparison.rows_on(columns)
    }
    title = comparison.column_label(columns[0]) if len(columns) == 1 else f"average of {len(columns)} data sets"
    caption = (
        f"Accuracy against ECE, {title}, {comparison.backbone}; lower right is best. A dashed line joins the methods "
        f"that none other beats in both, if there are several. Along a grey line, a point of accuracy pays for a point "
        f"of ECE. {comparison.images(columns)}"
    )
    return Picture(name, caption, draw_plane(title, {}, points))


def heat_pictures(comparison: Comparison, suffix: str) -> Iterator[Picture]:
    """Methods × data sets, where there is more than one of each."""
    if len(comparison.rows) < 2 or len(comparison.columns) < 2:
        return
    for metric, low in (("ece", True), ("accuracy", False)):
        values = {
            row.label: {comparison.column_label(column): in_percent(cell, metric)
                        for column, cell in cells_of(comparison, row)}
            for row in comparison.rows
        }
        label = f"{METRICS[metric].label} (%)"
        caption = (f"{label} of each method on each data set, {comparison.backbone}; framed: best of the column, "
                   f"zero-shot included; blank: no run. {comparison.images()}")
        yield Picture(f"heat_{metric}{suffix}", caption, draw_heat_map(values, label, low))


def histogram_pictures(comparison: Comparison, columns: Sequence[Column], name: str) -> Iterator[Picture]:
    """Confidence before and after, the columns' images taken together."""
    data = {}
    for row in comparison.rows:
        runs = [comparison.cells[row, column][0] for column in columns if (row, column) in comparison.cells]
        if method_info(row.method).tuned and len(runs) == len(columns) and all(m.run.has_zero_shot for m in runs):
            data[row.method] = Histogram(*(
                np.concatenate([getattr(m, when).confidence for m in runs]) for when in ("zero_shot", "tuned")
            ))
    if data:
        caption = (
            f"Confidence before and after tuning, {comparison.backbone}: which methods make the model surer of itself? "
            f"{comparison.images(columns)}{comparison.of_first_seed}"
        )
        yield Picture(name, caption, draw_histograms(data))


def slope_pictures(
    comparison: Comparison, column: Column, read_picture: Callable[[Run, int], Image | None], name: str,
) -> Iterator[Picture]:
    """Two images: the surest mistake, and the one on which the methods agree least."""
    runs = {
        row.method: cell[0] for row in comparison.rows if method_info(row.method).tuned
        for at, cell in cells_of(comparison, row) if at == column and cell[0].run.has_zero_shot
    }
    if not runs:
        return
    count = len(runs)
    runs = dict(list(runs.items())[:MOST_METHODS])
    data = {method: m.run.load_predictions() for method, m in runs.items()}
    first = next(iter(runs.values()))
    names = first.run.classnames
    cases = [
        Slopes(names[next(iter(data.values())).label[place]],
               {method: _top(columns, place, names) for method, columns in data.items()},
               read_picture(first.run, int(next(iter(data.values())).index[place])))
        for place in telling_images(data)
    ]
    caption = (
        f"What each method does to the top classes of single images, {comparison.column_label(column)}, "
        f"{comparison.backbone}, confidence in %: the surest mistake, and the image on which methods agree least."
        f"{f' The first {len(runs)} of {count} methods.' if count > len(runs) else ''}{comparison.of_first_seed}"
    )
    yield Picture(name, caption, draw_slopes(cases))


def telling_images(data: dict[str, Predictions]) -> list[int]:
    """Places of two images, or of one where both are the same."""
    after = np.stack([np.exp(log_softmax(columns.logits)) for columns in data.values()])  # (M, N, K)
    label = next(iter(data.values())).label
    images = np.arange(len(label))
    true = after[:, images, label]  # (M, N)
    surest = np.where(after.argmax(axis=2) == label, 0, after.max(axis=2)).max(axis=0)
    chosen = [int(surest.argmax()), int(np.ptp(true, axis=0).argmax())]
    return list(dict.fromkeys(chosen))


def _top(data: Predictions, place: int, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    before, after = (np.exp(log_softmax(z[place])) for z in (data.zero_shot_logits, data.logits))
    chosen = dict.fromkeys([*np.argsort(-after, kind="stable")[:TOP].tolist(), int(data.label[place])])
    return {names[k]: (float(before[k]), float(after[k])) for k in chosen}


def similarity_pictures(comparison: Comparison, column: Column, name: str) -> Iterator[Picture]:
    """How alike the best calibrated method treats two classes, before and after it tuned."""
    tuned = [row for row in comparison.rows if method_info(row.method).tuned and (row, column) in comparison.cells]
    tuned = [row for row in tuned if _first(comparison, row, column).run.has_zero_shot]
    if not tuned:
        return
    row = min(tuned, key=lambda row: comparison.mean(row, [column], "ece"))
    run = _first(comparison, row, column).run
    if not 2 < run.results["classes"] <= MOST_CLASSES or column.n < 2:
        return
    data = run.load_predictions()
    before, after = (class_correlation(z.astype(np.float64)) for z in (data.zero_shot_logits, data.logits))
    label = comparison.column_label(column)
    caption = (
        f"How alike {method_info(row.method).label} treats two classes on {label}, {comparison.backbone}: correlation of "
        "their logits over the test images, less what all classes share; classes in clusters. Red pairs came closer."
        f"{comparison.of_first_seed}"
    )
    yield Picture(name, caption, draw_class_similarity(before, after, run.classnames, f"{label}: {row.label}"))


def _first(comparison: Comparison, row: Row, column: Column) -> Measured:
    return comparison.cells[row, column][0]


def change_pictures(
    comparison: Comparison, suffix: str, read_picture: Callable[[Run, int], Image | None],
) -> Iterator[Callable[[], Iterator[Picture] | list[Picture]]]:
    """All of these, each to be drawn on its own."""
    common = comparison.common_columns()
    columns = common or comparison.columns[:1]
    if common and len(comparison.rows) > 2:
        yield lambda: [plane_picture(comparison, common, f"plane{suffix}")]
    yield lambda: heat_pictures(comparison, suffix)
    yield lambda: histogram_pictures(comparison, columns, f"confidence{suffix}")
    where = f"{slug(comparison.column_label(columns[0]))}{suffix}"
    yield lambda: slope_pictures(comparison, columns[0], read_picture, f"images_{where}")
    yield lambda: similarity_pictures(comparison, columns[0], f"class_similarity_{where}")


def no_picture(run: Run, index: int) -> Image | None:
    """Where the data are not at hand."""
    return None
