"""Which figures the runs allow, or a layout names, with their data and captions.

Other files in this folder draw them.
"""
from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from ....datasets.utils.cli import counted
from ....datasets.utils.errors import one_line
from ...config.table import AVERAGE
from ...functional.arrays import Array, ArrayLike
from ...functional.calibration import selective
from ...registry import ZERO_SHOT, MethodInfo, branch_of, method_info, method_key
from ..arrange import by_backbone
from ..grid import Column, Grid, Row, grid_of, largest_of_each_family, value_of
from ..layout import Layout
from ..layout_tables import by_dataset, grid_texts
from ..measure import Measured
from ..words import images_fact, listed
from .class_pairs import draw_pair_errors, pair_errors_of
from .comparison import (
    BeforeAfter,
    Point,
    Running,
    draw_pairs,
    draw_plane,
    draw_prompts,
    draw_severities,
    draw_stream,
    mean_point,
    running,
)
from .reliability import THRESHOLDS, Diagram, diagram, draw_grid, draw_selective
from .style import NamedFigure, lighter

logger = logging.getLogger(__name__)
PAIR_METHODS = ("otpt", "soc")  # whose mistakes the SoC paper compares
LONGEST_SLUG = 100  # letters; a file name may have 255 bytes
ORDER = "TEST.ORDER"


def skip_on_error(
    make: Callable[..., NamedFigure | Iterable[NamedFigure]], *args: object,
) -> Iterator[NamedFigure]:
    """The figures that `make(*args)` returns.

    If it raises an exception, there is a warning instead of the figure, so that a report keeps its
    tables and its other figures.
    """
    try:
        figures = make(*args)
        if isinstance(figures, NamedFigure):
            yield figures
        else:
            yield from figures
    except Exception as error:
        logger.warning("a figure is left out: %s", one_line(error, 200),
                       exc_info=logger.isEnabledFor(logging.DEBUG))


def legend_style(grid: Grid, row: Row, label: str = "") -> MethodInfo:
    """How a figure shows a row: its label, and its method's colour, lighter for further settings.

    Args:
        label: Label in place of the row's own; "" keeps that.
    """
    info = method_info(row.method)
    bases: list[str] = []  # labels of the method's rows
    for other in grid.rows:
        if other.method == row.method and other.base not in bases:
            bases.append(other.base)
    fraction = bases.index(row.base) / len(bases)  # 0 for the method's first row
    colour = info.colour
    if fraction:
        colour = lighter(colour, 0.8 * fraction)
    return replace(info, label=label or row.label, colour=colour)


def captioned(
    grid: Grid, name: str, words: str, figure: Figure, columns: Sequence[Column] = (),
    all_seeds: bool = True,
) -> NamedFigure:
    """A figure whose caption has test images and bins, and says if it shows one of several seeds.

    Args:
        words: How the caption begins.
        columns: The columns whose images it shows; () for all.
        all_seeds: Whether it shows the mean of all seeds, or the first one.
    """
    images = images_fact(grid.counts(columns))
    caption = f"{words} {images}. {counted(grid.bins, 'bin')}."
    if not all_seeds and any(len(cell) > 1 for cell in grid.cells.values()):
        caption += " First seed of each."
    return NamedFigure(name, caption, figure)


def report_figures(grids: Sequence[Grid]) -> Iterator[NamedFigure]:
    """All figures of a report, each drawn when it is asked for."""
    number = 0
    for main in grids:
        if main.stated:
            continue
        number += 1
        suffix = f"_{number}" if number > 1 else ""
        yield from main_figures(main, suffix)
        sweeps = [grid for grid in grids if grid.stated and grid.backbone == main.backbone]
        yield from sweep_figures(main, sweeps, suffix)


