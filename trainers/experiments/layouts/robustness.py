"""Corruptions and their severity, the order of a stream, and the texts of the classes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ....datasets.base import dataset_info, parse_run_name
from ...registry import backbone_label
from ...report import gallery
from ...report.comparison import Comparison, Row, show_setting
from ...report.figures.comparison import Point, draw_severities
from ...report.gallery import NamedFigure
from ...report.measure import Measured
from ...report.table_model import Table
from ..finished_runs import ANY, FinishedRuns
from ..plan import PlannedRun
from .averages import Cells, averaged, summary
from .results import by_dataset, by_every_setting, by_setting


def grouped(finished: FinishedRuns, key: Callable[[PlannedRun], Any]) -> dict[Any, FinishedRuns]:
    """The runs by a property of theirs; those without it, None, are left out."""
    groups: dict[Any, dict[PlannedRun, Measured]] = {}
    for run, measured in finished.measured.items():
        if key(run) is not None:
            groups.setdefault(key(run), {})[run] = measured
    return {value: replace(finished, measured=group) for value, group in groups.items()}


def texts_note(comparison: Comparison) -> str:
    """The seeds and the texts that the rows of a comparison have used."""
    rows: dict[str, list[str]] = {}
    for row in comparison.rows:
        cells = [m.run for (of, _), cell in comparison.cells.items() if of == row for m in cell]
        texts = dict.fromkeys(str(run.results.get("texts") or f"“{run.settings.get('PROMPT.CTX_INIT')} [class].”")
                              for run in cells)
        rows.setdefault("; ".join(texts), []).append(row.label)
    seeds = sorted({m.run.seed for cell in comparison.cells.values() for m in cell})
    listed = [f"{', '.join(labels)}: {texts}" for texts, labels in rows.items()] if len(rows) > 1 else list(rows)
    words = " | ".join(listed)
    end = "" if words.endswith("”") else "."
    return f"Seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}. Texts: {words}{end}"


def corruption_tables(finished: FinishedRuns) -> Iterator[Table]:
    """For each data set the methods by corruptions, at the highest severity."""
    for name, own in grouped(finished, lambda run: run.dataset_name).items():
        by_severity = grouped(own, lambda run: run.cfg.DATASET.SEVERITY)
        worst_runs = by_severity[worst := max(by_severity)]
        for table, comparison in zip(by_dataset(worst_runs), worst_runs.comparisons(), strict=True):
            names = [parse_run_name(column.dataset)[1].replace("_", " ") for column in comparison.columns]
            yield replace(table, name=f"{table.name}_{name.lower()}", columns=[*names, *table.columns[len(names) :]],
                          title=f"{table.title}, {dataset_info(name).label} at severity {worst}",
                          notes=[*table.notes, texts_note(comparison)])


def severity_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    """ECE and accuracy against the severity, for the corruptions that were run at several."""
    for name, own in grouped(finished, lambda run: run.dataset_name).items():
        for comparison in own.comparisons():
            curves: dict[str, dict[str, dict[int, Point]]] = {}
            for (row, column), cell in comparison.cells.items():
                _, corruption, severity = parse_run_name(column.dataset)
                of_method = curves.setdefault(corruption.replace("_", " "), {}).setdefault(row.method, {})
                of_method[severity] = gallery.point(cell)
            shown = {corruption: found for corruption, found in curves.items()
                     if any(len(points) > 1 for points in found.values())}
            if shown:
                label = dataset_info(name).label
                words = (f"ECE and accuracy against severity, {label}, {comparison.backbone_label}, "
                         f"{comparison.bins} bins. {texts_note(comparison)}")
                counts = sorted({column.n for column in comparison.columns})
                yield NamedFigure(f"severity_{name.lower()}", f"{words} Test images of each: "
                                  f"{', '.join(f'{n:,}' for n in counts)}.", draw_severities(shown))


def stream_tables(finished: FinishedRuns) -> list[Table]:
    """A row for each method and order."""
    key = finished.experiment.swept_key
    return [replace(table, notes=[*table.notes, texts_note(comparison)])
            for table, comparison in zip(by_setting(finished), finished.comparisons(key), strict=True)]


def online_tables(finished: FinishedRuns) -> Iterator[Table]:
    """One line per method, the means over the data sets; then each data set. Values that are published per data set
    have rows of their own."""
    for comparison in finished.comparisons(ANY):
        table = summary(finished.experiment, comparison)
        yield replace(table, notes=[*table.notes, texts_note(comparison)])
    yield from by_every_setting(finished)


def stream_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    """For each order and data set the online methods over the stream."""
    key = finished.experiment.swept_key
    for order, own in grouped(finished, lambda run: run.variant.get(key)).items():
        for comparison in own.comparisons():
            for column in comparison.columns:
                for figure in gallery.stream_figures(comparison, column, f"_{order}"):
                    yield replace(figure, caption=f"Order of the images: {order}. {figure.caption} "
                                                  f"{texts_note(comparison)}")


def text_label(run: PlannedRun) -> str:
    """What a run's texts are; descriptions by that word, because each data set has a file of its own."""
    words = ["descriptions" if "DESCRIPTIONS" in key else show_setting(key, value)
             for key, value in run.variant.items()]
    return ", ".join(words) or "initial prompt"


def text_tables(finished: FinishedRuns) -> Iterator[Table]:
    """Methods by texts, averaged over the data sets that all have; then a table for each choice of texts."""
    experiment, by_text = finished.experiment, grouped(finished, text_label)
    for backbone in finished.backbones:
        cells: Cells = {}
        for run, measured in finished.measured.items():
            if run.backbone == backbone:
                cell = cells.setdefault((Row(run.method), text_label(run)), {})
                cell.setdefault(run.dataset_name, []).append(measured)
        table = Table(f"{experiment.name}_summary", f"{experiment.title}, {backbone_label(backbone)}", [], [])
        yield averaged(cells, {text: text for text in by_text}, table, experiment)[0]
    for number, (text, own) in enumerate(by_text.items()):
        for table, comparison in zip(by_dataset(own), own.comparisons(), strict=True):
            yield replace(table, name=f"{table.name}_{number}", title=f"{table.title}: {text}",
                          notes=[*table.notes, texts_note(comparison)])
