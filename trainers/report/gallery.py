"""The report's figures: which ones the runs allow, with their data and captions. Drawing is done in `figures/`."""
from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.figure import Figure

from ...datasets.utils.errors import one_line
from ..functional.arrays import Array, ArrayLike
from ..functional.calibration import selective
from ..registry import ZERO_SHOT, MethodInfo, branch_of, method_info, method_key
from .comparison import Column, Comparison, Row
from .figures.class_pairs import PairErrors, draw_pair_errors, pair_errors
from .figures.comparison import Pair, Point, draw_pairs, draw_plane, draw_prompts
from .figures.reliability import THRESHOLDS, Diagram, diagram, draw_grid, draw_selective
from .figures.stream import Running, draw_stream, running
from .figures.style import lighter
from .load import Run
from .measure import Measured, mean_over_seeds

logger = logging.getLogger(__name__)

PAIR_METHODS = ("otpt", "soc")  # whose mistakes the SoC paper compares
MAX_CLASSES = 400  # of a class-by-class figure; with more, nothing can be seen

Similarity = Callable[[Run], Array | None]  # K×K similarity of a run's classes


@dataclass(frozen=True)
class NamedFigure:
    """A figure with its file name and caption."""

    name: str
    caption: str
    figure: Figure


def attempted(make: Callable[..., NamedFigure | Iterable[NamedFigure]], *args: object) -> Iterator[NamedFigure]:
    """The figures that `make(*args)` gives. If it fails, one warning: the other figures and the tables are kept."""
    try:
        made = make(*args)
        yield from [made] if isinstance(made, NamedFigure) else made
    except Exception as error:
        logger.warning("a figure is left out: %s", one_line(error, 200), exc_info=logger.isEnabledFor(logging.DEBUG))


def look(comparison: Comparison, row: Row) -> MethodInfo:
    """How a figure shows a row: its own label, and the method's colour, lighter for the method's further settings."""
    info = method_info(row.method)
    settings = list(dict.fromkeys(one.settings for one in comparison.rows if one.method == row.method))
    paler = settings.index(row.settings) / len(settings)
    return replace(info, label=row.label, colour=lighter(info.colour, 0.8 * paler) if paler else info.colour)


def captioned(
    comparison: Comparison, name: str, words: str, figure: Figure, columns: Sequence[Column] = (), seeds: bool = True,
) -> NamedFigure:
    """A figure whose caption ends with the test images; and, if it shows one of several `seeds` only, with which."""
    single = not seeds and any(len(cell) > 1 for cell in comparison.cells.values())
    return NamedFigure(name, f"{words} {comparison.images(columns)}{' First seed of each.' if single else ''}", figure)


def make_figures(comparisons: Sequence[Comparison], similarity: Similarity) -> Iterator[NamedFigure]:
    """All figures of a report, each drawn when it is asked for."""
    for number, main in enumerate(c for c in comparisons if not c.swept):
        suffix = f"_{number + 1}" if number else ""
        yield from _main_figures(main, suffix, similarity)
        swept = [c for c in comparisons if c.swept and c.backbone == main.backbone]
        for comparison in swept:
            if comparison.swept == "TTA.RESET":
                for column in comparison.columns:
                    yield from attempted(stream_figures, comparison, column, f"_reset{suffix}")
            if comparison.swept == "TTA.STEPS":
                yield from attempted(step_figures, comparison, suffix)
            if comparison.swept == "PROMPT.CTX_INIT":
                for column in comparison.columns:
                    yield from attempted(prompt_figure, comparison, column, suffix)
        weights = [comparison for comparison in swept if comparison.swept.endswith(".LAMBDA")]
        for column in dict.fromkeys(column for comparison in weights for column in comparison.columns):
            sweeps: dict[MethodInfo, dict[float, Point]] = {}
            for comparison in weights:
                sweeps.update(lambda_points(comparison, column))
            others = other_points(main, column, sweeps)
            yield from attempted(lambda_figure, main, column, sweeps, others, suffix)


def _main_figures(comparison: Comparison, suffix: str, similarity: Similarity) -> Iterator[NamedFigure]:
    yield from attempted(reliability_figure, comparison, f"reliability_grid{suffix}")
    common = comparison.common_columns()
    if len(common) > 1:
        yield from attempted(selective_figure, comparison, common, f"selective_all{suffix}")
    for column in comparison.main_columns():
        name = f"selective_{_slug(comparison.column_label(column))}{suffix}"
        yield from attempted(selective_figure, comparison, [column], name)
    yield from attempted(sals_figures, comparison, f"sals{suffix}")
    for column in comparison.main_columns():
        yield from attempted(pair_figures, comparison, column, similarity, PAIR_METHODS, suffix)
        yield from attempted(stream_figures, comparison, column, suffix)
    if common and len(comparison.rows) > 2:
        yield from attempted(plane_figure, comparison, common, f"plane{suffix}")