def main_figures(grid: Grid, suffix: str) -> Iterator[NamedFigure]:
    """The figures of a main table."""
    yield from skip_on_error(reliability_figure, grid, f"reliability_grid{suffix}")
    common = grid.common_columns()
    if len(common) > 1:
        yield from skip_on_error(selective_figure, grid, common, f"selective_all{suffix}")
    for column in grid.main_columns():
        name = f"selective_{slug(grid.column_label(column))}{suffix}"
        yield from skip_on_error(selective_figure, grid, [column], name)
    yield from skip_on_error(sals_figures, grid, f"sals{suffix}")
    for column in grid.main_columns():
        yield from skip_on_error(pair_figures, grid, column, PAIR_METHODS, suffix)
        yield from skip_on_error(stream_figures, grid, column, suffix)
    if common and len(grid.rows) > 2:
        yield from skip_on_error(plane_figure, grid, common, f"plane{suffix}")


def sweep_figures(main: Grid, sweeps: Sequence[Grid], suffix: str) -> Iterator[NamedFigure]:
    """The figures of the swept settings of a backbone.

    Args:
        sweeps: For each swept setting the runs that differ in it.
    """
    over_lambda = []  # the sweeps over λ, one for each method
    for grid in sweeps:
        key = grid.stated[0]
        if key == "TTA.RESET":
            for column in grid.columns:
                yield from skip_on_error(stream_figures, grid, column, f"_reset{suffix}")
        if key == "TTA.STEPS":
            yield from skip_on_error(step_figures, grid, suffix)
        if key == "PROMPT.CTX_INIT":
            for column in grid.columns:
                yield from skip_on_error(prompt_figure, grid, column, suffix)
        if key.endswith(".LAMBDA"):
            over_lambda.append(grid)
    drawn = set()
    for grid in over_lambda:
        for column in grid.columns:
            label = grid.column_label(column)
            if label not in drawn:
                drawn.add(label)
                yield from skip_on_error(
                    common_lambda_figure, main, over_lambda, grid, column, suffix)


def common_lambda_figure(
    main: Grid, over_lambda: Sequence[Grid], grid: Grid, column: Column, suffix: str,
) -> NamedFigure:
    """The accuracy–ECE plane of all sweeps over λ on one data set.

    Args:
        main: The runs with the main table's settings, which has the other methods.
        over_lambda: The runs of each sweep.
        grid: The sweep that has the column.
    """
    paths: dict[MethodInfo, dict[float, Point]] = {}
    for other in over_lambda:
        other_column = column_in(other, column)
        if other_column is not None:
            paths |= lambda_points(other, other_column)
    others: dict[MethodInfo, Point] = {}
    main_column = column_in(main, column)
    if main_column is not None:
        others = other_points(main, main_column, paths)
    return lambda_figure(grid, column, paths, others, suffix)


def column_in(grid: Grid, column: Column) -> Column | None:
    """The column of a grid that has the images of a column of another grid; None without one.

    There is at most one, because runs on the same images are in one column of a grid.

    Args:
        column: A column of another grid.
    """
    for candidate in grid.columns:
        if candidate.record.is_same(column.record, "column"):
            return candidate
    return None


def reliability_figure(grid: Grid, name: str) -> NamedFigure:
    """The grid of reliability diagrams, methods × data sets.

    Args:
        grid: The runs, of which the first seed is drawn.
    """
    rows: dict[MethodInfo, dict[str, Diagram]] = {}
    for row in grid.rows:
        rows[legend_style(grid, row)] = {}
    for (row, column), cell in grid.cells.items():
        panel = diagram(row.method, *cell[0].tuned, cell[0].bins)
        rows[legend_style(grid, row)][grid.column_label(column)] = panel
    words = (f"Reliability, {grid.heading}, first seed of each run. Red hatching "
             "above a bar is over-confidence; the strip shows the density of the samples.")
    return captioned(grid, name, words, draw_grid(rows))


def selective_figure(grid: Grid, columns: Sequence[Column], name: str) -> NamedFigure:
    """Selective accuracy of all methods that have these columns, the columns' images together."""
    series = {}
    for row in grid.rows_on(columns):
        series[legend_style(grid, row)] = selective_on(grid, row, columns, THRESHOLDS)
    title = f"{len(columns)} data sets together"
    if len(columns) == 1:
        title = grid.column_label(columns[0])
    words = (f"Selective accuracy, {title}, {grid.heading}: how many predictions above a threshold "
             "are right?")
    return captioned(grid, name, words, draw_selective(series, title), columns, all_seeds=False)


