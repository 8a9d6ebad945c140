"""Downloads file_datasets into a data root, laid out as the readers expect. What is already there is left alone.

Exit status: 0 if everything asked for is there, 1 if something must be fetched by hand (the steps are printed),
2 for a wrong command.
"""
from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.download.fetch import check_mirror
from promptcal.datasets.download.install import download_benchmark, download_coop, download_splits
from promptcal.datasets.file_dataset import file_datasets, find_file_dataset
from promptcal.datasets.utils.cli import resumable, run_tool
from promptcal.datasets.utils.errors import DataError, reading


@resumable
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="+", metavar="DATASET",
        help="data sets such as ucf101; or all (every set), splits (split files and class names alone), "
             "coop (the prompts CoOp's authors trained on ImageNet)",
    )
    parser.add_argument("--root", required=True, type=Path, help="folder that holds the data sets")
    parser.add_argument(
        "--mirror", default="",
        help="folder or address that has the archives and split files under their own names; looked in first",
    )
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    root = args.root.expanduser()
    check_mirror(args.mirror)
    with reading():
        if root.is_dir():
            list(root.iterdir())  # one that cannot be read is said once, not for every set

    jobs = []
    for name in args.what:
        if name == "all":
            jobs += [(download_benchmark, (cls,)) for cls in file_datasets()]
        elif name == "splits":
            jobs += [(download_splits, (cls,)) for cls in file_datasets()]
        elif name == "coop":
            jobs.append((download_coop, ()))
        else:
            jobs.append((download_benchmark, (find_file_dataset(name),)))
    complete = [done(job, *subject, root, args.mirror) for job, subject in jobs]
    return int(not all(complete))


def done(job: Callable[..., bool], *arguments: object) -> bool:
    """Whether a job left everything in place. A folder that cannot be read does not keep the others from theirs."""
    try:
        with reading():
            return job(*arguments)
    except DataError as error:
        logging.error("error: %s", error)
        return False


if __name__ == "__main__":
    run_tool(main)
