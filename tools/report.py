"""Makes tables, figures and one self-contained HTML page from finished runs.

    python tools/report.py output/
    python tools/report.py output/UCF101 output/EuroSAT --published --out report
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.plugins import load_plugins
from promptcal.trainers.functional import BINS


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUNS", type=Path, help="run folders, or folders that contain them")
    parser.add_argument("--out", type=Path, help="where to write (default: report/ in the first folder)")
    parser.add_argument("--bins", type=int, default=BINS, help="bins of ECE, ACE and MCE, instead of the runs' own")
    parser.add_argument("--bootstrap", type=int, default=300, metavar="N",
                        help="resamples per interval (pairs of methods take 200 per pair or more); 0 = none")
    parser.add_argument("--published", action="store_true", help="add rows with the numbers of the SoC paper")
    parser.add_argument("--posthoc", action="store_true",
                        help="add post-hoc scaling without labels (CoTS, E-CoTS and others) and conformal sets")
    parser.add_argument("--choose", action="append", default=[], metavar="SETTING",
                        help="a swept setting, such as LAMBDA: add its value chosen on validation runs, and by leave "
                        "one data set out")
    parser.add_argument("--choose-by", default="ece", metavar="METRIC", help="the metric by which it is chosen")
    parser.add_argument("--demo", action="store_true", help="include runs on embedded data if there are others")
    parser.add_argument("--no-figures", action="store_true", help="tables and page only")
    args = parser.parse_args(argv)
    if args.bins < 1 or args.bootstrap < 0:
        raise ConfigError("--bins must be 1 or more, --bootstrap 0 or more")
    load_plugins(args.plugin)
    # Imported here because they import torch, which a usage error need not wait for.
    from promptcal.trainers.report.render import terminal
    from promptcal.trainers.report.write import write_report

    log_to_terminal()
    out = args.out or args.runs[0] / "report"
    report = write_report(args.runs, out, args.bins, args.bootstrap, args.published, not args.no_figures,
                          posthoc=args.posthoc, demo=args.demo, choose=args.choose, choose_by=args.choose_by)
    print("\n\n".join(map(terminal, report.tables)))
    for note in report.notes:
        print(f"note: {note}")
    for verdict in report.verdicts:
        print(f"\n{verdict.backbone}: {verdict.sentence}" if len(report.verdicts) > 1 else f"\n{verdict.sentence}")
    print(f"\nwritten: {report.page}")


if __name__ == "__main__":
    run_tool(main)
