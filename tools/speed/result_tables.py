"""The figures as tables for people and as JSON for programs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tabulate import tabulate

from ...datasets.utils.files import write_json, write_text
from .limits import ENOUGH, SHARE_OF_STATED, STATED_RATES
from .records import BaselineComparison, Flops, Goal, Growth, Limit, ScalePoint

HEADERS = {  # title, and what stands beside promptcal's figure
    "episode": ("Whole episode of 64 views, from the file on, seconds", "plain way"),
    "tower": ("Whole episode with nothing cached, seconds", "CLIP's own image tower"),
    "text side": ("Text side of an episode, seconds", "plain way"),
    "memory": ("Peak memory of the text side, MB beyond the loaded model", "plain way"),
    "views": ("Views a second", "public pipeline"),
    "regulariser": ("Regulariser, value and gradient, milliseconds", "O-TPT, cubic"),
}
EXTRAPOLATED = "~ extrapolated in the number of classes from the largest that fits into memory (cubic form: as K³)"


@dataclass
class Findings:
    """All that one run of the benchmark found out."""

    machine: dict
    settings: dict
    comparisons: list[BaselineComparison] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    flops: list[Flops] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    scale: list[ScalePoint] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)

    def as_dict(self) -> dict:
        return {
            "machine": self.machine, "settings": self.settings,
            "comparisons": [one.as_dict() for one in self.comparisons],
            "growth": [asdict(one) for one in self.growth], "flops": [asdict(one) for one in self.flops],
            "limits": [asdict(one) for one in self.limits], "scale": [asdict(one) for one in self.scale],
            "goals": [{**asdict(one), "reached": one.reached} for one in self.goals],
        }


def write(findings: Findings, folder: Path) -> str:
    """Writes benchmark.json and benchmark.txt into the folder; returns the tables."""
    text = tables(findings)
    write_json(folder / "benchmark.json", findings.as_dict())
    write_text(folder / "benchmark.txt", text + "\n")
    return text


def tables(findings: Findings) -> str:
    parts = [conditions(findings.machine)]
    if findings.goals:
        parts.append(goals_table(findings.goals))
    for part, (title, beside) in HEADERS.items():
        rows = [one for one in findings.comparisons if one.part == part]
        if rows:
            parts.append(comparison_table(title, rows, beside))
    if findings.limits:
        parts.append(limits_table(findings.limits))
    if findings.scale:
        parts.append(scale_table(findings.scale))
    if findings.growth:
        parts.append(growth_table(findings.growth))
    if findings.flops:
        parts.append(flops_table(findings.flops))
    return "\n\n".join(parts)


def conditions(machine: dict) -> str:
    """One paragraph that says what the figures are worth."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; threads: {machine['threads']}; "
        f"fp32; random weights\n{versions}\n"
        f"load when begun {machine['load']}, when ended {machine['load_at_end']}; the processor spent "
        f"{machine['processor_seconds']} s\n"
        f"Seconds are the processor's, on one core. The plain way: one image at a time, all 77 tokens of each class, "
        f"O-TPT with its K×K×K reflectors."
    )


def goals_table(rows: Sequence[Goal]) -> str:
    body = [[row.what, number(row.found), f"{'≤' if row.at_most else '≥'} {row.goal:g}",
             "reached" if row.reached else "not reached"] for row in rows]
    return "Goals\n" + grid(["", "found", "goal", ""], body, words=1)


def scale_table(rows: Sequence[ScalePoint]) -> str:
    """A column for each part, a row for each number of classes."""
    cases = list(dict.fromkeys((row.part, row.case) for row in rows))
    found = {(row.classes, row.part, row.case): row for row in rows}
    body = [
        [f"{classes:,}", *(taken(found.get((classes, *case))) for case in cases)]
        for classes in dict.fromkeys(row.classes for row in rows)
    ]
    headers = ["classes", *(case if part == "regulariser" else f"{part}, {case}" for part, case in cases)]
    return ("Growth with the number of classes: seconds, and peak memory beyond what was there\n"
            + grid(headers, body, words=0) + "\nregularisers: value and gradient, once a run in the first step; "
            "text side: memory beyond the model, seconds without the regulariser's")


