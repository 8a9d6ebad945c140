"""The predict command after its arguments are parsed: classifies a user's own images and writes a
table, a CSV file and a page.
"""
from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from yacs.config import CfgNode

from ...datasets import DATASET_REGISTRY, Dataset, build_dataset
from ...datasets.utils.errors import WeightsError
from ...datasets.utils.progress import show_progress
from ..api import Adapter
from ..config import CONFIGS
from ..config.build import build_cfg
from ..config.layers import default_pairs, read_pairs
from ..config.settings import (
    Role,
    changed_settings,
    find_setting,
    get_cfg_default,
    setting_words,
)
from ..registry import TRAINER_REGISTRY, backbone_label, method_info, registered_name
from ..report.sentences import plain_text
from ..runs.record import value_label
from ..vlm.loading import load_clip, warn_of_small
from .page import MethodPredictions, context_words, selected_views, write_page
from .predict import Prediction, class_names, default_backbone, find_images, predict
from .tables import prediction_table, write_csv

SHORT = 10  # images that need no progress bar


def predict_images(args: argparse.Namespace) -> None:
    """Classifies the images with each of the trainers and writes what is asked for.

    Args:
        args: Arguments of tools/predict.py.
    """
    trainers = known_trainers(args.trainer)
    dataset = None
    dataset_name = ""
    if args.dataset:
        dataset_name = registered_dataset(args.dataset)
        dataset = build_dataset(dataset_name, args.root)
        classnames = dataset.classnames
    else:
        classnames = class_names(args.classes)
    images = find_images(args.images, args.recursive)
    backbone = args.backbone or default_backbone()
    notes = []
    warning = warn_of_small(backbone, dataset_name)
    if warning:
        notes.append(warning)

    model = None  # loaded once, for all methods
    methods: list[MethodPredictions] = []
    selected: list[list[dict]] = []  # views of each image, for the page
    method_notes: list[str] = []  # settings of each method; for online methods the order
    words_note = ""  # why contexts cannot be shown as words
    for trainer in trainers:
        pairs = setting_pairs(args, trainer, dataset)
        cfg = build_cfg(trainer, opts=pairs)
        if model is None:
            model = load_clip(backbone, cfg.DEVICE)
        adapter = Adapter(trainer, model, classnames, opts=pairs, copy_weights=False)
        settings = changed_words(adapter.method.cfg)
        if settings:
            method_notes.append(f"{method_info(trainer).label}: {', '.join(settings)}.")
        if adapter.method.online:
            method_notes.append(
                f"{method_info(trainer).label} learns from image to image: another order of the "
                f"images, or other images before one, changes its predictions.")
        predictions = predict_all(images, adapter, trainer)
        print(plain_text(prediction_table(predictions, trainer, classnames, args.top)))
        words = []
        if args.html:
            # Before tuning the views are the same for all methods. The first method that selects
            # any shows them.
            if not any(selected):
                selected = [selected_views(adapter, path) for path in images]
            try:
                words = context_words(adapter, predictions)
            except WeightsError as error:
                words_note = f"{error}."
        methods.append(MethodPredictions(trainer, predictions, words))

    conditions = (f"{backbone_label(backbone)}, {len(classnames)} classes, {cfg.TTA.VIEWS} views "
                  f"per image, seed {cfg.SEED}")
    for line in (conditions, *method_notes):
        print(line)
    notes += [f"{conditions}.", *method_notes]
    if words_note:
        notes.append(words_note)
    write_files(args, methods, classnames, selected, notes)


def changed_words(cfg: CfgNode) -> list[str]:
    """The settings of a method that are not its defaults, in words, but for the number of views."""
    words = []
    for key, (_, value) in changed_settings(cfg, {"TTA.AUGMIX": "on"}).items():
        if key != "TTA.VIEWS" and find_setting(key).role is not Role.DATA:
            words.append(setting_words(key, value_label(value)))
    return words


def write_files(
    args: argparse.Namespace, methods: Sequence[MethodPredictions], classnames: Sequence[str],
    selected: Sequence[Sequence[dict]], notes: Sequence[str],
) -> None:
    """Writes the CSV file and the page that the command asks for.

    Args:
        args: Arguments of the command.
        methods: The methods with their predictions.
        classnames: Class names; the index is the label.
        selected: For each image the views that are tuned on, see `selected_views`.
        notes: Sentences above the images of the page.
    """
    if args.csv:
        by_method = {method.trainer: method.predictions for method in methods}
        write_csv(args.csv, by_method, classnames, args.probabilities)
        print(f"written: {args.csv}")
    if args.html:
        write_page(args.html, methods, classnames, selected, notes, max(args.top, 5))
        print(f"written: {args.html}")


def known_trainers(names: Sequence[str]) -> list[str]:
    """The registered names of methods, each once. Unknown ones are refused."""
    trainers = list(dict.fromkeys(registered_name(name) for name in names))
    for trainer in trainers:
        TRAINER_REGISTRY.get(trainer)
    return trainers


def predict_all(images: Sequence[Path], adapter: Adapter, trainer: str) -> list[Prediction]:
    """The predictions of one method, with a progress bar if there are many images.

    Args:
        images: Paths.
        adapter: The method.
        trainer: Name of the method, for the progress bar.
    """
    is_long = len(images) >= SHORT
    predictions = predict(images, adapter)
    return list(show_progress(predictions, trainer, "img", total=len(images), shown=is_long))


def setting_pairs(args: argparse.Namespace, trainer: str, dataset: Dataset | None) -> list[object]:
    """The settings of a trainer as KEY VALUE pairs; the last of several with the same key counts.

    As in a run: the data set's settings, then those of the flags, then the pairs of --opts.

    Args:
        args: Arguments of the command.
        trainer: Name of the method.
        dataset: Data set whose classes are predicted; None = the classes are given by name.
    """
    pairs: list[object] = []
    augmix = "on"
    if dataset is not None:
        pairs += default_pairs(trainer, type(dataset).__name__)
        if not dataset.augmix:
            augmix = "off"
    pairs += ["TTA.AUGMIX", augmix, "TTA.VIEWS", args.views, "SEED", args.seed]
    views = str(dict(read_pairs(args.opts)).get("TTA.VIEWS", args.views))
    default_share = get_cfg_default([]).TTA.SELECT
    if views.isdigit() and 0 < int(views) * default_share < 1:
        pairs += ["TTA.SELECT", 1 / int(views)]  # tuning selects at least one of few views
    return [*pairs, *args.opts]


def registered_dataset(name: str) -> str:
    """The registered name of a data set, which may be given as the name of its yaml file, such as
    dtd."""
    yaml_path = CONFIGS / "datasets" / f"{name.lower()}.yaml"
    if name in DATASET_REGISTRY or not yaml_path.is_file():
        return name
    return build_cfg("ZeroShot", str(yaml_path)).DATASET.NAME
