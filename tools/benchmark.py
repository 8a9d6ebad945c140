"""Measures speed against the slow reference: episodes, whole images, views, threads.

Counts the operations that a GPU would be told to do for each image, too.

    python tools/benchmark.py --quick
    python tools/benchmark.py --photos ~/photos --json benchmark.json

Needs no weights and no data: models have CLIP's shapes and random weights. Times are CPU seconds on
one thread. Close other programs first, because they share the processor's caches.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import load_plugins, log_to_terminal, run_tool, tool_parser

SHAPES = ("ViT-B/16", "ViT-L/14", "tiny")
REACHED = {None: "", True: "reached", False: "missed"}  # words for a goal; None: there is none


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and prints the tables; argv = None takes the arguments of this process."""
    parser = tool_parser(__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one round, few images: about two minutes"
    )
    parser.add_argument(
        "--photos",
        type=Path,
        metavar="DIR",
        help="photographs to make views of (default: drawn ones)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the measurements to this file"
    )
    parser.add_argument(
        "--backbone",
        choices=SHAPES,
        default=SHAPES[0],
        help="shape of the CLIP (default: ViT-B/16)",
    )
    parser.add_argument("--classes", type=int, default=100, help="number of classes (default: 100)")
    args = parser.parse_args(argv)
    if args.classes < 3:
        parser.error("--classes must be 3 or more: with fewer SoC has no regulariser to measure")
    load_plugins(args.plugin)
    log_to_terminal()

    # After parsing: usage errors need no torch
    from promptcal.datasets.utils.files import write_json
    from promptcal.tools.benchmark_cases import Settings, count_launches, measure
    from promptcal.tools.measuring import drawn_images, machine, photographs

    count = 4 if args.quick else 8
    if args.photos:
        images = photographs(args.photos, count)
        source = f"{count} photographs"
    else:
        images = drawn_images(count)
        source = f"{count} drawn images"
    rounds = 1 if args.quick else 3
    settings = Settings(args.backbone, args.classes, images, source, rounds)
    facts = machine()
    rows = measure(settings)
    print(speed_table(rows))
    versions = [f"{name} {version}" for name, version in facts["versions"].items()]
    print(
        f"\n{facts['processor']}, {facts['cores']} cores; load {facts['load']} at the start; fp32, "
        f"random weights\n{', '.join(versions)}"
    )
    launches = count_launches(all_classes=not args.quick)
    print(f"\n{launch_table(launches)}")
    if args.json:
        speeds = []
        for row in rows:
            speeds.append({**asdict(row), "ratio": row.ratio, "reached": row.reached})
        counts = []
        for count_of_case in launches:
            counts.append({**asdict(count_of_case), "reached": count_of_case.reached})
        write_json(args.json, {"machine": facts, "rows": speeds, "launches": counts})
        print(f"written to {args.json}")


def speed_table(rows: Sequence) -> str:
    """Returns a table of times and speeds beside those of the reference.

    Args:
        rows: The rows that `benchmark_cases.measure` returns.
    """
    from tabulate import tabulate

    body = []
    for row in rows:
        goal = ""
        if row.goal is not None:
            sign = "≤" if row.cost else "≥"
            goal = f"{sign} {row.goal:g} ×"
        body.append([
            row.what,
            amount(row.ours, row.unit),
            amount(row.reference, row.unit),
            amount(row.ratio, "×"),
            goal,
            REACHED[row.reached],
            row.measured_on,
        ])
    headers = ("", "promptcal", "reference", "measured", "goal", "", "measured on")
    return tabulate(
        body, headers, disable_numparse=True, colalign=("left", *["right"] * 4, "left", "left"))


def launch_table(rows: Sequence) -> str:
    """Returns a table of the number of launches per image on a GPU, with the goals.

    Args:
        rows: The rows that `benchmark_cases.count_launches` returns.
    """
    from tabulate import tabulate

    if not rows:
        return "This version of torch can have no second device, so no launches are counted."
    body = []
    for row in rows:
        what = f"{row.classes} classes, {row.episodes} images at once"
        if row.jacobian:
            what += ", Jacobian"
        goal = ""
        if row.goal is not None:
            goal = f"≤ {row.goal}"
        body.append([what, f"{row.per_image:.0f}", goal, REACHED[row.reached]])
    headers = ("launches per image on a GPU, view features stored", "counted", "goal", "")
    lines = tabulate(
        body, headers, disable_numparse=True, colalign=("left", "right", "right", "left")
    )
    return f"{lines}\nCounted on a CPU. Time and memory on a GPU have not been measured."


def amount(value: float, unit: str) -> str:
    """Returns a number with its unit: three significant digits; below a second, milliseconds."""
    if unit == "s" and value < 1:
        value = 1000 * value
        unit = "ms"
    if value >= 100:
        return f"{value:,.0f} {unit}"
    return f"{value:.3g} {unit}"


if __name__ == "__main__":
    run_tool(main)
