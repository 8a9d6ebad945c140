"""A check of this toolbox on one machine: each cell next to every published value of it, and a verdict."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import numpy as np

from ....datasets.base import DATASET_REGISTRY, dataset_info
from ....datasets.utils.cli import counted
from ...registry import backbone_label, method_info, method_key
from ...report import published as paper
from ...report.measure import Measured
from ...report.metrics import METRICS
from ...report.table_model import Entry, RowBlock, Table, TableRow, text_entry
from ...report.tables import mean_entry
from ...report.verdict import Verdict
from ...vlm.openai import SMALL
from ...vlm.small import card_results
from ..finished_runs import FinishedRuns, in_percent
from ..plan import dataset_size

AGREES, DIFFERS, UNPUBLISHED = "agrees", "differs", "not published"
CARD = "card"  # the source of the demo's reference

# What may explain a difference, and how to test it. More in trainers/README.md, "Why published numbers differ".
REASONS = {
    "images": "Images: fewer test images than published; run without --limit.",
    "templates": "Templates: zero-shot differs too, and it depends on nothing but weights, images, class names and the "
                 "template. To test: --set PROMPT.CTX_INIT, or PROMPT.TEMPLATE coop for ZeroShot.",
    "AugMix": "AugMix: zero-shot does not explain it, so views or step differ: AugMix on or off, 32 or 64 views, other "
              "random numbers. To test: --set TTA.AUGMIX off.",
    "loss scaler": "Loss scaler: the source's figure is less than half as far from its zero-shot figure as ours is "
                   "from ours. A loss scaler whose scale has collapsed, or gradients that overflow fp16 (SoC with live "
                   "extremes, as CoTS runs it), skip steps. To test: --set TRAINER.SOC.STATS flow MODEL.PREC fp16.",
    "precision": "Precision: the difference is small. Public code computes in fp16 autocast. To test: --set MODEL.PREC "
                 "fp32.",
}


@dataclass(frozen=True)
class Check:
    """A method on a data set by one metric, in percent, next to the published values of it."""

    dataset: str
    method: str
    metric: str
    by_seed: Mapping[int, float]
    published: Mapping[str, float]  # source -> figure
    doubtful: Mapping[str, str]  # sources whose figure does not count, and why
    margin: float = 0.0

    @property
    def ours(self) -> float:
        return float(np.mean(list(self.by_seed.values())))

    @property
    def counted(self) -> dict[str, float]:
        """The published figures that count."""
        return {source: value for source, value in self.published.items() if source not in self.doubtful}

    @property
    def allowed(self) -> tuple[float, float] | None:
        """The published range with the margin; None if nothing is published."""
        values = self.counted.values()
        return (min(values) - self.margin, max(values) + self.margin) if values else None

    @property
    def nearest(self) -> str:
        """The source that is nearest to ours; "" if nothing is published."""
        return min(self.counted, key=lambda source: abs(self.ours - self.counted[source]), default="")

    @property
    def difference(self) -> float:
        """Ours minus the nearest source's."""
        return self.ours - self.counted[self.nearest] if self.nearest else float("nan")

    @property
    def verdict(self) -> str:
        if self.allowed is None:
            return UNPUBLISHED
        low, high = self.allowed
        return AGREES if low <= self.ours <= high else DIFFERS


def make_checks(finished: FinishedRuns) -> list[Check]:
    """A check for each data set, metric and method that has finished runs."""
    cells: dict[tuple[str, str], list[Measured]] = {}
    for run, measured in finished.measured.items():
        cells.setdefault((run.dataset_name, run.method), []).append(measured)
    checks = []
    for metric in finished.experiment.metrics:
        found = []
        for (dataset, method), runs in cells.items():
            by_seed = dict(zip((m.run.seed for m in runs), in_percent(runs, metric), strict=True))
            found.append(Check(dataset, method, metric, by_seed, *published_figures(finished, runs[0], metric)))
        seeds = [float(cell.value) for cell in paper.cells("std_analysis") if cell.metric == f"{metric}_std"]
        spreads = [max(figures) - min(figures) for check in found if len(figures := check.counted.values()) > 1]
        margin = max(2 * max(seeds, default=0.5), float(np.median(spreads or [0.0])))  # see `rule`
        checks += [replace(check, margin=margin) for check in found]
    return sorted(checks, key=lambda check: dataset_info(check.dataset).order)


