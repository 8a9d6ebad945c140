"""Methods by data sets, as the paper's main tables show them; sweeps have a row for each value of their setting."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...report import gallery
from ...report.comparison import Row
from ...report.gallery import NamedFigure, lambda_figure, lambda_points, prompt_figure, reliability_figure
from ...report.table_model import Entry, RowBlock, Table, TableRow
from ...report.tables import paper_table
from ..finished_runs import ANY, FinishedRuns
from ..vs_published import with_differences

PROMPT = "PROMPT.CTX_INIT"


def by_dataset(finished: FinishedRuns, key: str = "") -> list[Table]:
    """One table per backbone; with `key`, a row for each value of that setting, and published rows where it has its
    default."""
    experiment = finished.experiment
    return [
        with_differences(paper_table(
            comparison, experiment.name, f"{experiment.title}, {comparison.backbone_label}", experiment.metrics,
            with_published=finished.compared, source=finished.source,
        )) for comparison in finished.comparisons(key)
    ]


def reliability_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    main = finished.experiment.study.get("main", [])
    chosen = {run: measured for run, measured in finished.measured.items() if run.dataset in main}
    for name, part in (("reliability_main", replace(finished, measured=chosen)), ("reliability_all", finished)):
        for comparison in part.comparisons():
            yield reliability_figure(comparison, name)


def sals_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons():
        yield from gallery.sals_figures(comparison, "sals")


def by_setting(finished: FinishedRuns) -> list[Table]:
    """A row for each value of the setting that the experiment sweeps."""
    return by_dataset(finished, finished.experiment.swept_key)


def by_every_setting(finished: FinishedRuns) -> list[Table]:
    """As `by_setting`, where each method has a setting of its own."""
    return by_dataset(finished, ANY)


def pareto_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    return lambda_figures(finished, ANY)


def lambda_figures(finished: FinishedRuns, key: str = "") -> Iterator[NamedFigure]:
    """Accuracy against ECE over λ."""
    for comparison in finished.comparisons(key or finished.experiment.swept_key):
        for column in comparison.columns:
            found = lambda_points(comparison, column)
            sweeps = {method: points for method, points in found.items() if len(points) > 1}
            yield lambda_figure(comparison, column, sweeps, gallery.other_points(comparison, column, sweeps))


def step_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    """One against two steps."""
    for comparison in finished.comparisons("TTA.STEPS"):
        yield from gallery.step_figures(comparison)


def prompt_tables(finished: FinishedRuns) -> Iterator[Table]:
    """Over all initial prompts each method's mean and worst ECE, and how often it is the lowest; then each prompt."""
    for comparison in finished.comparisons(PROMPT):
        methods = list(dict.fromkeys(replace(row, variant="") for row in comparison.rows))
        prompts = list(dict.fromkeys(row.variant for row in comparison.rows))
        rows: dict[Row, list[Entry | None]] = {method: [] for method in methods}
        labels: list[str] = []
        for column in comparison.columns:
            ece = {(replace(row, variant=""), row.variant): gallery.point(cell).ece
                   for row, cell in comparison.cells_on(column)}
            shared = [prompt for prompt in prompts if all((method, prompt) in ece for method in methods)]
            if not shared:
                continue
            name = comparison.column_label(column)
            labels += [f"{name}: mean", f"{name}: worst", f"{name}: lowest of {len(shared)}"]
            for method in methods:
                own = [ece[method, prompt] for prompt in shared]
                others = [other for other in methods if other != method]
                wins = sum(all(ece[method, prompt] < ece[other, prompt] for other in others) for prompt in shared)
                rows[method] += [Entry(float(np.mean(own))), Entry(max(own)), Entry(wins, 0)]
        if labels:
            block = RowBlock("ECE (%)", [TableRow(row.label, row.method, entries) for row, entries in rows.items()])
            title = f"ECE over initial prompts, {comparison.backbone_label}"
            yield Table(f"{finished.experiment.name}_summary", title, labels, [block],
                        [f"{len(prompts)} initial prompts. {comparison.images()}"])
    yield from by_setting(finished)


def prompt_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons(PROMPT):
        for column in comparison.columns:
            yield prompt_figure(comparison, column)
