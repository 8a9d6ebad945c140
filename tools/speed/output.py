"""The figures as tables for people and as JSON for programs."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tabulate import tabulate

from ...datasets.utils.files import write_json, write_text
from .records import Comparison, Flops, Growth, Limit

HEADERS = {
    "text side": "Text side of an episode, seconds",
    "episode": "Whole episode, seconds",
    "memory": "Peak memory of the text side, MB beyond the loaded model",
    "regulariser": "Regulariser, value and gradient, milliseconds, against O-TPT's cubic form",
    "views": "Views a second in one process",
}
EXTRAPOLATED = "~ extrapolated in the number of classes from the largest that fits into memory (cubic form: as K³)"


@dataclass
class Findings:
    """All that one run of the benchmark found out."""

    machine: dict
    settings: dict
    comparisons: list[Comparison] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    flops: list[Flops] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)

    def as_dict(self) -> dict:
        return {
            "machine": self.machine, "settings": self.settings,
            "comparisons": [one.as_dict() for one in self.comparisons],
            "growth": [asdict(one) for one in self.growth], "flops": [asdict(one) for one in self.flops],
            "limits": [asdict(one) for one in self.limits],
        }


def write(findings: Findings, folder: Path) -> str:
    """Writes benchmark.json and benchmark.txt into the folder; returns the tables."""
    text = tables(findings)
    write_json(folder / "benchmark.json", findings.as_dict())
    write_text(folder / "benchmark.txt", text + "\n")
    return text


def tables(findings: Findings) -> str:
    parts = [conditions(findings.machine)]
    for part, title in HEADERS.items():
        rows = [one for one in findings.comparisons if one.part == part]
        if rows:
            parts.append(comparison_table(title, rows))
    if findings.growth:
        parts.append(growth_table(findings.growth))
    if findings.limits:
        parts.append(limits_table(findings.limits))
    if findings.flops:
        parts.append(flops_table(findings.flops))
    return "\n\n".join(parts)


def conditions(machine: dict) -> str:
    """One paragraph that says what the figures are worth."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; threads: {machine['threads']}; "
        f"fp32; random weights\n{versions}\n"
        f"load when begun {machine['load']}, when ended {machine['load_at_end']}"
    )


def comparison_table(title: str, rows: Sequence[Comparison]) -> str:
    scale = 1000 if rows[0].part == "regulariser" else 1
    body = [[
        row.case, row.backbone, row.classes or "", number(scale * row.ours),
        "did not fit" if row.plain is None else ("~" if row.extrapolated else "") + number(scale * row.plain),
        "" if row.gain is None else ("~" if row.extrapolated else "") + f"{number(row.gain)}×",
    ] for row in rows]
    table = grid(["", "backbone", "classes", "ours", "plain", "gain"], body, words=2)
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
    """Where the share is small, the rest is memory traffic, small products or single operations."""
    gpus = list(rows[0].model_seconds)
    body = [[
        row.part, row.backbone, row.classes or "", number(row.seconds), number(row.operations / 1e9),
        f"{100 * row.share:.0f} %", *(number(1000 * row.model_seconds[name]) for name in gpus),
    ] for row in rows]
    headers = ["", "backbone", "classes", "seconds", "GFLOPs", "of this machine's peak",
               *(f"{name}, ms by model" for name in gpus)]
    note = "by model: operations at 40 % of the stated dense half-precision rate; not measured"
    return "What is left to gain\n" + grid(headers, body, words=2) + "\n" + note


def flops_table(rows: Sequence[Flops]) -> str:
    body = [[
        row.part, row.case, row.classes or "", number(row.products / 1e6),
        "" if row.elementwise is None else number(row.elementwise / 1e6), row.published or "",
    ] for row in rows]
    headers = ["", "", "classes", "products, counted", "single numbers, by formula", "published"]
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
