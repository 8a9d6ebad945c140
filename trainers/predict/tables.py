"""Predictions of a user's own images as a table on the terminal and as a CSV file."""
from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from ...datasets.utils.files import no_formula, write_text
from ..registry import method_info
from .predict import Prediction

Cells = dict[str, list[str]]  # the columns of a CSV file by name


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
    path: Path, predictions: Mapping[str, Sequence[Prediction]], classnames: Sequence[str],
    all_probabilities: bool = False,
) -> None:
    """Writes one row per image.

    Columns are the image, the class and its confidence (0 to 1) before tuning and after each
    method, and the method's confidence after SaLS, which keeps the class.

    Args:
        path: The file.
        predictions: Predictions for the images, by method.
        classnames: Class names; the index is the label.
        all_probabilities: Whether the probability of every class is written too, in columns such
            as `SoC_probability_cat`.
    """
    first = next(iter(predictions.values()))
    columns: Cells = {"image": [str(prediction.path) for prediction in first]}
    before = torch.stack([prediction.before for prediction in first])
    columns |= columns_of("zero_shot", before, classnames, all_probabilities)
    for method, method_predictions in predictions.items():
        after = []
        with_sals = []
        failed = []
        for prediction in method_predictions:
            after.append(prediction.after)
            with_sals.append(prediction.with_sals)
            failed.append(str(int(prediction.failed)))
        columns |= columns_of(method, torch.stack(after), classnames, all_probabilities)
        sals_confidence = torch.stack(with_sals).softmax(-1).amax(-1)
        columns[f"{method}_sals_confidence"] = numbers(sals_confidence)
        columns[f"{method}_failed"] = failed
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