def selective_on(
    grid: Grid, row: Row, columns: Sequence[Column], thresholds: ArrayLike,
) -> tuple[Array, Array]:
    """Accuracy and share of the images above each threshold, over the images of all columns.

    Args:
        row: The method, of which the first seed is taken.
        thresholds: Thresholds of confidence, (T,).

    Returns:
        Accuracy and share as fractions, (T,) each.
    """
    confidences = []
    corrects = []
    for column in columns:
        first = grid.cells[row, column][0].tuned
        confidences.append(first.confidence)
        corrects.append(first.correct)
    return selective(np.concatenate(confidences), np.concatenate(corrects), thresholds)


def sals_figures(grid: Grid, name: str) -> Iterator[NamedFigure]:
    """ECE with and without SaLS by data set; none if no row has zero-shot predictions."""
    groups = sals_groups(grid)
    if groups:
        words = f"ECE with and without SaLS, {grid.heading}. Accuracy is the same."
        yield captioned(grid, name, words, draw_pairs({"ECE (%)": groups}, "plain", "with SaLS"))


def sals_groups(grid: Grid) -> dict[str, dict[MethodInfo, BeforeAfter]]:
    """ECE of the tuned methods without and with SaLS by data set; the average last."""
    sets: dict[str, Sequence[Column]] = {}
    for column in grid.columns:
        sets[grid.column_label(column)] = [column]
    common = grid.common_columns()
    if len(common) > 1:
        sets[AVERAGE] = common
    groups = {}
    for label, columns in sets.items():
        pairs = {}
        for row in grid.rows_on(columns):
            if method_info(row.method).tuned and has_sals(grid, row):
                before = 100 * grid.mean(row, columns, "ece")
                after = 100 * grid.mean(row, columns, "ece_sals")
                pairs[legend_style(grid, row)] = BeforeAfter(before, after)
        if pairs:
            groups[label] = pairs
    return groups


def has_sals(grid: Grid, row: Row) -> bool:
    """Whether all runs of a row have what SaLS needs: their own logits and zero-shot's.

    Runs of other trainers lack the latter, copies without logits both.
    """
    for (other, _), cell in grid.cells.items():
        if other is row and not all("ece_sals" in measured.metrics for measured in cell):
            return False
    return True


def step_figures(grid: Grid, suffix: str = "") -> Iterator[NamedFigure]:
    """ECE and accuracy after one and after two steps; no figure if no method was run with both.

    Args:
        grid: The runs with several numbers of steps.
    """
    rows, columns = rows_of_steps(grid)
    if columns:
        words = f"One against two steps, {grid.heading}; hatched: two steps."
        if len(columns) > 1:
            words += " Averages over the data sets."
        figure = draw_pairs(step_panels(grid, rows, columns), "one step", "two steps", numbers=True)
        yield captioned(grid, f"steps{suffix}", words, figure, columns)


def rows_of_steps(grid: Grid) -> tuple[dict[str, tuple[Row, Row]], list[Column]]:
    """The rows after one and after two steps of each method, and the data sets to average.

    These are the data sets on which all methods have both. If there are none, it is the one on
    which most methods have both, and the other methods are left out.
    """
    by_base: dict[str, dict[object, Row]] = {}
    for row in grid.rows:
        by_base.setdefault(row.base, {})[row.values.get("TTA.STEPS")] = row
    rows: dict[str, tuple[Row, Row]] = {}
    columns_of: dict[str, list[Column]] = {}
    for base, by_steps in by_base.items():
        if 1 in by_steps and 2 in by_steps:
            both = (by_steps[1], by_steps[2])
            if grid.columns_with(both):
                rows[base] = both
                columns_of[base] = grid.columns_with(both)
    common = []
    for column in grid.columns:
        if rows and all(column in columns for columns in columns_of.values()):
            common.append(column)
    if rows and not common:
        def methods_on(column: Column) -> int:
            return sum(column in columns for columns in columns_of.values())

        most = max(grid.columns, key=lambda column: (methods_on(column), column.n))
        common = [most]
        rows = {base: both for base, both in rows.items() if most in columns_of[base]}
    return rows, largest_of_each_family(common)