def published_figures(
    finished: FinishedRuns, measured: Measured, metric: str,
) -> tuple[dict[str, float], dict[str, str]]:
    """What every source prints for a run, and why some of it does not count."""
    run = measured.run
    if finished.is_demo:
        card = card_results(run.dataset) if run.backbone == SMALL else {}
        own = next((row for name, row in card.items() if method_key(name) == method_key(run.trainer)), {})
        return ({CARD: own[metric]} if metric in own else {}), {}
    figures: dict[str, float] = {}
    doubtful: dict[str, str] = {}
    for source, about in paper.content()["sources"].items():
        cell = paper.find_for_run(metric, run.trainer, run.dataset, run.backbone, source=source)
        if cell:
            figures[source] = float(cell.value)
            for item in about.get("doubtful", ()):
                if (item["metric"], item["method"], item["column"]) == (metric, cell.method, cell.column):
                    doubtful[source] = item["why"]
    return figures, doubtful


def rule(checks: Sequence[Check]) -> str:
    margins = {check.metric: check.margin for check in checks}
    return ("A cell agrees if it lies in the range of the published figures, widened on both sides by a margin: the "
            "larger of twice the largest standard deviation over seeds in the SoC paper's Table 6 and the median "
            "difference between two sources of one cell. Margins: " + ", ".join(
                f"{METRICS[metric].label} {margin:.2f} points" for metric, margin in margins.items()) + ".")


def explain(check: Check, zero_shot: Check | None, fewer_images: bool) -> list[str]:
    """Names of REASONS that would explain a difference from the nearest source."""
    if check.verdict != DIFFERS:
        return []
    if fewer_images:
        return ["images"]
    close = ["precision"] if abs(check.difference) <= 2 * check.margin else []
    if method_info(check.method).zero_shot:
        return ["templates", *close]
    start = zero_shot.published.get(check.nearest) if zero_shot else None
    if zero_shot is None or start is None:
        return ["AugMix", *close]
    if zero_shot.verdict == DIFFERS and zero_shot.difference * check.difference > 0:
        return ["templates", *close]
    if abs(check.published[check.nearest] - start) < abs(check.ours - zero_shot.ours) / 2:
        return ["loss scaler", "precision"]
    return ["AugMix", *close]


def explained(finished: FinishedRuns) -> list[tuple[Check, list[str]]]:
    checks = make_checks(finished)
    zero_shot = {(c.dataset, c.metric): c for c in checks if method_info(c.method).zero_shot}
    fewer_images = {}
    for run, measured in finished.measured.items():
        published = getattr(DATASET_REGISTRY.get(run.dataset_name), "expected_test", None)
        whole = published or dataset_size(run.dataset_name, run.cfg.DATASET.ROOT)[0]
        fewer_images[run.dataset_name] = measured.run.results["n"] < whole
    return [(c, explain(c, zero_shot.get((c.dataset, c.metric)), fewer_images[c.dataset])) for c in checks]


