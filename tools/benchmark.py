"""Measures speed against the slow reference: episodes, whole images, views, threads.

    python tools/benchmark.py --quick
    python tools/benchmark.py --photos ~/photos --json benchmark.json

Needs no weights and no data: models have CLIP's shapes and random weights. Times are CPU seconds on one thread. Close
other programs first, because they share the processor's caches.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.plugins import load_plugins

SHAPES = ("ViT-B/16", "ViT-L/14", "tiny")


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, few images: about three minutes")
    parser.add_argument("--photos", type=Path, metavar="DIR", help="photographs to make views of (default: drawn ones)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements to this file")
    parser.add_argument("--backbone", choices=SHAPES, default=SHAPES[0], help="shape of the CLIP (default: ViT-B/16)")
    parser.add_argument("--classes", type=int, default=100, help="number of classes (default: 100)")
    args = parser.parse_args(argv)
    if args.classes < 3:
        parser.error("--classes must be 3 or more: with fewer SoC has no regulariser to measure")
    load_plugins(args.plugin)
    log_to_terminal()

    from promptcal.datasets.utils.files import write_json  # after parsing: usage errors need no torch
    from promptcal.tools.benchmark_cases import Settings, measure
    from promptcal.tools.measuring import drawn_images, machine, photographs

    count = 4 if args.quick else 8
    images = photographs(args.photos, count) if args.photos else drawn_images(count)
    source = f"{count} {'photographs' if args.photos else 'drawn images'}"
    settings = Settings(args.backbone, args.classes, images, source, rounds=1 if args.quick else 3)
    found, rows = machine(), measure(settings)
    print(table(rows))
    print(f"\n{found['processor']}, {found['cores']} cores; load {found['load']} at the start; fp32, random weights\n"
          f"{', '.join(f'{name} {version}' for name, version in found['versions'].items())}")
    if args.json:
        figures = [{**asdict(row), "ratio": row.ratio, "reached": row.reached} for row in rows]
        write_json(args.json, {"machine": found, "rows": figures})
        print(f"written to {args.json}")


def table(rows: Sequence) -> str:
    from tabulate import tabulate

    body = [[
        row.what, amount(row.ours, row.unit), amount(row.reference, row.unit), amount(row.ratio, "×"),
        row.goal and f"{'≤' if row.cost else '≥'} {row.goal:g} ×",
        {None: "", True: "reached", False: "missed"}[row.reached], row.measured_on,
    ] for row in rows]
    headers = ("", "promptcal", "reference", "measured", "goal", "", "measured on")
    return tabulate(body, headers, disable_numparse=True, colalign=("left", *["right"] * 4, "left", "left"))


def amount(value: float, unit: str) -> str:
    """Three significant digits, and the unit."""
    value, unit = (1000 * value, "ms") if unit == "s" and value < 1 else (value, unit)
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


if __name__ == "__main__":
    run_tool(main)