def step_panels(
    grid: Grid, rows: Mapping[str, tuple[Row, Row]], columns: Sequence[Column],
) -> dict[str, dict[str, dict[MethodInfo, BeforeAfter]]]:
    """ECE and accuracy after one and two steps, averaged over data sets.

    Args:
        rows: The rows after one and two steps, by the label of the method.
    """
    panels: dict[str, dict[str, dict[MethodInfo, BeforeAfter]]] = {
        "ECE (%)": {"": {}}, "accuracy (%)": {"": {}}}
    for base, (one_step, two_steps) in rows.items():
        style = legend_style(grid, one_step, base)
        for title, metric in (("ECE (%)", "ece"), ("accuracy (%)", "accuracy")):
            before = 100 * grid.mean(one_step, columns, metric)
            after = 100 * grid.mean(two_steps, columns, metric)
            panels[title][""][style] = BeforeAfter(before, after)
    return panels


def lambda_figure(
    grid: Grid, column: Column, sweeps: Mapping[MethodInfo, Mapping[float, Point]],
    others: Mapping[MethodInfo, Point], suffix: str = "",
) -> NamedFigure:
    """The accuracy–ECE plane: swept methods as paths, the others as marks.

    Args:
        sweeps: For each swept method its points by λ.
        others: The points of the other methods.
    """
    name = grid.column_label(column)
    words = f"Accuracy and ECE over λ, {name}, {grid.heading}; lower right is best."
    figure = draw_plane(name, sweeps, others)
    return captioned(grid, f"lambda_{slug(name)}{suffix}", words, figure, [column])


def lambda_points(grid: Grid, column: Column) -> dict[MethodInfo, dict[float, Point]]:
    """Accuracy and ECE of each swept method by its λ."""
    sweeps: dict[MethodInfo, dict[float, Point]] = {}
    for row, cell in grid.cells_on(column):
        weight = row.values.get(f"TRAINER.{branch_of(row.method)}.LAMBDA")
        if isinstance(weight, int | float):
            style = legend_style(grid, row, row.base)
            sweeps.setdefault(style, {})[float(weight)] = mean_point(cell)
    return sweeps


def other_points(
    grid: Grid, column: Column, sweeps: Mapping[MethodInfo, object],
) -> dict[MethodInfo, Point]:
    """The rows of the methods that are not swept."""
    swept = {method.name for method in sweeps}
    points = {}
    for row, cell in grid.cells_on(column):
        if method_info(row.method).name not in swept:
            points[legend_style(grid, row)] = mean_point(cell)
    return points


def lambda_figures(grid: Grid) -> Iterator[NamedFigure]:
    """Accuracy against ECE over λ, for each data set of an experiment."""
    for column in grid.columns:
        paths = {}
        for style, points in lambda_points(grid, column).items():
            if len(points) > 1:
                paths[style] = points
        yield lambda_figure(grid, column, paths, other_points(grid, column, paths))


def prompt_figure(grid: Grid, column: Column, suffix: str = "") -> NamedFigure:
    """ECE by initial prompt and method on one data set.

    Args:
        grid: The runs with several initial prompts.
    """
    name = grid.column_label(column)
    words = f"ECE by initial prompt on {name}, {grid.heading}."
    figure = draw_prompts(name, prompt_errors(grid, column))
    return captioned(grid, f"prompts_{slug(name)}{suffix}", words, figure, [column])


def prompt_errors(grid: Grid, column: Column) -> dict[str, dict[MethodInfo, float]]:
    """ECE in percent by prompt and method."""
    errors: dict[str, dict[MethodInfo, float]] = {}
    for row, cell in grid.cells_on(column):
        prompt = str(row.values.get("PROMPT.CTX_INIT") or "")
        errors.setdefault(prompt, {})[legend_style(grid, row, row.base)] = mean_point(cell).ece
    return errors


