"""The experiment `verify`: compares each result with all published values of it, says whether they
agree, and what may explain a difference.
"""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ...datasets.base import DATASET_REGISTRY
from ...datasets.utils.cli import counted
from ..registry import method_info, method_key
from ..report import published as paper
from ..report.arrange import by_backbone
from ..report.cells import mean_entry
from ..report.grid import Column, Grid, Row, grid_of
from ..report.grid_notes import failure_notes
from ..report.measure import Measured
from ..report.metrics import METRICS
from ..report.report_tables import entries_of
from ..report.table import Entry, RowBlock, Table, TableRow, text_entry
from ..report.verdict import Verdict
from ..report.words import listed
from ..runs.record import RunRecord
from ..vlm.loading import SMALL
from ..vlm.small import card_results
from .definition import Experiment
from .reruns import Comparison, compare_reruns, rerun_summary, reruns_table

AGREES = "agrees"
DIFFERS = "differs"
UNPUBLISHED = "not published"
FAILED = "not judged"  # too many images have no prediction of the method
CARD = "card"  # the source of the demo's reference
FACTS = ("device", "precision", "threads", "versions")  # of results.json

# What may explain a difference, and how to test it. More in trainers/README.md, "Why published
# numbers differ".
REASONS = {
    "images": "Images: fewer test images than published; run without --limit.",
    "templates": (
        "Templates: zero-shot differs too, and it depends on nothing but weights, images, class "
        "names and the template. To test: --set PROMPT.CTX_INIT, or PROMPT.TEMPLATE coop for "
        "ZeroShot."
    ),
    "AugMix": (
        "AugMix: zero-shot does not explain it, so views or step differ: AugMix on or off, 32 or "
        "64 views, other random numbers. To test: --set TTA.AUGMIX off."
    ),
    "loss scaler": (
        "Loss scaler: the source's figure is less than half as far from its zero-shot figure as "
        "ours is from ours. A loss scaler whose scale has collapsed, or gradients that overflow "
        "fp16 (SoC with live extremes, as CoTS runs it), skip steps. To test: --set "
        "TRAINER.SOC.STATS flow MODEL.PREC fp16."
    ),
    "precision": (
        "Precision: the difference is small. Public code computes in fp16 autocast. To test: "
        "--set MODEL.PREC fp32."
    ),
}


@dataclass(frozen=True)
class Check:
    """One result by one metric next to the published values of it, in percent.

    Attributes:
        dataset: Label of the data set, which is a column of the grid.
        method: Label of the row: the method with its settings.
        trainer: Name of the method.
        metric: Name of the metric.
        by_seed: Our values, by seed.
        published: Published values, by source.
        doubtful: Sources whose figure does not count, each with the reason.
        margin: By how many points the published range is widened.
        fewer_images: Whether it was measured on fewer images than published.
        failed: Whether too many images failed for it to be judged.
        backbone: The backbone, as tables name it.
        may_explain: What may explain the difference, names of REASONS.
    """

    dataset: str
    method: str
    trainer: str
    metric: str
    by_seed: Mapping[int, float]
    published: Mapping[str, float]
    doubtful: Mapping[str, str]
    margin: float = 0.0
    fewer_images: bool = False
    failed: bool = False
    backbone: str = ""
    may_explain: Sequence[str] = ()

    @property
    def ours(self) -> float:
        """Mean over seeds."""
        return float(np.mean(list(self.by_seed.values())))

    @property
    def counted(self) -> dict[str, float]:
        """The published figures that are not doubtful, by source."""
        figures = {}
        for source, value in self.published.items():
            if source not in self.doubtful:
                figures[source] = value
        return figures

    @property
    def allowed(self) -> tuple[float, float] | None:
        """The published range with the margin; None if nothing is published."""
        values = self.counted.values()
        if not values:
            return None
        return min(values) - self.margin, max(values) + self.margin

    @property
    def nearest(self) -> str:
        """The source that is nearest to ours; "" if nothing is published."""
        figures = self.counted
        return min(figures, key=lambda source: abs(self.ours - figures[source]), default="")

    @property
    def difference(self) -> float:
        """Ours minus the nearest source's."""
        if not self.nearest:
            return float("nan")
        return self.ours - self.counted[self.nearest]

    @property
    def verdict(self) -> str:
        """AGREES, DIFFERS, UNPUBLISHED or FAILED."""
        if self.allowed is None:
            return UNPUBLISHED
        if self.failed:
            return FAILED
        low, high = self.allowed
        return AGREES if low <= self.ours <= high else DIFFERS


