"""Makes tables, figures and one self-contained HTML page from finished runs.

    python tools/report.py output/
    python tools/report.py output/UCF101 output/EuroSAT --published --out report
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import load_plugins, log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.functional import BINS


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=Path,
                        help="run folders, or folders that contain them")
    parser.add_argument("--out", type=Path,
                        help="where to write (default: report/ in the first folder)")
    parser.add_argument("--bins", type=int, default=BINS,
                        help="bins of ECE, ACE and MCE, instead of the runs' own")
    parser.add_argument(
        "--baseline",
        default="",
        metavar="NAME",
        help="the method that others are compared with (default: TPT; for rows from a "
        "learnt prompt this prompt untuned)",
    )
    parser.add_argument("--ours", action="append", default=[], metavar="NAME",
                        help="the method whose rows state their difference from the baseline "
                        "(default: all tuned ones); may be given several times")
    parser.add_argument("--published", action="store_true",
                        help="add rows with the numbers of the SoC paper")
    parser.add_argument("--posthoc", action="store_true",
                        help="add post-hoc scaling without labels (CoTS, E-CoTS and others)")
    parser.add_argument(
        "--choose",
        action="append",
        default=[],
        metavar="SETTING",
        help="a swept setting, such as LAMBDA: add its value chosen on validation runs, "
        "and by leave one data set out",
    )
    parser.add_argument("--choose-by", default="ece", metavar="METRIC",
                        help="the metric by which it is chosen")
    parser.add_argument("--root", type=Path, metavar="DIR",
                        help="folder of the data sets, for thumbnails of mistakes; without it no "
                        "image is read")
    parser.add_argument("--demo", action="store_true",
                        help="include runs on embedded data if there are others")
    # Of version 1.0. Intervals are closed formulas now.
    parser.add_argument("--bootstrap", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--no-figures", action="store_true", help="tables and page only")
    args = parser.parse_args(argv)
    if args.bins < 1:
        raise ConfigError("--bins must be 1 or more")
    if args.root is not None and not args.root.is_dir():
        raise ConfigError(f"--root {args.root} is not a folder")
    load_plugins(args.plugin)
    # Imported here because they import torch, which a usage error need not wait for.
    from promptcal.trainers.report.core import Additions, write_report
    from promptcal.trainers.report.layout import default_layout
    from promptcal.trainers.report.table import terminal
    from promptcal.trainers.report.words import plain_text

    log_to_terminal()
    layout = default_layout(
        bins=args.bins, baseline=args.baseline, ours=args.ours, published=args.published,
        posthoc=args.posthoc, choose=args.choose, choose_by=args.choose_by,
        with_figures=not args.no_figures)
    out = args.out or args.runs[0] / "report"
    report = write_report(args.runs, out, layout, args.demo, Additions(thumbnails=args.root))
    print("\n\n".join(terminal(table) for table in report.tables))
    for note in report.notes:
        print(plain_text(f"note: {note}"))
    for verdict in report.verdicts:
        name = f"{verdict.backbone}: " if len(report.verdicts) > 1 else ""
        print(plain_text(f"\n{name}{verdict.sentence}"))
        for finding in verdict.findings:
            print(plain_text(finding))
    print(f"\nwritten: {report.page}")


if __name__ == "__main__":
    run_tool(main)
