"""The predict command, after its arguments are parsed: a table, a CSV file and a page of a user's own images."""
from __future__ import annotations

import argparse

from tqdm import tqdm

from ...datasets import DATASET_REGISTRY, Dataset, build_dataset
from ...datasets.utils.errors import WeightsError
from ..api import Adapter
from ..config import CONFIGS
from ..config.build import build_cfg
from ..config.layers import default_pairs, read_pairs
from ..config.settings import get_cfg_default
from ..registry import TRAINER_REGISTRY, backbone_label, method_info, registered_name
from ..vlm.loading import load_clip
from ..vlm.openai import warn_of_small
from .page import context_words, selected_views, write_page
from .predict import (
    Prediction,
    class_names,
    default_backbone,
    find_images,
    predict,
    prediction_table,
    write_csv,
)


def predict_images(args: argparse.Namespace) -> None:
    trainers = [registered_name(name) for name in args.trainer]
    for trainer in trainers:
        TRAINER_REGISTRY.get(trainer)  # refuses unknown names before a model is loaded
    name = registered(args.dataset) if args.dataset else ""
    dataset = build_dataset(name, args.root) if name else None
    classnames = dataset.classnames if dataset else class_names(args.classes)
    images = find_images(args.images)
    backbone = args.backbone or default_backbone()
    warning = warn_of_small(backbone, name)
    model = None
    found: dict[str, list[Prediction]] = {}
    selected: list[list[dict]] = []
    words: dict[str, list] = {}
    unreadable: list[str] = []
    order_notes: list[str] = []  # of online methods
    for trainer in dict.fromkeys(trainers):
        pairs = setting_pairs(args, trainer, dataset)
        cfg = build_cfg(trainer, opts=pairs)
        model = model or load_clip(backbone, cfg.DEVICE)
        adapter = Adapter(trainer, model, classnames, opts=pairs, copy_weights=False)
        if adapter.method.online:
            order_notes.append(f"{method_info(trainer).label} learns from image to image: another "
                               f"order of the images, or other images before one, changes its "
                               f"predictions.")
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
    setting = (f"{backbone_label(backbone)}, {len(classnames)} classes, {cfg.TTA.VIEWS} views per image, "
               f"seed {cfg.SEED}")
    print(setting)
    for note in order_notes:
        print(note)
    if args.csv:
        write_csv(args.csv, found, classnames)
        print(f"written: {args.csv}")
    if args.html:
        notes = [*filter(None, [warning]), f"{setting}.", *order_notes, *unreadable]
        write_page(args.html, found, classnames, selected, notes, max(args.top, 5), words)
        print(f"written: {args.html}")


def setting_pairs(args: argparse.Namespace, trainer: str, dataset: Dataset | None) -> list[object]:
    """The settings of a trainer as KEY VALUE pairs; the last of several with the same key counts.

    As in a run: the data set's settings, then those of the flags, then the pairs of --opts.
    """
    pairs: list[object] = []
    if dataset is not None:
        pairs += default_pairs(trainer, type(dataset).__name__)
    augmix = "off" if dataset is not None and not dataset.augmix else "on"
    pairs += ["TTA.AUGMIX", augmix, "TTA.VIEWS", args.views, "SEED", args.seed]
    given = dict(read_pairs(args.opts))
    views = str(given.get("TTA.VIEWS", args.views))
    default_share = get_cfg_default([]).TTA.SELECT
    if views.isdigit() and 0 < int(views) * default_share < 1:
        pairs += ["TTA.SELECT", 1 / int(views)]  # tuning selects at least one of few views
    return [*pairs, *args.opts]


def registered(dataset: str) -> str:
    """The registered name of a data set, which may be given as the name of its yaml file, such as dtd."""
    if dataset in DATASET_REGISTRY or not (yaml := CONFIGS / "datasets" / f"{dataset.lower()}.yaml").is_file():
        return dataset
    return build_cfg("ZeroShot", str(yaml)).DATASET.NAME
