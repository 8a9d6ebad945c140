"""Downloads data sets into a data root, in the layout that the readers expect. Existing files are not changed.

Exit status: 0 if everything requested is there, 1 if something must be downloaded by hand (the steps are printed),
2 for a wrong command.
"""
from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.download.fetch import check_mirror
from promptcal.datasets.download.install import download_coop, download_dataset
from promptcal.datasets.file_dataset import file_datasets, find_file_dataset
from promptcal.datasets.utils.cli import resumable, run_tool, tool_parser
from promptcal.datasets.utils.errors import reading
from promptcal.datasets.utils.plugins import load_plugins


@resumable()
def main(argv: Sequence[str] | None = None) -> int:
    parser = tool_parser(__doc__)
    parser.add_argument("what", nargs="+", metavar="DATASET", help="data sets such as ucf101; or all (every set), "
                        "coop (the prompts that CoOp's authors trained on ImageNet)")
    parser.add_argument("--root", required=True, type=Path, help="folder that holds the data sets")
    parser.add_argument("--mirror", default="", help="folder or address that has the archives and split files under "
                        "their own names; tried first")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    load_plugins(args.plugin)
    root = args.root.expanduser()
    check_mirror(args.mirror)
    with reading():
        if root.is_dir():
            list(root.iterdir())  # an unreadable root is reported once, not for every set

    jobs: list[Callable[[Path, str], bool]] = []
    for name in args.what:
        if name == "coop":
            jobs.append(download_coop)
        elif name == "all":
            jobs += [partial(download_dataset, cls) for cls in file_datasets()]
        else:
            jobs.append(partial(download_dataset, find_file_dataset(name)))
    complete = [job(root, args.mirror) for job in jobs]  # one that fails does not stop the others
    return int(not all(complete))


if __name__ == "__main__":
    run_tool(main)