class Verification:
    """The checks of an experiment's runs, as a table, a sentence and a file."""

    def __init__(self, experiment: Experiment, runs: Sequence[Measured], is_demo: bool) -> None:
        """
        Args:
            experiment: The experiment, whose metrics are compared.
            runs: Its finished runs.
            is_demo: Whether they are compared with the small CLIP's card instead of papers.
        """
        self.experiment = experiment
        self.runs = runs
        self.is_demo = is_demo
        self.grids: list[Grid] = []
        for table in by_backbone(runs):
            self.grids.append(grid_of(table.runs, table.label, table.label))
        checks: list[Check] = []
        self.reruns: list[Comparison] = []
        for grid in self.grids:
            checks += make_checks(grid, experiment.metrics, is_demo)
            self.reruns += compare_reruns(grid)
        self.checks = with_reasons(with_margins(checks))

    def tables(self) -> list[Table]:
        """A block for each backbone, data set and metric, a row for each row of the grid.

        Where there are logs of third parties, a table of them comes first.
        """
        sources: list[str] = []
        for check in self.checks:
            for source in check.published:
                if source not in sources:
                    sources.append(source)
        blocks: dict[str, RowBlock] = {}
        for check in self.checks:
            label = f"{check.dataset}: {METRICS[check.metric].label} (%)"
            if len(self.grids) > 1:
                label = f"{check.backbone}, {label}"
            block = blocks.setdefault(label, RowBlock(label, []))
            block.rows.append(check_row(check, sources))
        columns = ["ours"]
        for source in sources:
            columns.append(source if source == CARD else paper.source_name(source))
        columns += ["allowed", "verdict", "may explain it"]
        backbones = ", ".join(grid.backbone for grid in self.grids)
        title = f"{self.experiment.title}, {backbones}"
        name = self.experiment.name
        notes = self.notes(sources, list(blocks.values()))
        tables = [Table(name, title, columns, list(blocks.values()), notes)]
        if self.reruns:
            tables.insert(0, reruns_table(self.reruns, f"{name}_logs", backbones))
        return tables

    def notes(self, sources: Sequence[str], blocks: Sequence[RowBlock]) -> list[str]:
        """The sentences below the table of checks."""
        spread = ""
        if any(entry.spread.startswith("±") for entry in entries_of(blocks)):
            spread = "±: standard deviation over seeds. "
        notes = [
            self.summary(),
            rule(self.checks),
            f"Difference: from the nearest published figure, in points. {spread}May explain it: "
            "from what differs and what agrees, not tested here.",
        ]
        used: set[str] = set()
        for check in self.checks:
            used.update(check.may_explain)
        for reason, sentence in REASONS.items():
            if reason in used:
                notes.append(sentence)
        for check in self.checks:
            for source, why in check.doubtful.items():
                notes.append(
                    f"† {paper.source_name(source)}, {METRICS[check.metric].label} of "
                    f"{check.method} on {check.dataset}, does not count: {why}."
                )
        for source in sources:
            if source != CARD:
                about = paper.content()["sources"][source]
                notes.append(
                    f"{about['name']}: {about.get('where', 'its paper')}. Not measured here."
                )
        for grid in self.grids:
            notes += [*failure_notes(grid), *grid.notes]
        unpublished = self.rows_of_other_settings()
        if unpublished:
            notes.append(
                "Other settings than the published ones, so nothing is published for them: "
                f"{listed(unpublished)}."
            )
        return notes

    def rows_of_other_settings(self) -> list[str]:
        """Labels of the rows whose settings are not the published ones."""
        labels = []
        for grid in self.grids:
            for row in grid.rows:
                if row.settings or row.details:
                    labels.append(row.label)
        return labels

    def summary(self) -> str:
        """How many cells agree, in words."""
        count = Counter(check.verdict for check in self.checks)
        whose = "a published figure"
        if any(CARD in check.published for check in self.checks):
            whose = "the small CLIP's card"
        cells = counted(len(self.checks), "cell")
        failed = ""
        if count[FAILED]:
            failed = f" {count[FAILED]} are not judged, because too many images failed."
        reruns = ""
        if self.reruns:
            reruns = f"{rerun_summary(self.reruns)} "
        return (
            f"{reruns}Of {cells} (method, data set, metric) {count[AGREES]} agree with {whose}, "
            f"{count[DIFFERS]} differ and {count[UNPUBLISHED]} are not published.{failed}"
        )

    def verdict(self) -> Verdict:
        """What the page says first."""
        basis = (
            "The tables show each cell with its references, the range that is allowed, and its "
            "verdict."
        )
        backbones = ", ".join(grid.backbone for grid in self.grids)
        return Verdict([], "", self.summary(), basis, backbones)

    def record(self) -> dict[str, Any]:
        """The content of verify.json: results, versions and hardware, but no paths."""
        machines: Counter[str] = Counter()
        data = {}
        seconds = 0.0
        for run in self.runs:
            results = run.run.results
            facts = {key: results.get(key) for key in FACTS}
            facts["weights"] = run.record.model["weights"]
            facts["views"] = run.record.views.get("pipeline")
            machines[json.dumps(facts)] += 1
            seconds += results.get("seconds", 0)
            data[str(results["dataset"])] = {
                "n": results["n"], "classes": results["classes"], "bins": results["bins"],
                "images": run.record.data["images"],
            }
        cells = []
        for check in self.checks:
            cells.append(check_record(check))
        computed_with = []
        for facts_text, number in machines.items():
            computed_with.append({"runs": number, **json.loads(facts_text)})
        log_records = []
        for comparison in self.reruns:
            log_records.append({**asdict(comparison), "verdict": comparison.verdict})
        backbones = [grid.backbone for grid in self.grids]
        return {
            "made_by": "tools/reproduce.py verify",
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "demo": self.is_demo,
            "backbone": backbones,
            "summary": self.summary(),
            "rule": rule(self.checks),
            "computed_with": computed_with,
            "seconds": seconds,
            "data": data,
            "cells": cells,
            "logs": log_records,
        }


