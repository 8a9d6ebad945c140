"""Classifies your own images, before and after test-time tuning.

    python tools/predict.py cat.jpg dog.jpg --classes names.txt --trainer SoC
    python tools/predict.py tile.png --dataset LandCover --trainer OTPT --backbone small
    python tools/predict.py cat.jpg --classes cat dog fox --trainer TPT SoC --html
    python tools/predict.py photos/ --recursive --classes names.txt --csv photos.csv --probabilities
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


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = tool_parser(__doc__)
    parser.add_argument("images", nargs="+", metavar="IMAGE", type=Path,
                        help="image files, or folders of images")
    parser.add_argument("--recursive", action="store_true", help="also the images in the folders "
                                                                 "of a folder")
    names = parser.add_mutually_exclusive_group(required=True)
    names.add_argument("--classes", nargs="+", metavar="NAME", help="class names, or a text file "
                                                                    "with one per line")
    names.add_argument("--dataset", metavar="NAME",
                       help="use class names, λ and AugMix of this data set, which must be below "
                            "--root")
    parser.add_argument("--root", default="data", help="folder with the data sets, for --dataset")
    parser.add_argument("--trainer", nargs="+", default=["SoC"], metavar="NAME",
                        help="ZeroShot, TPT, CTPT, OTPT, SoC ...; several are shown side by side "
                             "in --html")
    parser.add_argument("--backbone", help="OpenAI's name, small, a path, open_clip:MODEL/TAG or "
                                           "hf:FOLDER")
    parser.add_argument("--views", type=int, default=64, help="views per image, including the "
                                                              "plain one")
    parser.add_argument("--seed", type=int, default=0, help="of the views")
    parser.add_argument("--top", type=int, default=3, help="classes shown per image")
    parser.add_argument("--html", nargs="?", const=Path("predict.html"), type=Path, metavar="FILE",
                        help="also write a page with the images, their selected views and all "
                             "confidences")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write a table with one row "
                                                                 "per image")
    parser.add_argument("--probabilities", action="store_true",
                        help="with the probability of every class in --csv")
    parser.add_argument("--opts", nargs="*", default=[], metavar="KEY VALUE",
                        help="settings, e.g. TTA.STEPS 2")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if min(args.views, args.top) < 1 or args.seed < 0:
        raise ConfigError("--views and --top must be 1 or more, --seed 0 or more")
    if args.probabilities and not args.csv:
        raise ConfigError("--probabilities are columns of a table: give --csv FILE too")
    for flag, file in (("--html", args.html), ("--csv", args.csv)):
        if not file:
            continue
        folder = file.absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"{flag} {file}: there is no folder {folder}")
    load_plugins(args.plugin)
    log_to_terminal()
    # Imported here because it imports torch, which a usage error need not wait for.
    from promptcal.trainers.predict.predict import predict_images

    predict_images(args)


if __name__ == "__main__":
    run_tool(main)
