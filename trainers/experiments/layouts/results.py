"""Methods by data sets, as the paper's main tables show them; also with reliability diagrams, and with SaLS."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....datasets.base import dataset_info
from ...report import gallery
from ...report import published as paper
from ...report.figures.comparison import Pair, draw_pairs
from ...report.gallery import NamedFigure, reliability_figure
from ...report.table_model import RowBlock, Table
from ...report.tables import paper_table
from ..finished_runs import FinishedRuns
from ..vs_published import PRINTED, published_value, with_differences


def by_dataset(finished: FinishedRuns, key: str = "") -> list[Table]:
    """One table per backbone; with `key`, a row for each value of that setting."""
    experiment, tables = finished.experiment, []
    for backbone in finished.backbones:
        comparison = finished.comparison(backbone, key)
        every_row = not key or key == "TTA.STEPS"  # the only swept setting that the paper prints for every value
        table = paper_table(
            comparison, experiment.name, f"{experiment.title}, {backbone}", experiment.metrics,
            with_published=finished.compared and every_row, source=finished.source,
        )
        if finished.compared and not every_row:
            table = published_at_defaults(finished, table, backbone, key)
        tables.append(with_differences(table))
    return tables


def published_at_defaults(finished: FinishedRuns, table: Table, backbone: str, key: str) -> Table:
    """In a table of a swept setting, the published rows after those with the default value."""
    defaults = finished.where(lambda run: run.is_default).comparison(backbone, key)
    source = paper_table(defaults, table.name, table.title, finished.experiment.metrics, with_published=True,
                         source=finished.source)
    blocks = []
    for block, other in zip(table.blocks, source.blocks, strict=True):
        published = {
            own.label: row for own, row in zip(other.rows, other.rows[1:], strict=False) if row.published
        }
        rows = []
        for row in block.rows:
            rows.append(row)
            if theirs := published.get(row.label):
                at = dict(zip(source.columns, theirs.entries, strict=True))
                rows.append(replace(theirs, entries=[at.get(column) for column in table.columns]))
        blocks.append(RowBlock(block.label, rows))
    return replace(table, blocks=blocks, notes=[*table.notes, *source.notes[-1:]])


def reliability_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    main = finished.experiment.study.get("main", [])
    for backbone in finished.backbones:
        for name, part in (("reliability_main", finished.where(lambda run: run.dataset in main)),
                           ("reliability_all", finished)):
            if part.measured:
                yield reliability_figure(part.comparison(backbone), name)


def sals_figures(finished: FinishedRuns) -> Iterator[NamedFigure]:
    for comparison in finished.comparisons():
        yield from gallery.sals_figures(comparison, "sals")
    if finished.compared:
        groups = {
            dataset_info(column).label: {
                method: Pair(*(published_value(table, "ece", method, column) for table in ("vitl", "vitl_sals")))
                for method in ("C-TPT", "O-TPT", "SoC")
            }
            for column in paper.tables()["vitl_sals"]["columns"]
        }
        yield NamedFigure("sals_published", f"Tables 1 and 10. {PRINTED}",
                      draw_pairs({"ECE (%)": groups}, "plain", "with SaLS", "published (Tables 1 and 10)"))
