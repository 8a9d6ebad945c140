"""Predictions of a user's own images, and how they are shown: as a table, a CSV file and a page."""
from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import ImageOps
from tabulate import tabulate

from ...datasets.utils.files import no_formula, write_text
from ...datasets.views.images import open_image
from ..registry import ZERO_SHOT, method_info
from ..report.page import data_uri, render

IMAGE_BOX = (384, 384)  # pixels of an image
MAX_VIEWS = 24  # per image
NOTE = (
    "Bold: the predicted class. Zero-shot: before tuning. + SaLS: after tuning, with the logits "
    "scaled back to the range that they had before it; this needs no labels."
)

Cells = dict[str, list[str]]  # the columns of a CSV file by name


@dataclass(frozen=True)
class Prediction:
    """The prediction of one image.

    Attributes:
        path: Path of the image.
        before: Logits before tuning, (K,).
        after: Logits of the method, (K,).
        with_sals: `after`, rescaled by SaLS to the range of `before`, (K,).
        failed: Tuning gave no finite result, so `after` is `before`.
    """

    path: Path
    before: torch.Tensor
    after: torch.Tensor
    with_sals: torch.Tensor
    failed: bool


@dataclass(frozen=True)
class MethodPredictions:
    """What a method gives for each image.

    Attributes:
        trainer: Registered name of the method.
        predictions: One per image.
    """

    trainer: str
    predictions: Sequence[Prediction]

    @property
    def label(self) -> str:
        return method_info(self.trainer).label


def prediction_table(
    predictions: Sequence[Prediction], trainer: str, classnames: Sequence[str], top: int,
) -> str:
    """The `top` classes of each image with their confidence before tuning, after it, and after
    SaLS, which keeps their order.

    Args:
        predictions: One for each image.
        trainer: Name of the method.
        classnames: Class names; the index is the label.
        top: How many classes of each image.
    """
    count = min(top, len(classnames))
    body = []
    for prediction in predictions:
        before = prediction.before.softmax(-1).topk(count)
        after = prediction.after.softmax(-1).topk(count)
        with_sals = prediction.with_sals.softmax(-1).topk(count)
        for rank in range(count):
            image = ""
            if rank == 0:
                image = str(prediction.path)
                if prediction.failed:
                    image += " (tuning failed)"
            body.append([
                image,
                classnames[int(before.indices[rank])],
                percent(before.values[rank]),
                classnames[int(after.indices[rank])],
                percent(after.values[rank]),
                percent(with_sals.values[rank]),
            ])
    headers = ["image", "zero-shot", "conf. %", method_info(trainer).label, "conf. %", "with SaLS"]
    alignment = ("left", "left", "right", "left", "right", "right")
    return tabulate(body, headers=headers, disable_numparse=True, colalign=alignment)


def percent(share: torch.Tensor) -> str:
    """A share as percent with one decimal."""
    return f"{100 * float(share):.1f}"


def write_csv(
    path: Path, methods: Sequence[MethodPredictions], classnames: Sequence[str],
    all_probabilities: bool = False,
) -> None:
    """Writes one row per image.

    Columns are the image, the class and its confidence (0 to 1) before tuning and after each
    method, and the method's confidence after SaLS, which keeps the class.

    Args:
        path: The file.
        methods: The methods with their predictions.
        classnames: Class names; the index is the label.
        all_probabilities: Whether the probability of every class is written too, in columns such
            as `SoC_probability_cat`.
    """
    first = methods[0].predictions
    columns: Cells = {"image": [str(prediction.path) for prediction in first]}
    before = torch.stack([prediction.before for prediction in first])
    columns |= columns_of("zero_shot", before, classnames, all_probabilities)
    for method in methods:
        after = []
        with_sals = []
        failed = []
        for prediction in method.predictions:
            after.append(prediction.after)
            with_sals.append(prediction.with_sals)
            failed.append(str(int(prediction.failed)))
        columns |= columns_of(
            method.trainer, torch.stack(after), classnames, all_probabilities)
        sals_confidence = torch.stack(with_sals).softmax(-1).amax(-1)
        columns[f"{method.trainer}_sals_confidence"] = numbers(sals_confidence)
        columns[f"{method.trainer}_failed"] = failed
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for cells in zip(*columns.values(), strict=True):
        writer.writerow([no_formula(cell) for cell in cells])
    write_text(path, text.getvalue())


def columns_of(
    name: str, logits: torch.Tensor, classnames: Sequence[str], all_probabilities: bool,
) -> Cells:
    """The columns of one method, or of the predictions before tuning.

    Args:
        name: What the columns' names begin with.
        logits: (N, K).
        classnames: K names.
        all_probabilities: Whether there is a column per class.
    """
    probabilities = logits.softmax(-1)
    confidence, predicted = probabilities.max(-1)
    columns = {
        f"{name}_class": [classnames[label] for label in predicted.tolist()],
        f"{name}_confidence": numbers(confidence),
    }
    if all_probabilities:
        for label, classname in enumerate(classnames):
            column = f"{name}_probability_{classname}"
            if column in columns:  # two classes of one name
                column = f"{column}_{label}"
            columns[column] = numbers(probabilities[:, label])
    return columns


def numbers(values: torch.Tensor) -> list[str]:
    """Numbers as text with six decimals."""
    return [f"{value:.6f}" for value in values.tolist()]


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
    return {
        "name": path.name,
        "uri": data_uri(picture),
        "rows": class_rows(predictions, classnames, top),
        "failed": failed,
        "views": views[:MAX_VIEWS],
        "kept": f"Those of lowest entropy (in nats) before tuning, lowest first: "
                f"{number_of_views}.",
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
