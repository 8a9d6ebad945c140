"""A page about single pictures: what was kept of their views, and each method's confidences before and after."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import Tensor

from ...datasets.utils.files import write_text
from ...datasets.views.images import open_image
from ..api import Adapter
from ..functional.objectives import class_logits, entropy
from ..registry import method_info, zero_shot_name
from ..report.page.page import render
from ..report.thumbnails import data_uri
from ..vlm.image_tower import encode_views
from .predict import Prediction

LARGE, SMALL = 384, 96  # pixels of a picture's longer side, and of a view
MOST_VIEWS = 24  # shown of a picture
NOTE = (
    "Bold: the predicted class. Zero-shot: before tuning. + SaLS: after tuning, with the logits brought back into the "
    "range that they had before it; that needs no labels."
)


def write_page(
    path: Path, found: Mapping[str, Sequence[Prediction]], classnames: Sequence[str], kept: Sequence[Sequence[dict]],
    notes: Sequence[str], top: int = 5,
) -> None:
    """`found[method]` are its predictions, `kept` the views that tuning keeps, both picture by picture."""
    methods = [{"label": method_info(name).label} for name in found]
    pictures = []
    for place, own in enumerate(kept):
        predictions = {name: listed[place] for name, listed in found.items()}
        first = next(iter(predictions.values()))
        pictures.append({
            "name": first.path.name, "image": data_uri(shrunk(open_image(first.path))),
            "rows": rows(predictions, classnames, top),
            "failed": [method_info(name).label for name, prediction in predictions.items() if prediction.failed],
            "views": list(own)[:MOST_VIEWS],
            "kept": f"Those of lowest entropy (in nats) before tuning, lowest first: {len(own)}"
                    f"{f', of which {MOST_VIEWS} are shown' if len(own) > MOST_VIEWS else ''}.",
        })
    title = f"Predictions: {pictures[0]['name']}" if len(pictures) == 1 else f"Predictions: {len(pictures)} pictures"
    write_text(path, render("pictures.html", title, methods=methods, pictures=pictures, page_notes=[*notes, NOTE]))


def rows(predictions: Mapping[str, Prediction], classnames: Sequence[str], top: int) -> list[dict]:
    """The classes that are among the `top` of any method, by their largest confidence."""
    first = next(iter(predictions.values()))
    columns = [(zero_shot_name(), first.logits[0])]
    for name, prediction in predictions.items():
        columns += [(name, prediction.logits[1]), (name, prediction.logits[2])]
    shares = torch.stack([logits.softmax(-1) for _, logits in columns])  # (columns, K)
    chosen = set(shares.topk(min(top, len(classnames))).indices.flatten().tolist())
    order = sorted(chosen, key=lambda k: -float(shares[:, k].max()))
    winners = shares.argmax(-1).tolist()
    return [
        {"name": classnames[k], "cells": [
            {"text": f"{100 * float(share[k]):.1f}", "best": winner == k, "colour": method_info(name).colour}
            for (name, _), share, winner in zip(columns, shares, winners, strict=True)
        ]}
        for k in order
    ]


def kept_views(adapter: Adapter, path: Path) -> list[dict]:
    """The views of a picture that a method tunes on, most certain first; none of a method that looks at one alone."""
    method = adapter.method
    if not (method_info(method.cfg.TRAINER.NAME).tuned and hasattr(method, "select")):
        return []
    with torch.no_grad():
        views, _ = next(adapter.batches([path]))  # (1, V, 3, H, W), pixel values
        features = encode_views(method.backbone, views, method.precision, normalised=False)
        logits = class_logits(features, method.prompt.text, method.scale)[0]  # (V, K)
        places = method.select(logits).tolist()
    unsure = entropy(logits)
    return [
        {"image": data_uri(as_picture(views[0, place])), "words": f"{'plain view' if place == 0 else f'view {place}'}, "
         f"entropy {float(unsure[place]):.2f}"}
        for place in places
    ]


def as_picture(view: Tensor) -> Image.Image:
    """Pixel values (3, H, W) as a small picture."""
    pixels = view.detach().float().cpu().clamp(0, 255).round().byte().permute(1, 2, 0).numpy()
    return ImageOps.fit(Image.fromarray(pixels), (SMALL, SMALL))


def shrunk(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    image.thumbnail((LARGE, LARGE))
    return image