def check_record(check: Check) -> dict[str, Any]:
    """A check as an entry of verify.json. Without a published figure there is no difference."""
    difference = None
    if check.nearest:
        difference = check.difference
    return {
        **asdict(check),
        "ours": check.ours,
        "allowed": check.allowed,
        "verdict": check.verdict,
        "difference": difference,
        "nearest": check.nearest,
    }


def make_checks(grid: Grid, metrics: Sequence[str], is_demo: bool) -> list[Check]:
    """A check for each metric and cell of a table, by data set in the order of the columns.

    Rows of other settings have cells of their own.
    """
    checks = []
    for metric in metrics:
        for column in grid.columns:
            for row, cell in grid.cells_on(column):
                checks.append(make_check(grid, row, column, cell, metric, is_demo))
    order = [grid.column_label(column) for column in grid.columns]
    checks.sort(key=lambda check: order.index(check.dataset))
    return checks


def with_margins(checks: Sequence[Check]) -> list[Check]:
    """The checks with the margin of each metric, which is one for all backbones."""
    by_metric: dict[str, list[Check]] = {}
    for check in checks:
        by_metric.setdefault(check.metric, []).append(check)
    margins = {}
    for metric, of_metric in by_metric.items():
        margins[metric] = margin_of(metric, of_metric)
    return [replace(check, margin=margins[check.metric]) for check in checks]


def make_check(
    grid: Grid, row: Row, column: Column, cell: Sequence[Measured], metric: str, is_demo: bool,
) -> Check:
    """One cell by one metric.

    Args:
        grid: The runs.
        row: Row of the cell.
        column: Column of the cell.
        cell: Runs of the cell, one per seed.
        metric: Name of the metric.
        is_demo: Whether it is compared with the small CLIP's card instead of papers.
    """
    by_seed = {run.seed: METRICS[metric].scale * run.value(metric) for run in cell}
    if is_demo:
        figures = card_figures(cell[0].record, metric)
        doubtful: dict[str, str] = {}
    else:
        figures, doubtful = published_figures(cell[0].record, metric)
    return Check(
        dataset=grid.column_label(column), method=row.label, trainer=row.method, metric=metric,
        by_seed=by_seed, published=figures, doubtful=doubtful,
        fewer_images=cell[0].n < whole_size(column.record),
        failed=not grid.is_ranked(row, [column]), backbone=grid.backbone,
    )


def margin_of(metric: str, checks: Sequence[Check]) -> float:
    """By how much published ranges of a metric are widened; see `rule`.

    Args:
        metric: Name of the metric.
        checks: All checks by this metric.

    Returns:
        Points.
    """
    deviations = [0.25]
    for cell in paper.cells("std_analysis"):
        if cell.metric == f"{metric}_std":
            deviations.append(float(cell.value))
    spreads = []
    for check in checks:
        figures = check.counted.values()
        if len(figures) > 1:
            spreads.append(max(figures) - min(figures))
    spread = float(np.median(spreads)) if spreads else 0.0
    return max(2 * max(deviations), spread)


def published_figures(record: RunRecord, metric: str) -> tuple[dict[str, float], dict[str, str]]:
    """What every source prints for a run's conditions, and why some of it does not count.

    Unlike in other tables, a run on fewer images is compared too: that it has fewer images is then
    given as the reason.

    Returns:
        The figures in percent by source, and the reasons by source.
    """
    figures: dict[str, float] = {}
    doubtful: dict[str, str] = {}
    if (
        record.changed
        or record.data.get("corruption")
        or record.get("model.prompt.kind") == "learnt"
    ):
        return figures, doubtful
    for source, about in paper.content()["sources"].items():
        cell = paper.find_for_run(
            metric,
            str(record.method["trainer"]),
            str(record.data["dataset"]),
            str(record.model["backbone"]),
            source=source,
        )
        if cell is None:
            continue
        figures[source] = float(cell.value)
        for item in about.get("doubtful", ()):
            if (item["metric"], item["method"], item["column"]) == (
                metric,
                cell.method,
                cell.column,
            ):
                doubtful[source] = item["why"]
    return figures, doubtful


