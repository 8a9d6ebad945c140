"""The predict command after its arguments are parsed: finds a user's own images, classifies them
before and after tuning, and writes a table, a CSV file and a page.
"""
from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageOps
from yacs.config import CfgNode

from ...datasets import DATASET_REGISTRY, Dataset, build_dataset
from ...datasets.file_dataset import files_below
from ...datasets.utils.errors import DataError, reading
from ...datasets.utils.files import read_regular
from ...datasets.utils.progress import show_progress
from ...datasets.views.images import BadImageError, open_image
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
from ..functional.calibration import sals
from ..functional.objectives import class_logits, entropy
from ..registry import TRAINER_REGISTRY, backbone_label, method_info, registered_name
from ..report.page import data_uri
from ..report.words import plain_text
from ..runs.record import value_label
from ..runs.run_dir import batched
from ..tpt import TPT
from ..vlm.loading import SMALL, cache_folder, load_clip, warn_of_small
from ..vlm.openai_clip import WEIGHT_URLS
from .output import MethodPredictions, Prediction, prediction_table, write_csv, write_page

logger = logging.getLogger(__name__)

PREFERRED = ("ViT-L/14", "ViT-B/16", "ViT-B/32", "RN50")  # among weights that are on this machine
AT_ONCE = 8  # images whose views are in memory together
SHORT = 10  # images that need no progress bar
VIEW_BOX = (96, 96)  # pixels of a view on the page


def predict_images(args: argparse.Namespace) -> None:
    """Classifies the images with each of the trainers and writes what is asked for."""
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
        # Before tuning the views are the same for all methods. The first method that selects any
        # shows them.
        if args.html and not any(selected):
            selected = [selected_views(adapter, path) for path in images]
        methods.append(MethodPredictions(trainer, predictions))

    conditions = (f"{backbone_label(backbone)}, {len(classnames)} classes, {cfg.TTA.VIEWS} views "
                  f"per image, seed {cfg.SEED}")
    for line in (conditions, *method_notes):
        print(line)
    notes += [f"{conditions}.", *method_notes]
    if args.csv:
        write_csv(args.csv, methods, classnames, args.probabilities)
        print(f"written: {args.csv}")
    if args.html:
        write_page(args.html, methods, classnames, selected, notes, max(args.top, 5))
        print(f"written: {args.html}")


def changed_words(cfg: CfgNode) -> list[str]:
    """The settings of a method that are not its defaults, in words, but for the number of views."""
    words = []
    for key, (_, value) in changed_settings(cfg, {"TTA.AUGMIX": "on"}).items():
        if key != "TTA.VIEWS" and find_setting(key).role is not Role.DATA:
            words.append(setting_words(key, value_label(value)))
    return words


def known_trainers(names: Sequence[str]) -> list[str]:
    """The registered names of methods, each once. Unknown ones are refused."""
    trainers = list(dict.fromkeys(registered_name(name) for name in names))
    for trainer in trainers:
        TRAINER_REGISTRY.get(trainer)
    return trainers


def predict_all(images: Sequence[Path], adapter: Adapter, trainer: str) -> list[Prediction]:
    """The predictions of one method, with a progress bar if there are many images."""
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


def class_names(values: Sequence[str]) -> list[str]:
    """Class names from the command line: the names, or one text file with a name per line."""
    if len(values) > 1:
        return [value.strip() for value in values]
    path = Path(values[0])
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}: give --classes two names or more, or a file "
                        f"with one per line") from error
    except OSError as error:
        raise DataError(f"cannot read class names from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; give a text file with one class name per "
                        f"line") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise DataError(f"{path} has no class names; give one per line")
    return names


def find_images(paths: Sequence[Path], recursive: bool = False) -> list[Path]:
    """The given images, and those in the given folders.

    Other files of a folder are skipped with a warning. An image that is given by name must be
    readable.

    Args:
        paths: Images and folders.
        recursive: Whether folders in folders are searched too.
    """
    images: list[Path] = []
    for path in paths:
        if path.is_dir():
            images += images_of_folder(path, recursive)
        else:
            open_image(path)
            images.append(path)
    return images


@reading()
def images_of_folder(folder: Path, recursive: bool) -> list[Path]:
    """The images in a folder, sorted by path.

    Raises:
        DataError: The folder has no image.
    """
    if recursive:
        entries = [Path(path) for path in files_below(folder)]
    else:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    images = []
    folders = []
    for entry in entries:
        if entry.is_dir():
            folders.append(entry)
            continue
        try:
            open_image(entry)
        except BadImageError as error:
            logger.warning("skipped: %s", error)
            continue
        images.append(entry)
    for inner in folders:
        logger.warning("skipped: %s is a folder; --recursive reads it too", inner)
    if not images:
        remedy = "give a folder with images"
        if folders:
            remedy = "--recursive searches its folders too"
        raise DataError(f"the folder {folder} has no image; {remedy}")
    return images


def default_backbone() -> str:
    """The best OpenAI model whose weights are on this machine, or the embedded small CLIP."""
    for name in PREFERRED:
        file_name = WEIGHT_URLS[name].rsplit("/", 1)[-1]
        if (cache_folder() / file_name).is_file():
            return name
    logger.info("no OpenAI weights on this machine, so the small CLIP is used; --backbone ViT-B/16 "
                "downloads one")
    return SMALL


def predict(paths: Sequence[Path], adapter: Adapter) -> Iterator[Prediction]:
    """Predictions of the images, as in an evaluation.

    Each is predicted on its own, whatever the order, unless the method is online: then the images
    are its stream.

    Args:
        paths: Paths of the images.
        adapter: The method.
    """
    for batch in batched(paths, AT_ONCE):
        # The index seeds the random views. One index for all: the views of an image do not depend
        # on its place in the list.
        adapted = adapter(batch, index=[0] * len(batch))
        before = adapted.zero_shot_logits.float().cpu()
        after = adapted.logits.float().cpu()
        with_sals = torch.as_tensor(sals(after, before))
        for row, path in enumerate(batch):
            yield Prediction(
                path=path,
                before=before[row],
                after=after[row],
                with_sals=with_sals[row],
                failed=adapted.flagged is not None and bool(adapted.flagged[row]),
            )


def selected_views(adapter: Adapter, path: Path) -> list[dict]:
    """The views of an image that a method is tuned on, lowest entropy first; none for methods that
    select no views. They are rows for the template.
    """
    method = adapter.method
    if not isinstance(method, TPT) or not method.tuned:
        return []
    with torch.no_grad():
        views, raw = next(adapter.batches([path]))  # (1, V, 3, H, W), pixel values
        clip = method.clip
        logits = class_logits(adapter.encode(views, raw), clip.text, clip.scale)[0]  # (V, K)
        selected = method.select(logits).tolist()
    entropies = entropy(logits)
    pixels = views[0].float().cpu().clamp(0, 255).round().byte().permute(0, 2, 3, 1).numpy()
    figures = []
    for number in selected:
        name = f"view {number}" if number else "plain view"
        figures.append({
            "image": data_uri(ImageOps.fit(Image.fromarray(pixels[number]), VIEW_BOX)),
            "words": f"{name}, entropy {float(entropies[number]):.2f}",
        })
    return figures