def pair_figures(
    grid: Grid, column: Column, methods: Sequence[str] = (), suffix: str = "",
) -> Iterator[NamedFigure]:
    """The mistakes of methods by pair of classes; no figure if no run has what it needs.

    Args:
        methods: Their keys, such as `soc`; () for all.
    """
    data = {}
    for row, cell in grid.cells_on(column):
        if methods and method_key(row.method) not in methods:
            continue
        errors = pair_errors_of(cell[0])
        if errors is not None:
            data[legend_style(grid, row)] = errors
    if data:
        name = grid.column_label(column)
        labels = " and ".join(method.label for method in data)
        words = (
            f"Mistakes of {labels} on {name}, {grid.heading}, by pair of classes: the confidence "
            "of mistaking one class for another, by the similarity of the two for zero-shot CLIP. "
            "Larger circles: more mistakes; dashed: the mean."
        )
        figure = draw_pair_errors(data, name)
        yield captioned(
            grid, f"class_pairs_{slug(name)}{suffix}", words, figure, [column], all_seeds=False
        )


def stream_figures(grid: Grid, column: Column, suffix: str = "") -> Iterator[NamedFigure]:
    """Accuracy and ECE over the stream of images, for the online methods and for zero-shot.

    The zero-shot curve has the images in the order of the first method.
    """
    curves: dict[str, tuple[str, Running]] = {}
    for row, cell in grid.cells_on(column):
        first = cell[0]
        position = stream_position(first)
        if position is None:
            continue
        if not curves:
            curves["Zero-shot"] = (ZERO_SHOT, running(*first.zero_shot, position, grid.bins))
        curves[row.label] = (row.method, running(*first.tuned, position, grid.bins))
    if curves:
        name = grid.column_label(column)
        window = next(iter(curves.values()))[1].window
        words = (
            f"Over the stream, {name}, {grid.heading}: accuracy of the last {window:,} images with "
            "95 % intervals, and their ECE. The ECE of few images is higher by chance than that of "
            "all."
        )
        figure = draw_stream(curves, name)
        yield captioned(
            grid, f"over_time_{slug(name)}{suffix}", words, figure, [column], all_seeds=False
        )


def stream_position(measured: Measured) -> Array | None:
    """The place of each image in the stream of an online run; None for other runs."""
    if not measured.record.online:
        return None
    return measured.run.load_predictions().position


def plane_figure(grid: Grid, columns: Sequence[Column], name: str) -> NamedFigure:
    """Accuracy against ECE, both averaged over these columns."""
    points = {}
    for row in grid.rows_on(columns):
        accuracy = 100 * grid.mean(row, columns, "accuracy")
        points[legend_style(grid, row)] = Point(accuracy, 100 * grid.mean(row, columns, "ece"))
    title = f"average of {len(columns)} data sets"
    if len(columns) == 1:
        title = grid.column_label(columns[0])
    words = (
        f"Accuracy against ECE, {title}, {grid.heading}; lower right is best. A dashed line joins "
        "the methods that no other beats in both, if there are several."
    )
    return captioned(grid, name, words, draw_plane(title, {}, points), columns)


def severity_figures(grid: Grid, name: str, texts: str) -> Iterator[NamedFigure]:
    """ECE and accuracy against the severity, for the corruptions that were run at several.

    A corruption at one severity has one point per method. If it was run on several sets of images,
    the point is of the set that the tables average.

    Args:
        grid: The runs on one data set, at all corruptions and severities.
        texts: Seeds and texts, for the caption.
    """
    columns = grid.main_columns()
    curves: dict[str, dict[MethodInfo, dict[int, Point]]] = {}
    for column in columns:
        corruption = str(column.record.data["corruption"]).replace("_", " ")
        severity = int(column.record.data["severity"])
        for row, cell in grid.cells_on(column):
            by_severity = curves.setdefault(corruption, {}).setdefault(legend_style(grid, row), {})
            by_severity[severity] = mean_point(cell)
    several = {}
    for corruption, methods in curves.items():
        if any(len(points) > 1 for points in methods.values()):
            several[corruption] = methods
    if several:
        sizes = sorted({column.n for column in columns})
        counts = ", ".join(f"{size:,}" for size in sizes)
        words = (
            f"ECE and accuracy against severity, {name}, {grid.heading}, {grid.bins} bins. {texts} "
            f"Test images of each: {counts}."
        )
        left_out = []
        for column in grid.columns:
            if column not in columns:
                left_out.append(grid.column_label(column))
        if left_out:
            words += (
                " Of several sets of images at one severity the one that most methods have is "
                f"drawn, the largest of these. Left out: {listed(left_out)}."
            )
        yield NamedFigure(f"severity_{slug(name)}", words, draw_severities(several))


