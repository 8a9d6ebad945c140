"""Whether the numbers are right: precision on the real device, the data that is there, zero-shot accuracy."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import torch

from ...datasets.base import Dataset, Datum
from ...datasets.download.verify import Finding, inspect
from ...datasets.file_dataset import file_datasets
from ...datasets.utils.cli import tool
from ...datasets.views.maker import ViewMaker
from ...trainers import build_cfg, build_trainer
from ...trainers.report.published import find_for_run
from ...trainers.runs.parts import evenly
from ...trainers.vlm import small
from ...trainers.vlm.backbone import Backbone
from ...trainers.vlm.image_tower import encode_views
from ...trainers.vlm.openai_weights import SMALL
from .findings import FAULT, NOTE, Check

MOST_TURNED = 0.03  # share of signs of the first step; fp16 turns less than 0.1 % on the embedded model
LEAST_SHARE = 0.75  # of the published accuracy, on a few images, before something must be wrong


def precision(backbone: Backbone, names: Sequence[str], views: torch.Tensor) -> Check:
    """TPT's first step on some views (B, V, 3, S, S) in fp16 against fp32: the step is nearly the gradient's sign."""
    signs, sure = {}, {}
    for name in ("fp32", "fp16"):
        method = build_trainer(build_cfg("TPT", opts=[
            "MODEL.PREC", name, "TTA.VIEWS", views.shape[1], "TTA.SELECT", 0.5, "DEVICE", str(backbone.device)]))
        method.use_model(backbone, names)
        adapted = method.adapt(encode_views(backbone, views, name, normalised=False))
        signs[name] = (adapted.ctx - method.prompt.context).sign()
        sure[name] = adapted.logits.softmax(-1).amax(-1)
    turned = (signs["fp16"] != signs["fp32"]).float().mean().item()
    drift = (sure["fp16"] - sure["fp32"]).abs().max().item()
    found = f"fp16 turns {100 * turned:.2f} % of the first step's signs, confidence drifts by {100 * drift:.2f} points"
    bad = not turned <= MOST_TURNED  # NaN is bad too
    return Check(f"precision on {backbone.device}", found, FAULT if bad else "ok", "MODEL.PREC fp32" if bad else "")


def data_found(root: Path) -> list[Finding]:
    """The file_datasets below a root, those that are not there left out."""
    return [found for found in (inspect(cls, root) for cls in file_datasets()) if found.state != "absent"]


def describe(found: Sequence[Finding], root: Path) -> Iterator[Check]:
    if not found:
        yield Check("data", f"no benchmark in {root}", NOTE, f"{tool('download')} NAME --root {root}")
    for one in found:
        state = {"ok": "ok", "partial": NOTE}.get(one.state, FAULT)
        yield Check(f"data: {one.cls.name()}", f"{one.test or 0:,} test images, {one.state}", state, one.advice)


def published_accuracy(dataset: str, backbone: str) -> float | None:
    """Percent of a whole test set: as a paper prints it, or, of the embedded model, its card."""
    if (backbone, dataset) == (SMALL, "LandCover"):
        card = (resources.files(small) / "SMALL_CLIP.md").read_text(encoding="utf-8")
        row = re.search(r"^\| zero-shot \| ([\d.]+) ", card, re.MULTILINE)
        return float(row[1]) if row else None
    cell = find_for_run("accuracy", "ZeroShot", dataset, backbone)
    return float(cell.value) if cell else None


def zero_shot(backbone: Backbone, name: str, dataset: Dataset, items: Sequence[Datum], images: int) -> Check:
    """Accuracy on a few images beside the published one, of the whole set."""
    method = build_trainer(build_cfg("ZeroShot", opts=["DEVICE", str(backbone.device)]))
    method.use_model(backbone, dataset.classnames)
    maker = ViewMaker.of(1, backbone.pixels, False, 0)
    chosen = [items[i] for i in evenly(len(items), images)]
    views = torch.stack([maker(dataset.read_image(item), 0) for item in chosen])
    guessed = method.adapt(encode_views(backbone, views, method.precision, normalised=False)).logits.argmax(-1)
    right = (guessed.cpu() == torch.tensor([item.label for item in chosen])).float().mean().item()
    known = published_accuracy(type(dataset).__name__, name)
    found = f"{100 * right:.0f} % of {len(chosen)} images" + (f"; published: {known} % of all" if known else "")
    low = right < LEAST_SHARE * known / 100 if known else right <= 1.5 / len(dataset.classnames)
    return Check(f"zero-shot on {type(dataset).__name__}", found, FAULT if low else "ok",
                   f"are these the right weights and class names? {tool('check-data')}" if low else "")
