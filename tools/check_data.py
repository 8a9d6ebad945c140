"""Checks which data sets are there, whether they are complete, and what to do next.

Exit status: 0 if no data set is faulty, 1 if one is, 2 for a wrong command. An absent data set is
not a fault.
"""
from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.download.verify import inspect, table
from promptcal.datasets.file_dataset import file_datasets, find_file_dataset
from promptcal.datasets.utils.cli import load_plugins, run_tool, tool_parser
from promptcal.datasets.utils.errors import reading
from promptcal.datasets.utils.files import data_root


def main(argv: Sequence[str] | None = None) -> int:
    parser = tool_parser(__doc__)
    parser.add_argument(
        "datasets", nargs="*", help="data sets to check, such as ucf101 (default: all)"
    )
    parser.add_argument("--root", required=True, type=Path,
                        help="folder that holds the data sets in CoOp's layout")
    parser.add_argument("--deep", action="store_true", help="decode every image")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    load_plugins(args.plugin)
    with reading():
        root = data_root(args.root)
        list(root.iterdir())  # an unreadable root is reported once, not in every row
    wanted = list(file_datasets())
    if args.datasets:
        wanted = [find_file_dataset(name) for name in args.datasets]
    findings = [inspect(cls, root, args.deep) for cls in wanted]
    print(table(findings))
    return int(any(finding.state == "faulty" for finding in findings))


if __name__ == "__main__":
    run_tool(main)
