"""Compares runs with third parties' logs: right images, mean confidence, bins, blocks of images.

Zero-shot has no randomness. It tests weights, preprocessing, class names, template and split before
any method is judged. Its limits are those of rounding and of other software, computed from stored
real features that were rounded to half precision, without and with an error of 0.02 per logit.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...datasets.utils.cli import counted
from ..config import CONFIGS
from ..functional.calibration import reliability
from ..registry import ZERO_SHOT
from ..report.grid import Grid
from ..report.measure import Measured
from ..report.published import is_published_data
from ..report.table import Entry, RowBlock, Table, TableRow, text_entry
from ..report.words import listed

FILE = CONFIGS / "experiments" / "reruns.json"
BINS = 20  # of the logs
BLOCK = 200  # images between two running accuracies of the logs

# Right images: logs are in fp16, and two of them differ by 1 image. In another precision 0.1 to
# 0.5 % of the predictions change.
FP16_IMAGES = 3
FP16_SHARE = 0.002
OTHER_IMAGES = 8
OTHER_SHARE = 0.005
# Rounding moves the mean by less than 0.0004, another template by 0.018 or more, scale 99 by 0.003.
MEAN_CONFIDENCE = 0.002
# Share of the images in another bin: at most 0.03 by rounding, 0.09 to 0.10 for another template.
OTHER_BINS = 0.03
# The count of a bin changes by the images that cross its edges, each by chance in or out.
# The variance of the change is then the number of these images. On real features (ViT-B/32, RN50,
# ViT-L/14) they are 2 to 6 % of the images by rounding, and 10 to 15 % with an error of 0.02 per
# logit: 8 % is between the two, and four standard deviations for 8 % are three for 14 %. The images
# on top are for bins with few images. Of 4,000 simulated counts with the error one was outside.
CROSSING_SHARE = 0.08
CROSSING_DEVIATIONS = 4
CROSSING_IMAGES = 5
# A block covers a few classes. More right or wrong images than this have a cause.
BLOCK_IMAGES = 5
# TPT's views are random: one seed of two programs differs by up to 0.7 % of the images.
TUNED_SHARE = 0.01

AGREES = "agrees"
DIFFERS = "differs"


@dataclass(frozen=True)
class Comparison:
    """One quantity of a run next to a log.

    Attributes:
        dataset: Label of the data set.
        method: Registered name of the method.
        quantity: What is compared, in words.
        source: Repository of the log.
        link: Link to the log.
        ours: Value of the run.
        log: Value of the log; None where `ours` is itself a distance from the log.
        limit: Largest distance of the two that still agrees.
        agrees: Whether the distance is within the limit.
        decimals: Number of decimals in tables.
        where: Which images differ, in words.
        is_judged: Whether it counts in the verdict.
    """

    dataset: str
    method: str
    quantity: str
    source: str
    link: str
    ours: float
    log: float | None
    limit: float
    agrees: bool
    decimals: int = 0
    where: str = ""
    is_judged: bool = True

    @property
    def verdict(self) -> str:
        """AGREES or DIFFERS."""
        return AGREES if self.agrees else DIFFERS


@cache
def known_reruns() -> list[dict[str, Any]]:
    """The logs of configs/experiments/reruns.json."""
    return json.loads(FILE.read_text(encoding="utf-8"))["runs"]


def compare_reruns(grid: Grid) -> list[Comparison]:
    """The runs of a table next to the logs of the same conditions."""
    comparisons = []
    for column in grid.columns:
        for row, cell in grid.cells_on(column):
            # Zero-shot is the same for all seeds. The logs of TPT are of seed 0.
            first = cell[0]
            if row.settings or row.details or not is_comparable(first):
                continue
            for rerun in known_reruns():
                if is_of_conditions(rerun, first):
                    comparisons += LogComparer(grid.column_label(column), first, rerun).compare()
    return comparisons


def is_comparable(measured: Measured) -> bool:
    """Whether a run is on all images of the published split, at its defaults."""
    record = measured.record
    if record.changed or record.get("model.prompt.kind") == "learnt":
        return False
    return is_published_data(record) and measured.skipped == 0 and measured.n == record.data["n"]


def is_of_conditions(rerun: Mapping[str, Any], measured: Measured) -> bool:
    """Whether a log is of the method, data set, backbone and number of images of a run."""
    record = measured.record
    ours = (record.method["trainer"], record.data["dataset"], record.model["backbone"], measured.n)
    return ours == (rerun["trainer"], rerun["dataset"], rerun["backbone"], rerun["images"])


class LogComparer:
    """Compares a run with one log of its conditions."""

    def __init__(self, dataset: str, measured: Measured, rerun: Mapping[str, Any]) -> None:
        """
        Args:
            dataset: Label of the data set.
            measured: The run.
            rerun: The log, as reruns.json has it.
        """
        self.dataset = dataset
        self.measured = measured
        self.rerun = rerun

    def compare(self) -> list[Comparison]:
        """All quantities of the log. Those of a tuned method depend on random views."""
        comparisons = [self.compare_count()]
        if self.rerun["trainer"] != ZERO_SHOT:
            return comparisons
        if "bins" in self.rerun:
            comparisons.append(self.compare_confidence())
            comparisons += self.compare_bins()
        if "running" in self.rerun:
            comparisons.append(self.compare_blocks())
        return comparisons

    def compare_count(self) -> Comparison:
        """The number of right images."""
        right = int(self.measured.tuned.correct.sum())
        n = self.measured.n
        if self.rerun["trainer"] != ZERO_SHOT:
            limit = round(TUNED_SHARE * n)
        elif self.measured.record.numerics.get("precision") == "fp16":
            limit = max(FP16_IMAGES, round(FP16_SHARE * n))
        else:
            limit = max(OTHER_IMAGES, round(OTHER_SHARE * n))
        unsettled = str(self.rerun.get("not_judged_by_count") or "")
        return self.comparison(
            "right images", right, self.rerun["correct"], limit, where=unsettled,
            is_judged=not unsettled)

    def compare_confidence(self) -> Comparison:
        """Mean confidence, the sharpest single number."""
        ours = float(self.measured.tuned.confidence.mean(dtype=np.float64))
        return self.comparison(
            "mean confidence", ours, self.rerun["mean_confidence"], MEAN_CONFIDENCE, decimals=4)

    def compare_bins(self) -> list[Comparison]:
        """How the images are spread over bins of confidence."""
        ours = reliability(*self.measured.tuned, BINS).count
        log = np.array(self.rerun["bins"]["count"])
        share = float(np.abs(ours - log).sum() / 2 / self.measured.n)
        limits = CROSSING_IMAGES + CROSSING_DEVIATIONS * np.sqrt(CROSSING_SHARE * log)
        outside = np.flatnonzero(np.abs(ours - log) > limits)
        words = []
        for k in outside:
            words.append(f"{k / BINS:g} to {(k + 1) / BINS:g}: {ours[k]} instead of {log[k]}")
        return [
            self.comparison(
                "share of the images in other bins", share, None, OTHER_BINS, decimals=4),
            self.comparison(
                "bins with another number of images", len(outside), None, 0, where=listed(words)),
        ]

    def compare_blocks(self) -> Comparison:
        """Right images in each block of the test list, which has the order of classes."""
        ends = self.rerun["running"]["seen"]
        starts = [0, *ends[:-1]]
        log = np.diff([0, *self.rerun["running"]["correct"]])
        right = np.concatenate([[0], np.cumsum(self.measured.tuned.correct)])
        words = []
        for start, end, expected in zip(starts, ends, log, strict=True):
            count = int(right[end] - right[start])
            if abs(count - expected) > BLOCK_IMAGES:
                classes = classes_of_block(self.measured, start, end)
                words.append(
                    f"images {start + 1:,} to {end:,} ({classes}): {count} instead of {expected}"
                )
        where = listed(words)
        if words and len(words) <= len(ends) // 2:
            where += ". The other blocks agree: check names, labels and files of these classes"
        elif words:
            where += (". Most blocks differ: check weights, preprocessing, template and the order "
                      "of the list")
        quantity = f"blocks of {BLOCK} images with other right images"
        return self.comparison(quantity, len(words), None, 0, where=where)

    def comparison(
        self, quantity: str, ours: float, log: float | None, limit: float, **fields: Any,
    ) -> Comparison:
        """A comparison of this run with this log; see `Comparison` for the arguments."""
        distance = ours - (log or 0)
        return Comparison(
            dataset=self.dataset, method=self.rerun["trainer"], quantity=quantity,
            source=self.rerun["source"], link=self.rerun["link"], ours=ours, log=log, limit=limit,
            agrees=abs(distance) <= limit, **fields)


def classes_of_block(measured: Measured, start: int, end: int) -> str:
    """Up to four classes of the images from `start` to before `end`, in words."""
    labels = measured.run.load_predictions().label[start:end]
    names = measured.run.classnames
    return listed([names[label] for label in dict.fromkeys(labels.tolist())], 4)


def reruns_table(comparisons: Sequence[Comparison], name: str, backbones: str) -> Table:
    """The comparisons as a table, a block for each data set and method."""
    blocks: dict[str, RowBlock] = {}
    for comparison in comparisons:
        label = f"{comparison.dataset}, {comparison.method}"
        block = blocks.setdefault(label, RowBlock(label, []))
        log = None
        if comparison.log is not None:
            log = Entry(comparison.log, comparison.decimals)
        verdict = comparison.verdict
        if not comparison.is_judged:
            verdict = "not judged"
        block.rows.append(
            TableRow(
                f"{comparison.quantity} ({comparison.source})",
                comparison.method,
                [
                    Entry(comparison.ours, comparison.decimals),
                    log,
                    Entry(comparison.limit, comparison.decimals),
                    text_entry(verdict),
                ],
            )
        )
    notes = [rerun_summary(comparisons)]
    for comparison in comparisons:
        if comparison.where:
            notes.append(f"{comparison.dataset}, {comparison.method}, {comparison.quantity}: "
                         f"{comparison.where}.")
    links = dict.fromkeys(comparison.link for comparison in comparisons)
    notes.append(f"Logs: {', '.join(links)}. Not measured here.")
    notes.append(
        "Zero-shot tests weights, preprocessing, class names and split before any method is "
        "judged. Judge it by mean confidence and bins first. Its limits are those of rounding; "
        "TPT's is 1 % of the images, because its views are random."
    )
    columns = ["ours", "log", "limit", "verdict"]
    title = f"Next to third parties' logs of real runs, {backbones}"
    return Table(name, title, columns, list(blocks.values()), notes)


def rerun_summary(comparisons: Sequence[Comparison]) -> str:
    """On which data sets zero-shot agrees with the logs, and where it does not."""
    agrees: dict[str, bool] = {}  # by data set
    for item in comparisons:
        if item.is_judged and item.method == ZERO_SHOT:
            agrees[item.dataset] = agrees.get(item.dataset, True) and item.agrees
    agreeing = []
    differing = []
    for dataset, is_same in agrees.items():
        if is_same:
            agreeing.append(dataset)
        else:
            differing.append(dataset)
    parts = []
    if agreeing:
        parts.append(f"Zero-shot agrees with third parties' logs on {listed(agreeing)}.")
    if differing:
        parts.append(f"Zero-shot differs from them on {counted(len(differing), 'data set')}, "
                     f"{listed(differing)}: find the cause before methods are judged there.")
    return " ".join(parts)