def card_figures(record: RunRecord, metric: str) -> dict[str, float]:
    """What the card of the small CLIP says about a run's conditions.

    Returns:
        The figure in percent by source; {} for other models and settings.
    """
    if record.changed or record.model["backbone"] != SMALL:
        return {}
    for name, figures in card_results(str(record.data["dataset"])).items():
        if method_key(name) == method_key(str(record.method["trainer"])) and metric in figures:
            return {CARD: figures[metric]}
    return {}


def whole_size(record: RunRecord) -> int:
    """How many test images the data set has in papers; the run's own number if that is not known.
    """
    name = str(record.data["dataset"])
    size = None
    if name in DATASET_REGISTRY:
        size = getattr(DATASET_REGISTRY.get(name), "expected_test", None)
    subset = str(record.data.get("subset") or "")
    if size is None and " of " in subset:
        size = int(subset.rpartition(" of ")[2].split(" ")[0].replace(",", ""))
    return size or int(record.data["n"])


def rule(checks: Sequence[Check]) -> str:
    """When a cell agrees, with the margin of each metric."""
    margins = {}
    for check in checks:
        margins[check.metric] = f"{METRICS[check.metric].label} {check.margin:.2f} points"
    words = ", ".join(margins.values())
    return (
        "A cell agrees if it lies in the range of the published figures, widened on both sides by "
        "a margin: the larger of twice the largest standard deviation over seeds in the SoC "
        "paper's Table 6 and the median difference between two sources of one cell. Margins: "
        f"{words}."
    )


def with_reasons(checks: Sequence[Check]) -> list[Check]:
    """The checks with what may explain their differences."""
    zero_shot = {}
    for check in checks:
        if method_info(check.trainer).zero_shot:
            zero_shot[check.backbone, check.dataset, check.metric] = check
    explained = []
    for check in checks:
        zero_shot_check = zero_shot.get((check.backbone, check.dataset, check.metric))
        explained.append(replace(check, may_explain=explain(check, zero_shot_check)))
    return explained


def explain(check: Check, zero_shot: Check | None) -> list[str]:
    """Names of REASONS that would explain a difference from the nearest source.

    Zero-shot is the control: it depends on nothing but weights, images, class names and template.

    Args:
        check: A check of one metric.
        zero_shot: The check of zero-shot on the same data set by the same metric; None if it was
            not run.
    """
    if check.verdict != DIFFERS:
        return []
    if check.fewer_images:
        return ["images"]
    if_small = ["precision"] if abs(check.difference) <= 2 * check.margin else []
    if method_info(check.trainer).zero_shot:
        return ["templates", *if_small]
    published_zero_shot = zero_shot.published.get(check.nearest) if zero_shot else None
    if zero_shot is None or published_zero_shot is None:
        return ["AugMix", *if_small]
    # Zero-shot differs to the same side.
    if zero_shot.verdict == DIFFERS and zero_shot.difference * check.difference > 0:
        return ["templates", *if_small]
    # Zero-shot does not explain it. How far does tuning move the result, there and here?
    their_effect = abs(check.published[check.nearest] - published_zero_shot)
    our_effect = abs(check.ours - zero_shot.ours)
    if their_effect < our_effect / 2:
        return ["loss scaler", "precision"]
    return ["AugMix", *if_small]


def check_row(check: Check, sources: Sequence[str]) -> TableRow:
    """A check as a row of the table, which has a column of published figures for each source."""
    ours = mean_entry(list(check.by_seed.values()), 2)
    if ours.std == 0 and method_info(check.trainer).zero_shot:  # it does not depend on the seed
        ours = replace(ours, std=None)
    entries: list[Entry | None] = [ours]
    for source in sources:
        if source not in check.published:
            entries.append(None)
        elif source in check.doubtful:
            entries.append(text_entry(f"{check.published[source]:.2f}†"))
        else:
            entries.append(Entry(check.published[source], 2))
    words = check.verdict
    if check.verdict == DIFFERS:
        words = f"{DIFFERS} by {check.difference:+.2f}"
    allowed = ""
    if check.allowed is not None:
        low, high = check.allowed
        allowed = f"{low:.2f} to {high:.2f}"
    for text in (allowed, words, ", ".join(check.may_explain)):
        entries.append(text_entry(text) if text else None)
    return TableRow(check.method, check.trainer, entries)
