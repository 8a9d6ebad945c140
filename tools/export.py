"""Copies finished runs to pass them on: without paths, pictures, user and host names.

    python tools/export.py output/UCF101 --out for_others
    python tools/report.py output/UCF101 from_others
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import (
    counted,
    load_plugins,
    log_to_terminal,
    run_tool,
    tool_parser,
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path,
                        help="run folders, or folders that contain them")
    parser.add_argument("--out", type=Path, required=True, help="where to write the copies")
    parser.add_argument("--logits", action="store_true",
                        help="copy all logits too: without them NLL, Brier, temperature scaling "
                             "and conformal sets are not known")
    args = parser.parse_args(argv)
    load_plugins(args.plugin)
    log_to_terminal()
    # Imported here because it imports torch, which a usage error need not wait for.
    from promptcal.trainers.report.export import export_runs

    folders = export_runs(args.runs, args.out, args.logits)
    print(f"{counted(len(folders), 'run')} in {args.out}")


if __name__ == "__main__":
    run_tool(main)