def reliability_figure(comparison: Comparison, name: str) -> NamedFigure:
    """The grid of reliability diagrams, methods × data sets."""
    rows: dict[MethodInfo, dict[str, Diagram]] = {look(comparison, row): {} for row in comparison.rows}
    for (row, column), (first, *_) in comparison.cells.items():
        rows[look(comparison, row)][comparison.column_label(column)] = diagram(row.method, *first.tuned, first.bins)
    words = (f"Reliability, {comparison.backbone_label}, {comparison.bins} bins, first seed of each run. Red hatching "
             "above a bar is over-confidence; the strip shows the density of the samples.")
    return captioned(comparison, name, words, draw_grid(rows))


def selective_figure(comparison: Comparison, columns: Sequence[Column], name: str) -> NamedFigure:
    """Selective accuracy of all methods that have these columns, the columns' images together."""
    series = {look(comparison, row): selective_on(comparison, row, columns, THRESHOLDS)
              for row in comparison.rows_on(columns)}
    title = comparison.column_label(columns[0]) if len(columns) == 1 else f"{len(columns)} data sets together"
    words = (f"Selective accuracy, {title}, {comparison.backbone_label}: how many predictions above a threshold are "
             "right?")
    return captioned(comparison, name, words, draw_selective(series, title), columns, seeds=False)


def selective_on(
    comparison: Comparison, row: Row, columns: Sequence[Column], thresholds: ArrayLike,
) -> tuple[Array, Array]:
    """Accuracy above each threshold and the share that is kept, of the images of these columns together."""
    tops = [comparison.cells[row, column][0].tuned for column in columns]
    confidence, correct = (np.concatenate(parts) for parts in zip(*tops, strict=True))
    return selective(confidence, correct, thresholds)


def sals_figures(comparison: Comparison, name: str) -> Iterator[NamedFigure]:
    if groups := sals_groups(comparison):
        words = f"ECE with and without SaLS, {comparison.backbone_label}. Accuracy is the same."
        yield captioned(comparison, name, words, draw_pairs({"ECE (%)": groups}, "plain", "with SaLS"))


def sals_groups(comparison: Comparison) -> dict[str, dict[MethodInfo, Pair]]:
    """ECE of the tuned methods without and with SaLS by data set; the average last, if there are several sets."""
    tuned = [
        row for row in comparison.rows if method_info(row.method).tuned
        and all(m.run.has_zero_shot for (of, _), cell in comparison.cells.items() for m in cell if of == row)
    ]
    common = comparison.common_columns()
    sets = {comparison.column_label(column): [column] for column in comparison.columns}
    if len(common) > 1:
        sets["Average"] = common
    groups = {
        label: {look(comparison, row): Pair(*(100 * comparison.mean(row, columns, metric)
                                              for metric in ("ece", "ece_sals")))
                for row in comparison.rows_on(columns) if row in tuned}
        for label, columns in sets.items()
    }
    return {label: pairs for label, pairs in groups.items() if pairs}


def step_figures(comparison: Comparison, suffix: str = "") -> Iterator[NamedFigure]:
    if panels := step_panels(comparison):
        words = f"One against two steps, {comparison.backbone_label}; hatched: two steps."
        yield captioned(comparison, f"steps{suffix}", words, draw_pairs(panels, "one step", "two steps", numbers=True))


def step_panels(comparison: Comparison) -> dict[str, dict[str, dict[MethodInfo, Pair]]]:
    """ECE and accuracy after one and two steps, averaged over the data sets on which a method has both."""
    panels: dict[str, dict[str, dict[MethodInfo, Pair]]] = {"ECE (%)": {"": {}}, "accuracy (%)": {"": {}}}
    for method in dict.fromkeys(replace(row, variant="") for row in comparison.rows):
        one, two = replace(method, variant="1 step"), replace(method, variant="2 steps")
        both = [column for column in comparison.columns if {(one, column), (two, column)} <= comparison.cells.keys()]
        for title, metric in (("ECE (%)", "ece"), ("accuracy (%)", "accuracy")) if both else ():
            means = [100 * comparison.mean(row, both, metric) for row in (one, two)]
            panels[title][""][look(comparison, method)] = Pair(*means)
    return panels if panels["ECE (%)"][""] else {}


def lambda_figure(
    comparison: Comparison, column: Column, sweeps: Mapping[MethodInfo, Mapping[float, Point]],
    others: Mapping[MethodInfo, Point], suffix: str = "",
) -> NamedFigure:
    """The accuracy–ECE plane: swept methods as paths, the others as marks."""
    name = comparison.column_label(column)
    words = f"Accuracy and ECE over λ, {name}, {comparison.backbone_label}; lower right is best."
    return captioned(comparison, f"lambda_{_slug(name)}{suffix}", words, draw_plane(name, sweeps, others), [column])


def lambda_points(comparison: Comparison, column: Column) -> dict[MethodInfo, dict[float, Point]]:
    sweeps: dict[MethodInfo, dict[float, Point]] = {}
    for row, cell in comparison.cells_on(column):
        weight = cell[0].run.settings.get(f"TRAINER.{branch_of(row.method)}.LAMBDA")
        if isinstance(weight, int | float):
            sweeps.setdefault(look(comparison, replace(row, variant="")), {})[float(weight)] = point(cell)
    return sweeps


