"""Published tables as data: every cell as printed."""
from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from ..config import CONFIGS
from ..functional import BINS
from ..registry import method_key
from ..runs.record import RunRecord

FILE = CONFIGS / "experiments" / "published.json"
BASELINE = "otpt"  # the method that the paper's differences refer to
# The protocol of a prompt that CoOp has learnt from some shots in its usual number of epochs, which
# is not stated then.
COOP_PROMPT = re.compile(r"CoOp \d+ shots?( \((?!epochs ).*\))?")
BINNED = ("ece", "ace")  # published metrics that depend on the number of bins, which is BINS
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
        """The printed number."""
        return Decimal(self.printed.replace(",", ""))

    @property
    def decimals(self) -> int:
        """How many digits are printed after the point."""
        return len(self.printed.partition(".")[2])


@cache
def content() -> dict:
    """The whole data file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def tables_of(source: str | None = SOC) -> dict:
    """The tables of one source by name, or of all with None."""
    tables = {}
    for name, table in content()["tables"].items():
        if source is None or source_of(name) == source:
            tables[name] = table
    return tables


def source_of(table: str) -> str:
    """The source of a table."""
    return content()["tables"][table].get("source", SOC)


def source_name(source: str) -> str:
    """The authors and the year of a source."""
    return content()["sources"][source]["name"]


def where_printed(table: str) -> str:
    """`Author et al. (year), Table N`, or the place that a source has instead of tables."""
    about = content()["tables"][table]
    source = content()["sources"][source_of(table)]
    where = source.get("where", "")
    if "table" in about:
        where = f"Table {about['table']}"
    if not where:
        return source["name"]
    return f"{source['name']}, {where}"


def cite_key(source: str) -> str:
    """The key of a source's BibTeX entry."""
    return content()["sources"][source]["bib"].partition("{")[2].partition(",")[0]


def bibliography(keys: Iterable[str]) -> str:
    """The BibTeX entries with these keys."""
    wanted = set(keys)
    entries = []
    for source, about in content()["sources"].items():
        if cite_key(source) in wanted:
            entries.append(f"{about['bib']}\n")
    return "\n".join(entries)


def cells(table: str | None = None) -> Iterator[Cell]:
    """Every cell of one table, or of all, row by row."""
    names = [table] if table else list(content()["tables"])
    for name in names:
        about = content()["tables"][name]
        where = where_printed(name)
        for row in about["rows"]:
            for at, (column, printed) in enumerate(
                zip(about["columns"], row["values"], strict=True)
            ):
                difference = row["differences"][at] if "differences" in row else None
                colour = row["colours"][at] if "colours" in row else None
                yield Cell(
                    name, row["metric"], row["method"], column, printed, where, difference, colour
                )


def find(table: str, metric: str, method: str, column: str) -> Cell | None:
    """The cell of a method and a column; None if the table has none.

    Args:
        table: Name of the published table.
        method: Name of the method, in any spelling.
        column: A data set's registered name, or what the table's columns are.
    """
    wanted = (metric, method_key(method), column)
    for cell in cells(table):
        if (cell.metric, method_key(cell.method), cell.column) == wanted:
            return cell
    return None


def find_for_run(
    metric: str, method: str, dataset: str, backbone: str, source: str = SOC, **conditions: object,
) -> Cell | None:
    """The cell that a source prints for a method; None if it has none under these conditions.

    Args:
        method: Name of the method, in any spelling.
        backbone: OpenAI's name.
        conditions: `steps`, 1 without it, and `sals`, False without it.
    """
    wanted = {"steps": 1, "sals": False, **conditions}
    for name, table in tables_of(source).items():
        printed = {"steps": table.get("steps", 1), "sals": table.get("sals", False)}
        if table.get("backbone") == backbone and printed == wanted:
            cell = find(name, metric, method, dataset)
            if cell is not None:
                return cell
    return None


def find_for_record(metric: str, record: RunRecord, source: str = SOC) -> Cell | None:
    """The published neighbour of a run; None if the source has none under the run's conditions.

    The run must be on all published images of the data set, with OpenAI's weights, and with no
    other settings than those that the source varies: the number of steps, and SaLS.

    Args:
        metric: Name of the metric; those with SaLS end in `_sals`.
    """
    if not is_published_split(record) or set(record.changed) - {"TTA.STEPS"}:
        return None
    if record.get("model.prompt.kind") == "learnt":
        return None
    steps = 1
    if "TTA.STEPS" in record.changed:
        steps = record.changed["TTA.STEPS"][1]
    plain = metric.removesuffix("_sals")
    return find_for_run(
        plain,
        str(record.method["trainer"]),
        str(record.data["dataset"]),
        str(record.model["backbone"]),
        source,
        steps=steps,
        sals=metric.endswith("_sals"),
    )


def has_published_bins(metric: str, bins: int) -> bool:
    """Whether values of a metric with a number of bins compare with published ones.

    Args:
        metric: Name of the metric.
        bins: Number of bins.
    """
    return bins == BINS or metric.partition("_")[0] not in BINNED


def is_published_data(record: RunRecord) -> bool:
    """Whether a run is on a whole test set of the size that papers use."""
    data = record.data
    if data.get("subset") or data.get("corruption") or data.get("split") != "test":
        return False
    images = find("datasets", "images", "", str(data["dataset"]))
    return images is not None and int(images.value) == data["n"]


def is_published_split(record: RunRecord) -> bool:
    """Whether a run is on the published images, as far as its reader knows."""
    return is_published_data(record) and not record.data.get("difference")


def is_published_set(table: str, records: Sequence[RunRecord], varied: Collection[str]) -> bool:
    """Whether runs are those that a table's averages are over.

    Args:
        table: Name of a table whose columns are not data sets.
        records: Records of the runs that are averaged, one or more per data set.
        varied: Settings and fields that the table varies.
    """
    about = content()["tables"][table]
    datasets = {str(record.data["dataset"]) for record in records}
    if datasets != set(about.get("datasets", ())):
        return False
    for record in records:
        backbone = about.get("backbone", record.model["backbone"])
        if not is_published_split(record) or record.model["backbone"] != backbone:
            return False
        if set(record.changed) - set(varied):
            return False
        if record.get("model.prompt.kind") == "learnt":
            protocol = str(record.get("model.prompt.protocol"))
            if "model.prompt.protocol" not in varied or not COOP_PROMPT.fullmatch(protocol):
                return False
    return True
