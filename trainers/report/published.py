"""Published tables as data: every cell as printed."""
from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from ..config import CONFIGS
from ..registry import method_key
from ..runs.record import RunRecord

FILE = CONFIGS / "experiments" / "published.json"
BASELINE = "otpt"  # the method that the paper's differences refer to
AVERAGE = "Average"
SOC = "soc"  # the source of the tables that the experiments reproduce


@dataclass(frozen=True)
class Cell:
    """One published number. `difference` and `colour` are printed next to it in some tables."""

    table: str
    metric: str
    method: str
    column: str
    printed: str
    source: str
    difference: str | None = None
    colour: str | None = None

    @property
    def value(self) -> Decimal:
        return Decimal(self.printed.replace(",", ""))

    @property
    def decimals(self) -> int:
        return len(self.printed.partition(".")[2])


@cache
def content() -> dict:
    """The whole data file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def tables_of(source: str | None = SOC) -> dict:
    """The tables of one source by name, or of all with None."""
    return {name: table for name, table in content()["tables"].items() if source in (None, table.get("source", SOC))}


def source_of(table: str) -> str:
    """The source of a table."""
    return content()["tables"][table].get("source", SOC)


def source_name(source: str) -> str:
    """The authors and the year of a source."""
    return content()["sources"][source]["name"]


def where_printed(table: str) -> str:
    """Where a table is printed: `Author et al. (year), Table N`, or the place that the source has instead of tables."""
    own, source = content()["tables"][table], content()["sources"][source_of(table)]
    place = f"Table {own['table']}" if "table" in own else source.get("where", "")
    return ", ".join(filter(None, (source["name"], place)))


def cite_key(source: str) -> str:
    """The key of a source's BibTeX entry."""
    return content()["sources"][source]["bib"].partition("{")[2].partition(",")[0]


def bibliography(keys: Iterable[str]) -> str:
    """The BibTeX entries with these keys."""
    wanted = set(keys)
    return "\n".join(f"{own['bib']}\n" for source, own in content()["sources"].items() if cite_key(source) in wanted)


def cells(table: str | None = None) -> Iterator[Cell]:
    """Every cell of one table, or of all, row by row."""
    for name in [table] if table else content()["tables"]:
        own = content()["tables"][name]
        blank = [None] * len(own["columns"])
        for row in own["rows"]:
            extras = zip(row.get("differences", blank), row.get("colours", blank), strict=True)
            for column, printed, extra in zip(own["columns"], row["values"], extras, strict=True):
                yield Cell(name, row["metric"], row["method"], column, printed, where_printed(name), *extra)


def find(table: str, metric: str, method: str, column: str) -> Cell | None:
    """The cell of a method (in any spelling) and a data set (registry name); None if the table has none."""
    wanted = (metric, method_key(method), column)
    return next((cell for cell in cells(table) if (cell.metric, method_key(cell.method), cell.column) == wanted), None)


def find_for_run(
    metric: str, method: str, dataset: str, backbone: str, steps: int = 1, sals: bool = False,
    source: str = SOC,
) -> Cell | None:
    """The cell that a source prints for a method under some conditions; None if it has none."""
    for name, table in tables_of(source).items():
        conditions = (table.get("backbone"), table.get("steps", 1), table.get("sals", False))
        if conditions == (backbone, steps, sals):
            cell = find(name, metric, method, dataset)
            if cell is not None:
                return cell
    return None


def find_for_record(metric: str, record: RunRecord, source: str = SOC) -> Cell | None:
    """The published neighbour of a run; None if the source has none under the run's conditions.

    The run must be on all published images of the data set, with OpenAI's weights, and with no
    other settings than those that the source varies: the number of steps, and SaLS.
    """
    if not is_published_data(record) or set(record.changed) - {"TTA.STEPS"}:
        return None
    if record.get("model.prompt.kind") == "learnt":
        return None
    steps = 1
    if "TTA.STEPS" in record.changed:
        steps = record.changed["TTA.STEPS"][1]
    plain = metric.removesuffix("_sals")
    return find_for_run(plain, str(record.method["trainer"]), str(record.data["dataset"]),
                        str(record.model["backbone"]), steps, metric.endswith("_sals"), source)


def is_published_data(record: RunRecord) -> bool:
    """Whether a run is on the whole test set that papers use."""
    data = record.data
    if data.get("subset") or data.get("corruption") or data.get("split") != "test":
        return False
    images = find("datasets", "images", "", str(data["dataset"]))
    return images is not None and int(images.value) == data["n"]


def is_published_set(table: str, records: Sequence[RunRecord], varied: Collection[str]) -> bool:
    """Whether runs are those that a table's averages are over.

    Args:
        table: Name of a table whose columns are not data sets.
        records: Of the runs that are averaged, one or more per data set.
        varied: Settings and fields that the table varies.
    """
    about = content()["tables"][table]
    datasets = {str(record.data["dataset"]) for record in records}
    if datasets != set(about.get("datasets", ())):
        return False
    for record in records:
        backbone = about.get("backbone", record.model["backbone"])
        if not is_published_data(record) or record.model["backbone"] != backbone:
            return False
        if set(record.changed) - set(varied):
            return False
        is_learnt = record.get("model.prompt.kind") == "learnt"
        if is_learnt and "model.prompt.protocol" not in varied:
            return False
    return True
