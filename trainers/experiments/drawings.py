"""Figures of the experiments, by the report's own functions, with the paper's beside them where it has numbers."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from matplotlib.figure import Figure

from ...datasets.base import dataset_label
from ..registry import method_colour, method_label
from ..report import published as paper
from ..report.figures.comparison import Pair, Point, draw_pairs, draw_two_panels
from ..report.figures.style import COLUMN, PAGE, grid_lines, new_figure, styled
from ..report.gallery import (
    Picture,
    lambda_picture,
    lambda_points,
    pair_pictures,
    point,
    prompt_picture,
    reliability_picture,
    sals_pictures,
    selective_picture,
    step_pictures,
)
from ..report.grid import Comparison
from ..report.reading import text_similarity
from .arrange import Material, mean
from .layouts import swept_key

PRINTED = "As the paper prints it; not measured here."


def steps(material: Material) -> Iterator[Picture]:
    for backbone in material.backbones:
        yield from step_pictures(material.comparison(backbone, "TTA.STEPS"))
    if material.compared:
        methods = ("C-TPT", "O-TPT", "SoC")
        panels = {
            title: {method: Pair(printed("vitl", metric, method), printed("vitl_2step", metric, method))
                    for method in methods}
            for title, metric in (("ECE (%)", "ece"), ("accuracy (%)", "accuracy"))
        }
        yield Picture("steps_published", f"Averages of Tables 1 and 9. {PRINTED}",
                      draw_two_panels(panels, "one step", "two steps", "published (Tables 1 and 9)"))


def sals(material: Material) -> Iterator[Picture]:
    for backbone in material.backbones:
        yield from sals_pictures(material.comparison(backbone), "sals")
    if material.compared:
        groups = {
            dataset_label(column): {
                method: Pair(printed("vitl", "ece", method, column), printed("vitl_sals", "ece", method, column))
                for method in ("C-TPT", "O-TPT", "SoC")
            }
            for column in paper.tables()["vitl_sals"]["columns"]
        }
        yield Picture("sals_published", f"Tables 1 and 10. {PRINTED}",
                      draw_pairs(groups, "ECE (%)", "plain", "with SaLS", "published (Tables 1 and 10)"))


def printed(table: str, metric: str, method: str, column: str = paper.AVERAGE) -> float:
    return float(paper.find(table, metric, method, column).value)


def reliability(material: Material) -> Iterator[Picture]:
    main = material.experiment.study.get("main", [])
    for backbone in material.backbones:
        for name, part in (("reliability_main", material.where(lambda run: run.dataset in main)),
                           ("reliability_all", material)):
            if part.found:
                yield reliability_picture(part.comparison(backbone), name)


def selective(material: Material) -> Iterator[Picture]:
    for backbone in material.backbones:
        comparison = material.comparison(backbone)
        if columns := comparison.common_columns():
            yield selective_picture(comparison, columns, "selective")


def class_pairs(material: Material) -> Iterator[Picture]:
    for backbone in material.backbones:
        comparison = material.comparison(backbone)
        for column in comparison.columns:
            yield from pair_pictures(comparison, column, text_similarity)


def prompts(material: Material) -> Iterator[Picture]:
    for backbone in material.backbones:
        comparison = material.comparison(backbone, "PROMPT.CTX_INIT")
        for column in comparison.columns:
            yield prompt_picture(comparison, column)


def weights(material: Material) -> Iterator[Picture]:
    key = swept_key(material.experiment)
    for backbone in material.backbones:
        comparison = material.comparison(backbone, key)
        for column in comparison.columns:
            sweeps = {
                method: points for method, points in lambda_points(comparison, column).items() if len(points) > 1
            }
            references = {
                row.method: point(comparison.cells[row, column]) for row in comparison.rows
                if row.method not in sweeps and (row, column) in comparison.cells
            }
            if material.compared:
                for method, label in (("O-TPT", "O-TPT (published)"), ("SoC", "SoC, λ 30 (published)")):
                    cells = [paper.find_for_run(m, method, column.dataset, backbone) for m in ("accuracy", "ece")]
                    if all(cells):
                        references[label] = Point(*(float(cell.value) for cell in cells))
            yield lambda_picture(comparison, column, sweeps, references)


def setting(material: Material) -> Iterator[Picture]:
    key = swept_key(material.experiment)
    for backbone in material.backbones:
        comparison = material.comparison(backbone, key)
        if comparison.columns:
            caption = "Bold: average of the data sets; dashed: the other methods' average."
            yield Picture(
                material.experiment.name, f"{material.experiment.title}, {backbone}. {caption} {comparison.images()}",
                draw_setting(comparison, key),
            )


def draw_setting(comparison: Comparison, key: str) -> Figure:
    """Accuracy and ECE by the value of a setting: a thin line for each data set, a bold one for their average."""
    swept = [row for row in comparison.rows if row.variant]
    others = [row for row in comparison.rows if not row.variant]
    common = [column for column in comparison.columns if all((row, column) in comparison.cells for row in swept)]
    with styled():
        figure = new_figure(min(PAGE, COLUMN * 1.9), 2.6)
        for axes, (metric, label) in zip(figure.subplots(1, 2), (("ece", "ECE (%)"), ("accuracy", "accuracy (%)")),
                                         strict=True):
            x = range(len(swept))
            for column in common if len(common) > 1 else ():
                y = [mean(comparison.cells[row, column], metric) for row in swept]
                axes.plot(x, y, linewidth=0.9, alpha=0.75, marker=".", label=comparison.column_label(column))
            average = [np.mean([mean(comparison.cells[row, column], metric) for column in common]) for row in swept]
            axes.plot(x, average, color=method_colour(swept[0].method), linewidth=2.2, marker="o", markersize=4,
                      label="average" if len(common) > 1 else comparison.column_label(common[0]))
            for row in others:
                if all((row, column) in comparison.cells for column in common):
                    value = np.mean([mean(comparison.cells[row, column], metric) for column in common])
                    axes.axhline(value, color=method_colour(row.method), linestyle=(0, (4, 3)), linewidth=1,
                                 label=method_label(row.method))
            axes.set_xticks(list(x), [row.variant for row in swept], rotation=30, ha="right", rotation_mode="anchor")
            axes.set_ylabel(label)
            grid_lines(axes)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center")
        return figure


def stamped(figure: Figure, text: str) -> Figure:
    """The figure with a line of small print below it, which cannot be overlooked or cut off by accident."""
    with styled():
        figure.draw_without_rendering()  # lays out; from here on everything only moves up
        figure.set_layout_engine("none")
        width, height = figure.get_size_inches()
        extra = 0.2
        share = extra / (height + extra)
        boxes = [(axes, axes.get_position()) for axes in figure.axes]
        figure.set_size_inches(width, height + extra)
        for axes, box in boxes:
            axes.set_position([box.x0, share + box.y0 * (1 - share), box.width, box.height * (1 - share)])
        for words in figure.texts:
            words.set_y(share + words.get_position()[1] * (1 - share))
        for legend in figure.legends:
            legend.set_bbox_to_anchor((0, share, 1, 1 - share), transform=figure.transFigure)
        figure.text(0.01, share * 0.3, text, fontsize=6, color="#A52A2A")
        return figure


DRAWINGS: dict[str, Callable[[Material], Iterator[Picture]]] = {
    "steps": steps, "sals": sals, "reliability": reliability, "selective": selective, "class_pairs": class_pairs,
    "prompts": prompts, "lambda": weights, "setting": setting, "scaling": setting,
}
