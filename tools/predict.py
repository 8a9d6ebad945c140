"""Classifies your own images, before and after test-time tuning.

    python tools/predict.py cat.jpg dog.jpg --classes names.txt --trainer SoC
    python tools/predict.py tile.png --dataset LandCover --trainer OTPT --backbone small
    python tools/predict.py cat.jpg --classes cat dog fox --trainer TPT SoC --html
    python tools/predict.py photos/ --classes names.txt --csv photos.csv
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets import DATASET_REGISTRY, build_dataset
from promptcal.datasets.utils.cli import log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError, WeightsError
from promptcal.datasets.utils.plugins import load_plugins
from promptcal.trainers import TRAINER_REGISTRY, build_cfg, load_clip
from promptcal.trainers.api import Adapter
from promptcal.trainers.config import CONFIGS
from promptcal.trainers.config.defaults import get_cfg_default
from promptcal.trainers.predict.page import context_words, selected_views, write_page
from promptcal.trainers.predict.predict import (
    Prediction,
    class_names,
    default_backbone,
    find_images,
    predict,
    prediction_table,
    write_csv,
)
from promptcal.trainers.registry import backbone_label
from promptcal.trainers.report.comparison import default_pairs
from promptcal.trainers.vlm.openai import warn_of_small
from tqdm import tqdm


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = tool_parser(__doc__)
    parser.add_argument("images", nargs="+", metavar="IMAGE", type=Path, help="image files, or folders of images")
    names = parser.add_mutually_exclusive_group(required=True)
    names.add_argument("--classes", nargs="+", metavar="NAME", help="class names, or a text file with one per line")
    names.add_argument("--dataset", metavar="NAME",
                       help="use class names, λ and AugMix of this data set, which must be below --root")
    parser.add_argument("--root", default="data", help="folder with the data sets, for --dataset")
    parser.add_argument("--trainer", nargs="+", default=["SoC"], metavar="NAME",
                        help="ZeroShot, TPT, CTPT, OTPT, SoC ...; several are shown side by side in --html")
    parser.add_argument("--backbone", help="OpenAI's name, small, a path, open_clip:MODEL/TAG or hf:FOLDER")
    parser.add_argument("--views", type=int, default=64, help="views per image, including the plain one")
    parser.add_argument("--seed", type=int, default=0, help="of the views")
    parser.add_argument("--top", type=int, default=3, help="classes shown per image")
    parser.add_argument("--html", nargs="?", const=Path("predict.html"), type=Path, metavar="FILE",
                        help="also write a page with the images, their selected views and all confidences")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write a table with one row per image")
    parser.add_argument("--opts", nargs="*", default=[], metavar="KEY VALUE", help="settings, e.g. TTA.STEPS 2")
    return parser.parse_args(argv)


def registered(dataset: str) -> str:
    """The registered name of a data set, which may be given as the name of its yaml file, such as dtd."""
    if dataset in DATASET_REGISTRY or not (yaml := CONFIGS / "datasets" / f"{dataset.lower()}.yaml").is_file():
        return dataset
    return build_cfg("ZeroShot", yaml).DATASET.NAME


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if min(args.views, args.top) < 1 or args.seed < 0:
        raise ConfigError("--views and --top must be 1 or more, --seed 0 or more")
    for flag, file in (("--html", args.html), ("--csv", args.csv)):
        if file and not (folder := file.absolute().parent).is_dir():
            raise ConfigError(f"{flag} {file}: there is no folder {folder}")
    load_plugins(args.plugin)
    log_to_terminal()
    for trainer in args.trainer:
        TRAINER_REGISTRY.get(trainer)  # refuses unknown names before a model is loaded
    name = registered(args.dataset) if args.dataset else ""
    dataset = build_dataset(name, args.root) if name else None
    classnames = dataset.classnames if dataset else class_names(args.classes)
    images = find_images(args.images)
    backbone = args.backbone or default_backbone()
    warning = warn_of_small(backbone, name)
    # Tuning selects at least one of few views.
    few_views = ["TTA.SELECT", 1 / args.views] if int(args.views * get_cfg_default().TTA.SELECT) < 1 else []
    model = None
    found: dict[str, list[Prediction]] = {}
    selected: list[list[dict]] = []
    words: dict[str, list] = {}
    unreadable: list[str] = []
    for trainer in dict.fromkeys(args.trainer):
        opts = [*(default_pairs(trainer, name) if name else []), *few_views, *args.opts]
        cfg = build_cfg(trainer, flags=["TTA.VIEWS", args.views], opts=opts)
        model = model or load_clip(backbone, cfg.DEVICE)
        augmix = "off" if dataset and not dataset.augmix else "on"
        adapter = Adapter(trainer, model, classnames, args.views, ["SEED", args.seed, "TTA.AUGMIX", augmix, *opts])
        progress = tqdm(predict(images, adapter), trainer, len(images), unit="img", disable=len(images) < 10)
        found[trainer] = list(progress)
        print(prediction_table(found[trainer], trainer, classnames, args.top))
        if args.html and not any(selected):
            selected = [selected_views(adapter, path) for path in images]
        if args.html:
            try:
                words |= {trainer: found_words} if (found_words := context_words(adapter, found[trainer])) else {}
            except WeightsError as error:
                unreadable = [f"{error}."]
    setting = (f"{backbone_label(backbone)}, {len(classnames)} classes, {args.views} views per image, "
               f"seed {args.seed}")
    print(setting)
    if args.csv:
        write_csv(args.csv, found, classnames)
        print(f"written: {args.csv}")
    if args.html:
        notes = [*filter(None, [warning]), f"{setting}.", *unreadable]
        write_page(args.html, found, classnames, selected, notes, max(args.top, 5), words)
        print(f"written: {args.html}")


if __name__ == "__main__":
    run_tool(main)
