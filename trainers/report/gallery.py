"""Which figures a set of runs allows, and their data: pure arrangement, drawing is done by the figure modules."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
from PIL.Image import Image

from ..functional.arrays import Array
from ..registry import method_info, method_key
from .before_after import change_pictures, no_picture
from .figures import class_pairs
from .figures.comparison import Pair, Point, draw_pairs, draw_prompts, draw_two_panels
from .figures.plane import draw_plane
from .figures.reliability import Diagram, draw_grid, draw_selective, selection
from .figures.reliability import diagram as diagram_of
from .grid import Column, Comparison, Row
from .measure import Measured
from .picture import Picture, attempted, cells_of, in_percent, slug
from .reading import Run

PAIR_METHODS = ("otpt", "soc")  # whose mistakes the paper sets side by side
MOST_CLASSES_OF_PAIRS = 400  # beyond that the figure is a cloud


def pictures(
    comparisons: Sequence[Comparison], similarity: Callable[[Run], Array | None],
    read_picture: Callable[[Run, int], Image | None] = no_picture,
) -> Iterator[Picture]:
    """All figures, one after the other."""
    for number, comparison in enumerate(c for c in comparisons if not c.swept):
        suffix = f"_{number + 1}" if number else ""
        swept = [c for c in comparisons if c.swept and c.backbone == comparison.backbone]
        for make in (
            *_main_pictures(comparison, suffix, similarity), *change_pictures(comparison, suffix, read_picture),
            *_sweep_pictures(comparison, swept, suffix),
        ):
            yield from attempted(make)


def _main_pictures(
    comparison: Comparison, suffix: str, similarity: Callable[[Run], Array | None],
) -> Iterator[Callable[[], Iterable[Picture]]]:
    yield lambda: [reliability_picture(comparison, f"reliability_grid{suffix}")]
    common = comparison.common_columns()
    if len(common) > 1:
        yield lambda: [selective_picture(comparison, common, f"selective_all{suffix}")]
    for column in comparison.main_columns():
        name = f"selective_{slug(comparison.column_label(column))}{suffix}"
        yield lambda column=column, name=name: [selective_picture(comparison, [column], name)]
    yield lambda: sals_pictures(comparison, f"sals{suffix}")
    for column in comparison.main_columns():
        yield lambda column=column: pair_pictures(comparison, column, similarity, PAIR_METHODS, suffix)


def _sweep_pictures(
    main: Comparison, swept: Sequence[Comparison], suffix: str,
) -> Iterator[Callable[[], Iterable[Picture]]]:
    for comparison in swept:
        if comparison.swept == "TTA.STEPS":
            yield lambda comparison=comparison: step_pictures(comparison, suffix)
        if comparison.swept == "PROMPT.CTX_INIT":
            for column in comparison.columns:
                yield lambda comparison=comparison, column=column: [prompt_picture(comparison, column, suffix)]
    weights = [comparison for comparison in swept if comparison.swept.endswith(".LAMBDA")]
    for column in dict.fromkeys(column for comparison in weights for column in comparison.columns):
        sweeps = {}
        for comparison in weights:
            sweeps.update(lambda_points(comparison, column))
        others = {
            row.method: point(cell) for row in main.rows if row.method not in sweeps
            for at, cell in cells_of(main, row) if at == column
        }
        yield lambda column=column, sweeps=sweeps, others=others: [
            lambda_picture(main, column, sweeps, others, suffix)
        ]


def reliability_picture(comparison: Comparison, name: str) -> Picture:
    """The grid of reliability diagrams, method by data set."""
    label = comparison.column_label
    rows = {
        row.method: {label(column): diagram(cell, label(column)) for column, cell in cells_of(comparison, row)}
        for row in comparison.rows
    }
    caption = (
        f"Reliability, {comparison.backbone}, {comparison.bins} bins, first seed of each run. Red hatching above a bar "
        f"is over-confidence; the strip shows where the samples lie. {comparison.images()}"
    )
    return Picture(name, caption, draw_grid(rows))


def selective_picture(comparison: Comparison, columns: Sequence[Column], name: str) -> Picture:
    """Selective accuracy of all methods that have these columns, the columns' images taken together."""
    series = {}
    for row in comparison.rows_on(columns):
        outcomes = [comparison.cells[row, column][0].tuned for column in columns]
        series[row.method] = selection(
            np.concatenate([o.confidence for o in outcomes]), np.concatenate([o.correct for o in outcomes]),
        )
    title = comparison.column_label(columns[0]) if len(columns) == 1 else f"{len(columns)} data sets together"
    caption = (
        f"Selective accuracy, {title}, {comparison.backbone}: how many predictions above a threshold are right? "
        f"{comparison.images(columns)}{comparison.of_first_seed}"
    )
    return Picture(name, caption, draw_selective(series, title))


def sals_pictures(comparison: Comparison, name: str) -> Iterator[Picture]:
    groups = sals_groups(comparison)
    if groups:
        caption = f"ECE with and without SaLS, {comparison.backbone}. Accuracy is the same. {comparison.images()}"
        yield Picture(name, caption, draw_pairs(groups, "ECE (%)", "plain", "with SaLS"))


def step_pictures(comparison: Comparison, suffix: str = "") -> Iterator[Picture]:
    if panels := step_panels(comparison):
        caption = f"One against two steps, {comparison.backbone}; hatched: two steps. {comparison.images()}"
        yield Picture(f"steps{suffix}", caption, draw_two_panels(panels, "one step", "two steps"))


