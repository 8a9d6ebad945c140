"""A page about single images: the views selected for tuning, and the confidences of each method."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image, ImageOps

from ...datasets.utils.files import write_text
from ...datasets.views.images import open_image
from ..api import Adapter
from ..functional.objectives import class_logits, entropy
from ..registry import ZERO_SHOT, method_info
from ..report.page import data_uri, render
from ..tpt import TPT
from ..vlm.prompt_words import CAVEAT, NearestWords, nearest_words
from .predict import Prediction

IMAGE_BOX = (384, 384)  # pixels of an image
VIEW_BOX = (96, 96)  # pixels of a view
MAX_VIEWS = 24  # per image
NOTE = (
    "Bold: the predicted class. Zero-shot: before tuning. + SaLS: after tuning, with the logits "
    "scaled back to the range that they had before it; this needs no labels."
)


@dataclass(frozen=True)
class MethodPredictions:
    """What a method gives for each image.

    Attributes:
        trainer: Registered name of the method.
        predictions: One per image.
        words: Tuned contexts as words, one list per image; empty for methods that tune none.
    """

    trainer: str
    predictions: Sequence[Prediction]
    words: Sequence[Sequence[NearestWords]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return method_info(self.trainer).label


def write_page(
    path: Path, methods: Sequence[MethodPredictions], classnames: Sequence[str],
    selected: Sequence[Sequence[dict]], notes: Sequence[str], top: int = 5,
) -> None:
    """Writes the page.

    Args:
        path: The file.
        methods: The methods side by side.
        classnames: Class names; the index is the label.
        selected: For each image the views that are tuned on, from `selected_views`.
        notes: Sentences above the images.
        top: How many classes of each method are in an image's table.
    """
    images = []
    for number, views in enumerate(selected):
        images.append(image_section(number, methods, classnames, views, top))
    title = f"Predictions: {len(images)} images"
    if len(images) == 1:
        title = f"Predictions: {images[0]['name']}"
    text = render(
        "predictions.html", title, methods=methods, images=images, page_notes=[*notes, NOTE],
        words_note=CAVEAT,
    )
    write_text(path, text)


def image_section(
    number: int, methods: Sequence[MethodPredictions], classnames: Sequence[str],
    views: Sequence[dict], top: int,
) -> dict:
    """What the template needs of one image; see `write_page`.

    Args:
        number: Number of the image, from 0.
        methods: The methods side by side.
        classnames: Class names; the index is the label.
        views: The views that are tuned on, from `selected_views`.
        top: How many classes of each method are in the table.
    """
    predictions = []
    failed = []  # labels of the methods whose tuning failed
    for method in methods:
        prediction = method.predictions[number]
        predictions.append((method, prediction))
        if prediction.failed:
            failed.append(method.label)
    path = predictions[0][1].path
    picture = ImageOps.contain(open_image(path).convert("RGB"), IMAGE_BOX)
    number_of_views = f"{len(views)}"
    if len(views) > MAX_VIEWS:
        number_of_views += f", of which {MAX_VIEWS} are shown"
    words = []
    for method in methods:
        if method.words:
            rows = [nearest.cells for nearest in method.words[number]]
            words.append({"label": method.label, "rows": rows})
    return {
        "name": path.name,
        "uri": data_uri(picture),
        "rows": class_rows(predictions, classnames, top),
        "failed": failed,
        "views": views[:MAX_VIEWS],
        "kept": f"Those of lowest entropy (in nats) before tuning, lowest first: "
                f"{number_of_views}.",
        "words": words,
    }


def class_rows(
    predictions: Sequence[tuple[MethodPredictions, Prediction]], classnames: Sequence[str],
    top: int,
) -> list[dict]:
    """The classes among the `top` of any method, sorted by their largest confidence.

    Args:
        predictions: The methods, each with its prediction of the image.
        classnames: Class names; the index is the label.
        top: How many classes of each method.

    Returns:
        Rows for the template. After the class each has its confidence in percent: of zero-shot,
        then of each method without and with SaLS.
    """
    trainers = [ZERO_SHOT]
    logits = [predictions[0][1].before]
    for method, prediction in predictions:
        trainers += [method.trainer, method.trainer]
        logits += [prediction.after, prediction.with_sals]
    shares = torch.stack(logits).softmax(-1)  # (columns, K)
    highest = shares.topk(min(top, len(classnames))).indices  # (columns, top)
    labels = set(highest.flatten().tolist())
    by_confidence = sorted(labels, key=lambda label: -float(shares[:, label].max()))
    predicted = shares.argmax(-1).tolist()
    rows = []
    for label in by_confidence:
        cells = []
        for column, trainer in enumerate(trainers):
            cells.append({
                "text": f"{100 * float(shares[column, label]):.1f}",
                "best": predicted[column] == label,
                "colour": method_info(trainer).colour,
            })
        rows.append({"name": classnames[label], "cells": cells})
    return rows


def context_words(adapter: Adapter, predictions: Sequence[Prediction]) -> list[list[NearestWords]]:
    """The tuned context of each image as words; none for methods that do not tune it.

    Args:
        adapter: The method.
        predictions: One for each image.

    Returns:
        The nearest words of each image; [] for methods that do not tune the context.
    """
    if not adapter.method.tunes_context:
        return []
    backbone = adapter.method.clip.backbone
    words = []
    for prediction in predictions:
        nearest: list[NearestWords] = []
        if prediction.context is not None:
            nearest = nearest_words(prediction.context, backbone)
        words.append(nearest)
    return words


def selected_views(adapter: Adapter, path: Path) -> list[dict]:
    """The views of an image that a method is tuned on, lowest entropy first; none for methods that
    select no views.

    Args:
        adapter: The method.
        path: Path of the image.

    Returns:
        Rows for the template.
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
