"""Downloads data sets and weights.

Data sets go into a data root, in the layout that the readers expect, weights of CLIP into the
folder from which runs read them. Existing files are not changed.

    python tools/download.py ucf101 dtd --root DATA
    python tools/download.py ViT-B/16

Exit status: 0 if everything requested is there, 1 if something must be downloaded by hand (the
steps are printed), 2 for a wrong command.
"""
from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.download.fetch import check_mirror
from promptcal.datasets.download.install import download_coop, download_dataset
from promptcal.datasets.file_dataset import file_datasets, find_file_dataset
from promptcal.datasets.utils.cli import load_plugins, resumable, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError, WeightsError, reading

logger = logging.getLogger(__name__)

WEIGHTS = re.compile(r"(RN\d|ViT-).*", re.IGNORECASE)  # names of OpenAI's models


@resumable()
def main(argv: Sequence[str] | None = None) -> int:
    parser = tool_parser(__doc__)
    parser.add_argument("what", nargs="+", metavar="NAME",
                        help="data sets such as ucf101; all (every set); coop (the prompts that "
                             "CoOp's authors trained on ImageNet); models such as ViT-B/16")
    parser.add_argument("--root", type=Path,
                        help="folder that holds the data sets; weights need none")
    parser.add_argument("--mirror", default="",
                        help="folder or address that has the archives and split files of data sets"
                             " under their own names; tried first")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    load_plugins(args.plugin)
    models = [name for name in args.what if WEIGHTS.fullmatch(name)]
    datasets = [name for name in args.what if name not in models]
    # What is to be downloaded. Each job returns whether it is there in the end.
    jobs: list[Callable[[], bool]] = [partial(download_weights, name) for name in models]
    if datasets:
        if args.root is None:
            raise ConfigError(f"give --root, the folder that holds the data sets, for "
                              f"{', '.join(datasets)}")
        root = args.root.expanduser()
        check_mirror(args.mirror)
        with reading():
            if root.is_dir():
                list(root.iterdir())  # an unreadable root is reported once, not for every set
        jobs += dataset_jobs(datasets, root, args.mirror)
    complete = [job() for job in jobs]  # one that fails does not stop the others
    return int(not all(complete))


def dataset_jobs(names: Sequence[str], root: Path, mirror: str) -> list[Callable[[], bool]]:
    """What to do for each name. Unknown names are refused before anything is downloaded.

    Args:
        names: Names of data sets, or `all`, or `coop`.
        root: Folder of the data sets.
        mirror: Folder or address that is tried first; "" for none.

    Returns:
        Functions that download, and return whether all is there.
    """
    jobs: list[Callable[[], bool]] = []
    for name in names:
        if name == "coop":
            jobs.append(partial(download_coop, root, mirror))
        elif name == "all":
            jobs += [partial(download_dataset, cls, root, mirror) for cls in file_datasets()]
        else:
            jobs.append(partial(download_dataset, find_file_dataset(name), root, mirror))
    return jobs


def download_weights(name: str) -> bool:
    """Downloads the weights of one of OpenAI's models to where runs read them.

    Returns:
        Whether they are there.
    """
    from promptcal.trainers.vlm.loading import weights_file

    try:
        file = weights_file(name)
    except WeightsError as error:
        logger.error("error: %s", error)
        return False
    logger.info("%s: ready in %s", name, file)
    return True


if __name__ == "__main__":
    run_tool(main)