def other_points(
    comparison: Comparison, column: Column, sweeps: Mapping[MethodInfo, object],
) -> dict[MethodInfo, Point]:
    """The rows of the methods that are not swept."""
    swept = {method.name for method in sweeps}
    return {look(comparison, row): point(cell) for row, cell in comparison.cells_on(column)
            if method_info(row.method).name not in swept}


def prompt_figure(comparison: Comparison, column: Column, suffix: str = "") -> NamedFigure:
    name = comparison.column_label(column)
    words = f"ECE by initial prompt on {name}, {comparison.backbone_label}."
    figure = draw_prompts(name, prompt_errors(comparison, column))
    return captioned(comparison, f"prompts_{_slug(name)}{suffix}", words, figure, [column])


def prompt_errors(comparison: Comparison, column: Column) -> dict[str, dict[MethodInfo, float]]:
    """ECE in percent by prompt and method."""
    errors: dict[str, dict[MethodInfo, float]] = {}
    for row, cell in comparison.cells_on(column):
        prompt = str(cell[0].run.settings.get("PROMPT.CTX_INIT", ""))
        errors.setdefault(prompt, {})[look(comparison, replace(row, variant=""))] = point(cell).ece
    return errors


def pair_figures(
    comparison: Comparison, column: Column, similarity: Similarity, methods: Sequence[str] = (), suffix: str = "",
) -> Iterator[NamedFigure]:
    """The mistakes of some methods, or of all, by pair of classes; none if the similarity of the classes is unknown or
    there are too many of them."""
    data = {
        look(comparison, row): errors for row, cell in comparison.cells_on(column)
        if (not methods or method_key(row.method) in methods) and 2 <= cell[0].run.results["classes"] <= MAX_CLASSES
        and (errors := pair_errors_of(cell, similarity))
    }
    if data:
        name = comparison.column_label(column)
        words = (f"Mistakes of {' and '.join(method.label for method in data)} on {name}, "
                 f"{comparison.backbone_label}, by pair of classes: the confidence of mistaking one class for another, "
                 "by the similarity of the two for zero-shot CLIP. Circles: by their number; dashed: the mean.")
        figure = draw_pair_errors(data, name)
        yield captioned(comparison, f"class_pairs_{_slug(name)}{suffix}", words, figure, [column], seeds=False)


def pair_errors_of(cell: Sequence[Measured], similarity: Similarity) -> PairErrors | None:
    """Mistakes of a cell's first run by pair of classes; None if the similarity of its classes is unknown."""
    matrix = similarity(cell[0].run)
    if matrix is None:
        return None
    predictions = cell[0].run.load_predictions()
    return pair_errors(predictions.logits, predictions.label, matrix)


def stream_figures(comparison: Comparison, column: Column, suffix: str = "") -> Iterator[NamedFigure]:
    """Accuracy and ECE over the stream of the online methods, with zero-shot in the first one's order; none if there is
    no online method."""
    curves: dict[str, tuple[str, Running]] = {}
    for row, (first, *_) in comparison.cells_on(column):
        position = first.run.load_predictions().position if first.run.online else None
        if position is not None:
            shown = [(row.label, row.method, first.tuned)]
            for label, method, top in shown if curves else [("Zero-shot", ZERO_SHOT, first.zero_shot), *shown]:
                curves[label] = method, running(top.confidence, top.correct, position, comparison.bins)
    if curves:
        name, window = comparison.column_label(column), next(iter(curves.values()))[1].window
        words = (f"Over the stream, {name}, {comparison.backbone_label}: accuracy and ECE of the last {window:,} "
                 "images with 95 % intervals (bootstrap). The ECE of few images is higher by chance than that of all.")
        figure = draw_stream(curves, name)
        yield captioned(comparison, f"over_time_{_slug(name)}{suffix}", words, figure, [column], seeds=False)


def plane_figure(comparison: Comparison, columns: Sequence[Column], name: str) -> NamedFigure:
    """Accuracy against ECE, both averaged over these columns."""
    points = {
        look(comparison, row): Point(*(100 * comparison.mean(row, columns, metric) for metric in ("accuracy", "ece")))
        for row in comparison.rows_on(columns)
    }
    title = comparison.column_label(columns[0]) if len(columns) == 1 else f"average of {len(columns)} data sets"
    words = (f"Accuracy against ECE, {title}, {comparison.backbone_label}; lower right is best. A dashed line joins "
             "the methods that no other beats in both, if there are several.")
    return captioned(comparison, name, words, draw_plane(title, {}, points), columns)


def point(cell: Sequence[Measured]) -> Point:
    """Accuracy and ECE in percent, means over the seeds of a cell."""
    return Point(*(100 * mean_over_seeds(cell, metric) for metric in ("accuracy", "ece")))


def _slug(text: str) -> str:
    """A label as a part of a file name, which may have 255 bytes."""
    slug = re.sub(r"\W+", "_", text.lower(), flags=re.ASCII).strip("_") or "data"
    return slug if len(slug) <= 100 else f"{slug[:100]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"
