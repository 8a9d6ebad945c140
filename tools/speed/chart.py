"""The benchmark as pictures: time, memory and operations by the number of classes, and what each trick gains."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from ...trainers.report.figures.style import FAINT, INK, PAGE, encode, grid_lines, new_figure, styled
from .image_cases import COLD, TOWER, WARM
from .records import BaselineComparison, Flops, ScalePoint
from .result_tables import Findings

PLAIN = "#D55E00"
OURS = ("#56B4E9", "#0072B2", "#009E73", "#CC79A7")


def draw(findings: Findings, folder: Path) -> None:
    """benchmark.png and scale.png, as far as there is something to draw."""
    folder.mkdir(parents=True, exist_ok=True)
    if findings.comparisons:
        draw_comparisons(findings, folder / "benchmark.png")
    if findings.scale:
        draw_scale(findings.scale, folder / "scale.png")


def draw_scale(points: Sequence[ScalePoint], path: Path) -> None:
    """Seconds and memory by the number of classes, a line for each part."""
    with styled():
        figure = new_figure(PAGE, 2.7)
        for axes, title, unit, value in zip(
            figure.subplots(1, 2), ("Time", "Peak memory, 1 MB or more"), ("s", "MB"),
            (lambda point: point.seconds, lambda point: max(1, (point.memory or 0) / 1e6)), strict=True,
        ):
            label(axes, title, "classes", unit)
            for colour, name in zip((PLAIN, *OURS, INK), dict.fromkeys(map(scale_name, points)), strict=False):
                line = [point for point in points if scale_name(point) == name]
                axes.plot([point.classes for point in line], [value(point) for point in line], "o-", color=colour,
                          label=name, markersize=3)
            logarithmic(axes, sorted({point.classes for point in points}), legend=False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=6.5)
        path.write_bytes(encode(figure, "png", dpi=200))


def scale_name(point: ScalePoint) -> str:
    return point.case if point.part == "regulariser" else f"{point.part},\n{point.case}"


def draw_comparisons(findings: Findings, path: Path) -> None:
    """Six panels. Hollow points are extrapolated."""
    backbone = findings.settings["backbones"][0]
    ours = [one for one in findings.comparisons if one.backbone in ("", backbone)]
    with styled():
        figure = new_figure(PAGE, 4.4)
        panels = figure.subplots(2, 3).flat
        by_classes(next(panels), "Text side", "s an episode", [one for one in ours if one.part == "text side"])
        by_classes(next(panels), "Peak memory, text side", "MB", [one for one in ours if one.part == "memory"])
        closed = [one for one in ours if one.part == "regulariser" and one.case.startswith("O-TPT")]
        by_classes(next(panels), "O-TPT's regulariser", "s", closed, plain="O-TPT, cubic form")
        episode_bars(next(panels), [one for one in ours if one.part in ("episode", "tower")])
        growth_lines(next(panels), findings, backbone)
        flops_lines(next(panels), findings.flops)
        machine = findings.machine
        figure.suptitle(
            f"{backbone} shape, random weights, fp32; {machine['processor']}, threads: {machine['threads']}, "
            f"torch {machine['versions']['torch']}; hollow: extrapolated", fontsize=7.5, color=INK)
        path.write_bytes(encode(figure, "png", dpi=200))


def by_classes(axes: Axes, title: str, unit: str, rows: Sequence[BaselineComparison], plain: str = "plain way") -> None:
    label(axes, title, "classes", unit)
    if not rows:
        return nothing(axes)
    for colour, case in zip(OURS, dict.fromkeys(row.case for row in rows), strict=False):
        points = [row for row in rows if row.case == case]
        axes.plot([p.classes for p in points], [p.ours for p in points], "o-", color=colour, label=case, markersize=3)
    known = {row.classes: row for row in rows if row.plain is not None}
    axes.plot(list(known), [row.plain for row in known.values()], "-", color=PLAIN, label=plain)
    for classes, row in known.items():
        axes.plot(classes, row.plain, "s", color=PLAIN, markersize=4, mfc="white" if row.extrapolated else PLAIN)
    logarithmic(axes, sorted({row.classes for row in rows}))
    return None


def episode_bars(axes: Axes, rows: Sequence[BaselineComparison]) -> None:
    label(axes, "Whole episode", "", "s")
    if not rows:
        return nothing(axes)
    by_case = {row.case: row for row in rows}
    bars = {"views\ncached": by_case[WARM].ours, "nothing\ncached": by_case[COLD].ours,
            "tower\nalone": by_case[TOWER].plain, "plain\nway": by_case[COLD].plain or 0}
    drawn = axes.bar(list(bars), list(bars.values()), color=[OURS[1], OURS[0], FAINT, PLAIN], width=0.65)
    axes.bar_label(drawn, fmt="%.3g", fontsize=6.5, padding=1)
    axes.set_title(f"Whole episode, {rows[0].classes} classes")
    axes.set_yscale("log")
    powers_of_ten(axes)
    axes.margins(y=0.15)
    axes.tick_params(axis="x", labelsize=6.5)
    return None


def growth_lines(axes: Axes, findings: Findings, backbone: str) -> None:
    label(axes, "Growth of the text side", "number", "s an episode")
    rows = [row for row in findings.growth if row.backbone == backbone]
    if not rows:
        return nothing(axes)
    for colour, of in zip((OURS[1], OURS[0], OURS[2]), dict.fromkeys(row.of for row in rows), strict=False):
        points = [row for row in rows if row.of == of]
        axes.plot([p.value for p in points], [p.seconds for p in points], "o-", color=colour, label=of, markersize=3)
    logarithmic(axes, [1, 10, 100, 1000])
    return None


def flops_lines(axes: Axes, rows: Sequence[Flops]) -> None:
    label(axes, "Regularisers, operations", "classes", "MFLOPs")
    rows = [row for row in rows if row.part == "regulariser"]
    if not rows:
        return nothing(axes)
    for colour, case in zip((PLAIN, *OURS), dict.fromkeys(row.case for row in rows), strict=False):
        points = [row for row in rows if row.case == case]
        total = [(p.products + p.elementwise) / 1e6 for p in points]
        style = "o--" if case.endswith("closed form") else "o-"  # lies below SoC's line
        axes.plot([p.classes for p in points], total, style, color=colour, label=case, markersize=3, zorder=3)
        printed = [p for p in points if p.published]
        axes.plot([p.classes for p in printed], [float(p.published) for p in printed], "x", color=INK, markersize=5,
                  label="published" if case == "SoC" else None)
    logarithmic(axes, sorted({row.classes for row in rows}))
    return None


def label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    grid_lines(axes, "both")


def logarithmic(axes: Axes, ticks: Sequence[int], legend: bool = True) -> None:
    """Both axes, with the given numbers written out below and room for a legend above the curves."""
    axes.loglog()
    low, high = axes.get_ylim()
    if legend:
        axes.set_ylim(low, high * (high / low) ** 0.6)
        axes.legend(fontsize=6, loc="upper left")
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(
        lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    powers_of_ten(axes)


def powers_of_ten(axes: Axes) -> None:
    """Written out: the report's style reads no mathematical notation, which a logarithmic axis has of itself."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", ha="center", va="center", color=FAINT, transform=axes.transAxes)
