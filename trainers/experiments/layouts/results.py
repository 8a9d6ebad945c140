"""Methods by data sets, in the paper's layout."""
from __future__ import annotations

from dataclasses import replace

from ...report.table_model import RowBlock, Table
from ...report.tables import paper_table
from ..finished_runs import Material, swept_key
from ..vs_published import with_gaps
from . import Shown

RANKS_METHODS = True


def show(material: Material) -> Shown:
    return results(material), []


def results(material: Material, key: str = "") -> list[Table]:
    """Methods by data sets, for each backbone; with `key`, a row for each of its values."""
    experiment, tables = material.experiment, []
    for backbone in material.backbones:
        comparison = material.comparison(backbone, key)
        usual = not key or key == "TTA.STEPS"  # the only swept setting of which the paper prints every cell
        table = paper_table(
            comparison, experiment.name, f"{experiment.title}, {backbone}", experiment.metrics,
            with_published=material.compared and usual, source=material.source,
        )
        if material.compared and not usual:
            table = published_at_usual(material, table, backbone, key)
        tables.append(with_gaps(table))
    return tables


def published_at_usual(material: Material, table: Table, backbone: str, key: str) -> Table:
    """In a table of a swept setting, the paper's rows after those that have its usual value."""
    usual = material.where(lambda run: run.usual).comparison(backbone, key)
    source = paper_table(usual, table.name, table.title, material.experiment.metrics, with_published=True,
                         source=material.source)
    blocks = []
    for block, other in zip(table.blocks, source.blocks, strict=True):
        printed = {
            own.label: row for own, row in zip(other.rows, other.rows[1:], strict=False) if row.published
        }
        rows = []
        for row in block.rows:
            rows.append(row)
            if theirs := printed.get(row.label):
                at = dict(zip(source.columns, theirs.entries, strict=True))
                rows.append(replace(theirs, entries=[at.get(column) for column in table.columns]))
        blocks.append(RowBlock(block.label, rows))
    return replace(table, blocks=blocks, notes=[*table.notes, *source.notes[-1:]])


def by_setting(material: Material) -> list[Table]:
    """With a row for each value of the setting that the experiment sweeps."""
    return results(material, swept_key(material.experiment))