def check_tables(finished: FinishedRuns) -> list[Table]:
    """A block for each data set and metric, a row for each method."""
    found = explained(finished)
    sources = list(dict.fromkeys(source for check, _ in found for source in check.published))
    blocks: dict[tuple[str, str], RowBlock] = {}
    for check, reasons in found:
        label = f"{dataset_info(check.dataset).label}: {METRICS[check.metric].label} (%)"
        block = blocks.setdefault((check.dataset, check.metric), RowBlock(label, []))
        shown = {source: text_entry(f"{value:.2f}†") if source in check.doubtful else Entry(value, 2)
                 for source, value in check.published.items()}
        entries = [mean_entry(list(check.by_seed.values()), 2), *map(shown.get, sources)]
        words = f"{DIFFERS} by {check.difference:+.2f}" if check.verdict == DIFFERS else check.verdict
        allowed = "{:.2f} to {:.2f}".format(*check.allowed) if check.allowed else ""
        entries += [text_entry(text) if text else None for text in (allowed, words, ", ".join(reasons))]
        block.rows.append(TableRow(method_info(check.method).label, check.method, entries))
    for block in blocks.values():
        block.rows.sort(key=lambda row: method_info(row.method).order)
    checks = [check for check, _ in found]
    notes = [summary(checks), rule(checks), "Difference: from the nearest published figure, in points. ±: standard "
             "deviation over seeds. May explain it: from what differs and what agrees, not tested here."]
    used = {reason for _, reasons in found for reason in reasons}
    notes += [sentence for reason, sentence in REASONS.items() if reason in used]
    notes += [f"† {paper.source_name(source)}, {METRICS[check.metric].label} of {method_info(check.method).label} on "
              f"{dataset_info(check.dataset).label}, does not count: {why}."
              for check in checks for source, why in check.doubtful.items()]
    about = [paper.content()["sources"][source] for source in sources if source != CARD]
    notes += [f"{source['name']}: {source.get('where', 'its paper')}. Not measured here." for source in about]
    if finished.other_settings:
        settings = ", ".join(f"{key} {value}" for key, value in finished.other_settings.items())
        notes.append(f"These runs have other settings than the published ones: {settings}.")
    columns = ["ours", *(source if source == CARD else paper.source_name(source) for source in sources),
               "allowed", "verdict", "may explain it"]
    title = f"{finished.experiment.title}, {', '.join(map(backbone_label, finished.backbones))}"
    return [Table(finished.experiment.name, title, columns, list(blocks.values()), notes)]


def summary(checks: Sequence[Check]) -> str:
    count = Counter(check.verdict for check in checks)
    whose = "the small CLIP's card" if any(CARD in check.published for check in checks) else "a published figure"
    return (f"Of {counted(len(checks), 'cell')} (method, data set, metric) {count[AGREES]} agree with {whose}, "
            f"{count[DIFFERS]} differ and {count[UNPUBLISHED]} are not published.")


def verification(finished: FinishedRuns) -> tuple[Verdict, dict]:
    """The verdict of the page, and the content of verify.json: results, versions and hardware, but no paths."""
    found = explained(finished)
    checks = [check for check, _ in found]
    runs = [measured.run.results for measured in finished.measured.values()]
    keys = ("device", "precision", "threads", "versions", "weights_hash", "views")
    machines = Counter(json.dumps({key: results.get(key) for key in keys}) for results in runs)
    record = {
        "made_by": "tools/reproduce.py verify", "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "demo": finished.is_demo, "backbone": finished.backbones, "summary": summary(checks), "rule": rule(checks),
        "other_settings": {key: str(value) for key, value in finished.other_settings.items()},
        "computed_with": [{"runs": number, **json.loads(facts)} for facts, number in machines.items()],
        "seconds": sum(results.get("seconds", 0) for results in runs),
        "data": {results["dataset"]: {key: results.get(key) for key in ("n", "classes", "data_hash", "bins")}
                 for results in runs},
        "cells": [{**asdict(check), "ours": check.ours, "allowed": check.allowed, "verdict": check.verdict,
                   "difference": check.difference if check.nearest else None, "nearest": check.nearest,
                   "may_explain": reasons} for check, reasons in found],
    }
    basis = "The tables show each cell with its references, the range that is allowed, and its verdict."
    return Verdict([], "", summary(checks), basis, ", ".join(finished.backbones)), record