def slug(text: str) -> str:
    """A label as a part of a file name."""
    name = re.sub(r"\W+", "_", text.lower(), flags=re.ASCII).strip("_") or "data"
    if len(name) <= LONGEST_SLUG:
        return name
    return f"{name[:LONGEST_SLUG]}_{hashlib.sha256(text.encode()).hexdigest()[:6]}"


# Every function that makes figures takes the test runs and the layout.
MakeFigures = Callable[[Sequence[Measured], Layout], Iterator[NamedFigure]]


def layout_figures(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """The figures of a layout. One that cannot be drawn is left out with a warning."""
    for name in layout.figures:
        yield from skip_on_error(FIGURES[name], measured, layout)


def grids(measured: Sequence[Measured], layout: Layout) -> list[Grid]:
    """The runs of each backbone, with labels that state the layout's settings."""
    arranged = []
    for backbone in by_backbone(measured):
        arranged.append(grid_of(backbone.runs, backbone.label, backbone.label, layout.rows))
    return arranged


def reliability(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """Reliability diagrams of the data sets in the paper's main text, then those of all."""
    main = layout.study.get("main", [])
    chosen = [run for run in measured if run.record.data["dataset"] in main]
    for grid in grids(chosen, layout):
        yield reliability_figure(grid, "reliability_main")
    for grid in grids(measured, layout):
        yield reliability_figure(grid, "reliability_all")


def sals(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """ECE of the tuned methods without and with SaLS."""
    for grid in grids(measured, layout):
        yield from sals_figures(grid, "sals")


def selective_together(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """Selective accuracy on the images of all common data sets together."""
    for grid in grids(measured, layout):
        columns = grid.common_columns()
        if columns:
            yield selective_figure(grid, columns, "selective")


def class_pairs(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """The mistakes of all methods by pair of classes, for each data set."""
    for grid in grids(measured, layout):
        for column in grid.columns:
            yield from pair_figures(grid, column)


def plane_over_lambda(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """Accuracy and ECE over λ, for each data set."""
    for grid in grids(measured, layout):
        yield from lambda_figures(grid)


def steps(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """ECE and accuracy after one and after two steps."""
    for grid in grids(measured, layout):
        yield from step_figures(grid)


def prompts(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """ECE by initial prompt and method, for each data set."""
    for grid in grids(measured, layout):
        for column in grid.columns:
            yield prompt_figure(grid, column)


def severity(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """ECE and accuracy against the severity, for each data set."""
    for name, runs in by_dataset(measured).items():
        for grid in grids(runs, layout):
            yield from severity_figures(grid, name, grid_texts(grid))


def streams(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """For each order and data set the online methods over the stream."""
    by_order: dict[str, list[Measured]] = {}
    for run in measured:
        order = value_of(ORDER, run.record)
        if order is not None:
            by_order.setdefault(str(order), []).append(run)
    for order, runs in by_order.items():
        for grid in grids(runs, layout):
            texts = grid_texts(grid)
            for column in grid.columns:
                for figure in stream_figures(grid, column, f"_{order}"):
                    caption = f"Order of the images: {order}. {figure.caption} {texts}"
                    yield NamedFigure(figure.name, caption, figure.figure)


FIGURES: Mapping[str, MakeFigures] = {
    "reliability": reliability, "sals": sals, "selective": selective_together,
    "class_pairs": class_pairs, "lambda": plane_over_lambda, "steps": steps, "prompts": prompts,
    "severity": severity, "streams": streams,
}
