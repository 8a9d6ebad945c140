"""Checks a machine in half a minute: what torch sees, whether numbers are right, and what is slow.

Each part of a run is timed; the slowest is named, with the setting to change. Exit status 1 means a
fault.

    python tools/doctor.py --root DATA --backbone ViT-B/16
    python tools/doctor.py --json > doctor.json     to attach to a question
"""
from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import load_plugins, run_tool, tool_parser
from promptcal.datasets.utils.files import data_root


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the checks; returns 1 if one of them is a fault."""
    parser = tool_parser(__doc__)
    parser.add_argument(
        "--root", type=Path, help="folder that holds the data sets in CoOp's layout"
    )
    parser.add_argument(
        "--backbone", help="as MODEL.BACKBONE.NAME (default: the best whose weights are here)"
    )
    parser.add_argument("--device", default="auto", help="as DEVICE")
    parser.add_argument(
        "--workers", default="auto", help="as DATALOADER.NUM_WORKERS: a number of threads, or auto"
    )
    parser.add_argument(
        "--cache", type=Path, help="as CACHE.DIR: assume that runs find their view features there"
    )
    parser.add_argument(
        "--classes", type=int, default=100, help="number of classes to adapt with (default: 100)"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON")
    parser.add_argument(
        "opts", nargs="*", metavar="KEY VALUE", help="settings of the runs, e.g. TTA.VIEWS 32"
    )
    args = parser.parse_args(argv)
    if args.workers != "auto" and not args.workers.isdigit():
        parser.error(f"--workers {args.workers}: give a number, or auto")
    if args.classes < 3:
        parser.error("--classes must be 3 or more")
    load_plugins(args.plugin)
    root = data_root(args.root) if args.root else None

    # After parsing: usage errors need no torch
    from promptcal.tools.doctor_checks import FAULT, PlannedRuns, diagnose
    from promptcal.trainers.predict.predict import default_backbone
    from tabulate import tabulate

    with redirect_stdout(sys.stderr):  # standard output has the table or the JSON alone
        checks, summary = diagnose(PlannedRuns(
            backbone=args.backbone or default_backbone(),
            root=root,
            cache=args.cache,
            device=args.device,
            workers=args.workers,
            classes=args.classes,
            opts=args.opts,
        ))
    if args.json:
        content = {**summary, "checks": [check._asdict() for check in checks]}
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print(tabulate(checks, ("", "found", "state", "what to do"), disable_numparse=True,
                       maxcolwidths=[None, 52, None, 52]))  # about 140 characters in all
        print(f"\n{summary['verdict']}")
    return int(any(check.state == FAULT for check in checks))


if __name__ == "__main__":
    run_tool(main)