def lambda_picture(
    comparison: Comparison, column: Column, sweeps: Mapping[str, Mapping[float, Point]], others: Mapping[str, Point],
    suffix: str = "",
) -> Picture:
    """The accuracy–ECE plane: swept methods as paths, the others as marks."""
    name = comparison.column_label(column)
    caption = (
        f"Accuracy and ECE over λ, {name}, {comparison.backbone}; lower right is best. {comparison.images([column])}"
    )
    return Picture(f"lambda_{slug(name)}{suffix}", caption, draw_plane(name, sweeps, others))


def prompt_picture(comparison: Comparison, column: Column, suffix: str = "") -> Picture:
    name = comparison.column_label(column)
    caption = f"ECE by initial prompt on {name}, {comparison.backbone}. {comparison.images([column])}"
    picture = draw_prompts(name, prompt_errors(comparison, column))
    return Picture(f"prompts_{slug(name)}{suffix}", caption, picture)


def diagram(cell: Sequence[Measured], title: str) -> Diagram:
    """The reliability diagram of a cell's first seed."""
    outcome = cell[0].tuned
    return diagram_of(title, cell[0].run.trainer, outcome.confidence, outcome.correct, cell[0].bins)


def point(cell: list[Measured]) -> Point:
    return Point(in_percent(cell, "accuracy"), in_percent(cell, "ece"))


def sals_groups(comparison: Comparison) -> dict[str, dict[str, Pair]]:
    """ECE without and with SaLS by data set, for tuned methods; an average last, where there are several sets."""
    tuned = [
        row for row in comparison.rows
        if method_info(row.method).tuned and all(m.run.has_zero_shot for _, cell in cells_of(comparison, row) for m in cell)
    ]
    groups = {}
    for column in comparison.columns:
        pairs = {
            row.method: Pair(in_percent(cell, "ece"), in_percent(cell, "ece_sals"))
            for row in tuned for at, cell in cells_of(comparison, row) if at == column
        }
        if pairs:
            groups[comparison.column_label(column)] = pairs
    columns = comparison.common_columns()
    common = [comparison.column_label(column) for column in columns]
    if len(common) > 1 and tuned:
        groups["Average"] = {
            row.method: Pair(*(
                float(np.mean([getattr(groups[name][row.method], side) for name in common]))
                for side in ("before", "after")
            ))
            for row in comparison.rows_on(columns) if row in tuned
        }
    return groups


def step_panels(comparison: Comparison) -> dict[str, dict[str, Pair]]:
    """Accuracy and ECE after one and two steps, averaged over the data sets on which a method has both."""
    panels = {"ECE (%)": {}, "accuracy (%)": {}}
    for method in dict.fromkeys(row.method for row in comparison.rows):
        one, two = (dict(cells_of(comparison, Row(method, name))) for name in ("1 step", "2 steps"))
        both = [column for column in one if column in two]
        for title, metric in (("ECE (%)", "ece"), ("accuracy (%)", "accuracy")):
            if both:
                sides = (float(np.mean([in_percent(cells[column], metric) for column in both])) for cells in (one, two))
                panels[title][method] = Pair(*sides)
    return panels if panels["ECE (%)"] else {}


def lambda_points(comparison: Comparison, column: Column) -> dict[str, dict[float, Point]]:
    sweeps: dict[str, dict[float, Point]] = {}
    for row in comparison.rows:
        if (row, column) in comparison.cells:
            cell = comparison.cells[row, column]
            sweeps.setdefault(row.method, {})[cell[0].run.weight] = point(cell)
    return sweeps


def prompt_errors(comparison: Comparison, column: Column) -> dict[str, dict[str, float]]:
    """ECE in percent by prompt and method."""
    errors: dict[str, dict[str, float]] = {}
    for row in comparison.rows:
        if (row, column) in comparison.cells:
            cell = comparison.cells[row, column]
            errors.setdefault(cell[0].run.prompt, {})[row.method] = in_percent(cell, "ece")
    return errors


def pair_pictures(
    comparison: Comparison, column: Column, similarity: Callable[[Run], Array | None],
    methods: Sequence[str] = (), suffix: str = "",
) -> Iterator[Picture]:
    """The mistakes of some methods, or of all, by pair of classes; nothing where it cannot be told how alike they
    are, or where the classes are too many to be seen."""
    cells = {
        row.method: cell for row in comparison.rows if not methods or method_key(row.method) in methods
        for at, cell in cells_of(comparison, row) if at == column
    }
    data = {
        method: errors for method, cell in cells.items()
        if cell[0].run.results["classes"] in range(2, MOST_CLASSES_OF_PAIRS + 1)
        and (errors := pair_errors_of(cell, similarity)) is not None
    }
    if data:
        name = comparison.column_label(column)
        caption = (
            f"Mistakes of {' and '.join(method_info(method).label for method in data)} on {name}, {comparison.backbone}, by pair of classes:"
            " how sure of itself is the model when it takes one class for another, and how alike are the two to "
            f"zero-shot CLIP? {comparison.images([column])}{comparison.of_first_seed}"
        )
        yield Picture(f"class_pairs_{slug(name)}{suffix}", caption, class_pairs.draw_pair_errors(data, name))


def pair_errors_of(
    cell: Sequence[Measured], similarity: Callable[[Run], Array | None],
) -> class_pairs.PairErrors | None:
    """Mistakes of a cell's first run by pair of classes; None without the weights that tell how alike classes are."""
    matrix = similarity(cell[0].run)
    if matrix is None:
        return None
    predictions = cell[0].run.load_predictions()
    return class_pairs.pair_errors(predictions.logits, predictions.label, matrix)