def taken(point: ScalePoint | None) -> str:
    if point is None:
        return "–"
    memory = [] if point.memory is None else [f"{number(max(1, round(point.memory / 1e6)))} MB"]
    return ", ".join([f"{number(point.seconds)} s", *memory])


def comparison_table(title: str, rows: Sequence[BaselineComparison], beside: str = "plain way") -> str:
    scale = 1000 if rows[0].part == "regulariser" else 1
    body = [[
        row.case, row.backbone, row.classes or "", number(scale * row.ours),
        "did not fit" if row.plain is None else ("~" if row.extrapolated else "") + number(scale * row.plain),
        "" if row.gain is None else ("~" if row.extrapolated else "") + f"{number(row.gain)}×",
    ] for row in rows]
    table = grid(["", "backbone", "classes", "promptcal", beside, "gain"], body, words=2)
    return "\n".join([title, table, *([EXTRAPOLATED] if any(row.extrapolated for row in rows) else [])])


def growth_table(rows: Sequence[Growth]) -> str:
    """Each step beside the one before: equal ratios mean linear growth."""
    body, before = [], None
    for row in rows:
        follows = before and (before.of, before.backbone) == (row.of, row.backbone)
        body.append([
            row.of, row.backbone, row.value, number(row.seconds),
            f"×{number(row.value / before.value)}" if follows else "",
            f"×{number(row.seconds / before.seconds)}" if follows else "",
        ])
        before = row
    return "Growth of the text side, seconds an episode\n" + grid(
        ["of", "backbone", "number", "seconds", "number grows", "seconds grow"], body, words=2)


def limits_table(rows: Sequence[Limit]) -> str:
    """Where the share is small, the reason stands below."""
    gpus = list(rows[0].model_seconds)
    body = [[
        row.part, row.backbone, row.classes or "", number(row.seconds), number(row.operations / 1e9),
        f"{100 * row.share:.0f} %" if row.operations else "–",
        *(number(1000 * row.model_seconds[name]) if row.operations else "–" for name in gpus),
    ] for row in rows]
    headers = ["", "backbone", "classes", "seconds", "GFLOPs", "of the peak", *(f"{name} model, ms" for name in gpus)]
    rates = ", ".join(f"{name} {rate / 1e12:.0f}" for name, rate in STATED_RATES.items())
    notes = [
        "peak: products of the towers' shapes, timed on one core in this run",
        f"model: operations at {100 * SHARE_OF_STATED:.0f} % of the stated dense half-precision rate ({rates} "
        f"TFLOP/s); not measured",
    ]
    why = dict.fromkeys(f"below {100 * ENOUGH:.0f} %: {row.part}: {row.why}" for row in rows if row.why)
    return "\n".join(["What is left to gain", grid(headers, body, words=2), *notes, *why])


def flops_table(rows: Sequence[Flops]) -> str:
    body = [[
        row.part, row.case, row.classes or "", number(row.products / 1e6),
        "" if row.elementwise is None else number(row.elementwise / 1e6), row.published or "",
    ] for row in rows]
    headers = ["", "", "classes", "matrix products, counted", "elementwise, by formula", "published"]
    return "MFLOPs (published: SoC paper, complexity table)\n" + grid(headers, body, words=2)


def grid(headers: Sequence[str], body: Sequence[Sequence], words: int) -> str:
    """A table whose first columns are words and whose others are numbers."""
    align = ["left"] * words + ["right"] * (len(headers) - words)
    return tabulate(body, headers, disable_numparse=True, colalign=align)


def number(value: float) -> str:
    """Three digits that count."""
    if value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.1e}"
