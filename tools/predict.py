"""Classifies your own pictures, before and after test-time tuning.

    python tools/predict.py cat.jpg dog.jpg --classes names.txt --trainer SoC
    python tools/predict.py tile.png --dataset LandCover --trainer OTPT --backbone small
"""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from promptcal.datasets import build_dataset
from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers import TRAINER_REGISTRY, build_cfg, load_clip
from promptcal.trainers.pictures.predict import default_backbone, predict, prediction_table, read_classes
from promptcal.trainers.report.usual import own_settings
from promptcal.trainers.vlm.openai_weights import warn_of_small
from tqdm import tqdm

MANY = 10  # pictures from which on a progress bar is worth its line


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", metavar="IMAGE", type=Path, help="picture files")
    names = parser.add_mutually_exclusive_group(required=True)
    names.add_argument("--classes", type=Path, metavar="FILE", help="text file with one class name a line")
    names.add_argument("--dataset", metavar="NAME",
                       help="take class names, λ and AugMix of this data set, which must be below --root")
    parser.add_argument("--root", default="data", help="folder that holds the data sets, for --dataset")
    parser.add_argument("--trainer", default="SoC", help="ZeroShot, TPT, CTPT, OTPT, SoC ...")
    parser.add_argument("--backbone", help="OpenAI's name, small, a path, open_clip:MODEL/TAG or hf:FOLDER")
    parser.add_argument("--views", type=int, default=64, help="views of each picture, the plain one included")
    parser.add_argument("--seed", type=int, default=0, help="of the views")
    parser.add_argument("--top", type=int, default=3, help="classes shown of each picture")
    parser.add_argument("--opts", nargs="*", default=[], metavar="KEY VALUE", help="settings, e.g. TTA.STEPS 2")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if min(args.views, args.top) < 1 or args.seed < 0:
        raise ConfigError("--views and --top must be 1 or more, --seed 0 or more")
    log_to_terminal()
    TRAINER_REGISTRY.get(args.trainer)  # a misspelt name must not cost the loading of a model
    dataset = build_dataset(args.dataset, args.root) if args.dataset else None
    opts = [*(own_settings(args.trainer, args.dataset) if dataset else []), *args.opts]
    classnames = dataset.classnames if dataset else read_classes(args.classes)
    backbone = args.backbone or default_backbone()
    warn_of_small(backbone, args.dataset or "")
    cfg = build_cfg(args.trainer, flags=["TTA.VIEWS", args.views], opts=opts)
    model = load_clip(backbone, cfg.DEVICE, cfg.MODEL.ACTIVATION, cfg.MODEL.HEAD_WIDTH)
    found = predict(
        args.images, classnames, args.trainer, model, args.views,
        dataset.augmix if dataset else True, args.seed, args.top, opts,
    )
    predictions = list(tqdm(found, total=len(args.images), unit="picture", disable=len(args.images) < MANY))
    print(prediction_table(predictions, args.trainer))
    print(f"{backbone}, {len(classnames)} classes, {args.views} views a picture, seed {args.seed}")


if __name__ == "__main__":
    run_tool(main)
