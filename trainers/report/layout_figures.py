"""The figures that a layout names."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .arrange import by_backbone
from .figures.select import (
    NamedFigure,
    lambda_figures,
    pair_figures,
    prompt_figure,
    reliability_figure,
    sals_figures,
    selective_figure,
    severity_figures,
    skip_on_error,
    step_figures,
    stream_figures,
)
from .grid import Grid
from .layout import Layout
from .make_grid import grid_of, select, value_of
from .measure import Measured
from .spec_tables import by_dataset, grid_texts

# Every function that makes figures takes the test runs and the layout.
MakeFigures = Callable[[Sequence[Measured], Layout], Iterator[NamedFigure]]
ORDER = "TEST.ORDER"


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
    chosen = select(measured, lambda record: record.data["dataset"] in main)
    for grid in grids(chosen, layout):
        yield reliability_figure(grid, "reliability_main")
    for grid in grids(measured, layout):
        yield reliability_figure(grid, "reliability_all")


def sals(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
    """ECE of the tuned methods without and with SaLS."""
    for grid in grids(measured, layout):
        yield from sals_figures(grid, "sals")


def selective(measured: Sequence[Measured], layout: Layout) -> Iterator[NamedFigure]:
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
    "reliability": reliability, "sals": sals, "selective": selective, "class_pairs": class_pairs,
    "lambda": plane_over_lambda, "steps": steps, "prompts": prompts, "severity": severity,
    "streams": streams,
}
