"""A page about single images: the views selected for tuning, and the confidences of each method."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from PIL import Image, ImageOps

from ...datasets.utils.files import write_text
from ...datasets.views.images import open_image
from ..api import Adapter
from ..functional.objectives import class_logits, entropy
from ..registry import ZERO_SHOT, method_info
from ..report.page import render
from ..report.thumbnails import data_uri
from ..tpt import TPT
from ..vlm.image_tower import encode_views
from ..vlm.prompt_words import CAVEAT, NearestWords, nearest_words
from .predict import Prediction

IMAGE_BOX, VIEW_BOX = (384, 384), (96, 96)  # pixels of an image and of a view
MAX_VIEWS = 24  # shown per image
NOTE = (
    "Bold: the predicted class. Zero-shot: before tuning. + SaLS: after tuning, with the logits scaled back to the "
    "range that they had before it; this needs no labels."
)


def write_page(
    path: Path, found: Mapping[str, Sequence[Prediction]], classnames: Sequence[str],
    selected: Sequence[Sequence[dict]], notes: Sequence[str], top: int = 5,
    words: Mapping[str, Sequence[Sequence[NearestWords]]] = MappingProxyType({}),
) -> None:
    """`found[method]` are the predictions of a method, `selected` the views that it is tuned on, `words[method]` its
    tuned contexts as words, all per image."""
    methods = [{"label": method_info(name).label} for name in found]
    images = []
    for at, views in enumerate(selected):
        predictions = {name: listed[at] for name, listed in found.items()}
        first = next(iter(predictions.values()))
        images.append({
            "name": first.path.name,
            "uri": data_uri(ImageOps.contain(open_image(first.path).convert("RGB"), IMAGE_BOX)),
            "rows": rows(predictions, classnames, top),
            "failed": [method_info(name).label for name, prediction in predictions.items() if prediction.failed],
            "views": views[:MAX_VIEWS],
            "kept": f"Those of lowest entropy (in nats) before tuning, lowest first: {len(views)}"
                    f"{f', of which {MAX_VIEWS} are shown' if len(views) > MAX_VIEWS else ''}.",
            "words": [{"label": method_info(name).label, "rows": [near.cells for near in listed[at]]}
                      for name, listed in words.items()],
        })
    title = f"Predictions: {images[0]['name'] if len(images) == 1 else f'{len(images)} images'}"
    write_text(path, render("predictions.html", title, methods=methods, images=images, page_notes=[*notes, NOTE],
                            words_note=CAVEAT))


def rows(predictions: Mapping[str, Prediction], classnames: Sequence[str], top: int) -> list[dict]:
    """The classes among the `top` of any method, sorted by their largest confidence."""
    first = next(iter(predictions.values()))
    columns = [(ZERO_SHOT, first.before)]
    for name, prediction in predictions.items():
        columns += [(name, prediction.after), (name, prediction.with_sals)]
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


def context_words(adapter: Adapter, predictions: Sequence[Prediction]) -> list[list[NearestWords]]:
    """The tuned context of each image as words; none for methods that do not tune it."""
    if not adapter.method.tunes_context:
        return []
    backbone = adapter.method.clip.backbone
    return [[] if one.context is None else nearest_words(one.context, backbone) for one in predictions]


def selected_views(adapter: Adapter, path: Path) -> list[dict]:
    """The views of an image that a method is tuned on, lowest entropy first; none for methods that select no views."""
    method = adapter.method
    if not isinstance(method, TPT) or not method.tuned:
        return []
    with torch.no_grad():
        views, _ = next(adapter.batches([path]))  # (1, V, 3, H, W), pixel values
        clip = method.clip
        features = encode_views(clip.backbone, views, method.numerics.precision, normalised=False)
        logits = class_logits(features, clip.text, clip.scale)[0]  # (V, K)
        places = method.select(logits).tolist()
    entropies = entropy(logits)
    pixels = views[0].float().cpu().clamp(0, 255).round().byte().permute(0, 2, 3, 1).numpy()
    return [
        {"image": data_uri(ImageOps.fit(Image.fromarray(pixels[place]), VIEW_BOX)),
         "words": f"{f'view {place}' if place else 'plain view'}, entropy {float(entropies[place]):.2f}"}
        for place in places
    ]
