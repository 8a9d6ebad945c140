"""How near the parts are to what the machine can do at all, and what they would take on GPUs of known rates.

The peak is that of matrix products of the towers' own shapes, timed in the same run. The time on a GPU is a model:
counted operations over the maker's stated dense rate in half precision, at the share of it given below.
"""
from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from .flops import CONTEXT
from .image_cases import TOWER
from .profiling import processor_seconds
from .records import BaselineComparison, Flops, Limit, ScalePoint
from .shapes import SHAPES
from .text_cases import JACOBIAN, VIEWS

logger = logging.getLogger(__name__)

STATED_RATES = {"A100": 312e12, "H100": 989e12}  # operations a second
SHARE_OF_STATED = 0.4  # what large transformers reach of them
VIEWS_TIMED, PEAK_ROUNDS = 8, 8
ENOUGH = 0.6  # of the peak; where a part has less, its reason is told

WHY = {
    "image tower": "softmax, norms and activations are no products",
    JACOBIAN: "the Jacobian is read from memory once for every batch: its product waits for memory",
    "one at a time": "products of a few tokens do not fill the processor; more episodes at once do",
    "text side": "attention of prompts of a few tokens, norms and activations are no large products",
    "C-TPT": "no products: a mean and distances from it",
    "SoC": "a percentile of all pairs and Huber's pieces, number by number; once a run in the first step",
    "A-TPT": "the largest of each row, number by number; once a run in the first step",
    "O-TPT": "the norm of each row, number by number; once a run in the first step",
    "selection": "the views' logits take few operations, and softmax and entropy are none of them",
    "views": "resampling and tables are no products; the public pipeline is their measure, above",
}


def peak_rate(backbone: str) -> float:
    """Operations a second of the two products of a transformer's MLP, of the image tower's shape and of the text
    tower's: the best that was seen of either."""
    shape = SHAPES[backbone]
    tokens = VIEWS_TIMED * ((shape.image_resolution // shape.vision_patch_size) ** 2 + 1)
    best = 0.0
    for width in (shape.vision_width, shape.transformer_width):
        x, up, down = torch.randn(tokens, width), torch.randn(width, 4 * width), torch.randn(4 * width, width)
        for _ in range(PEAK_ROUNDS):
            started = processor_seconds()
            x @ up @ down
            best = max(best, 16 * tokens * width**2 / (processor_seconds() - started))
    return best


def tower_limits(
    backbone: str, comparisons: Sequence[BaselineComparison], flops: Sequence[Flops], peak: float,
) -> list[Limit]:
    """The image tower and the text side, whose times were measured for the comparisons."""
    found = [
        limit(f"image tower, {VIEWS} views", backbone, 0, one.plain, image.products, peak)
        for one in comparisons if one.case == TOWER for image in flops if image.part == "image tower"
    ]
    shape, ours = SHAPES[backbone], {
        (one.classes, one.case.rsplit(", ", 1)[-1]): one.products for one in flops
        if one.part == "text tower" and one.case.startswith(f"{backbone}, shared")
    }
    for one in comparisons:
        if one.part == "text side" and (one.classes, "there") in ours:
            # the initial prompt's forward pass is kept: an episode is its backward pass, and one forward pass more
            back = ours[one.classes, "back"]
            if JACOBIAN in one.case:
                back = 2 * one.classes * shape.embed_dim * len(CONTEXT.split()) * shape.transformer_width
            found.append(limit(f"text side, {one.case}", backbone, one.classes, one.ours, ours[one.classes, "there"]
                               + back, peak))
    return found


def other_limits(
    backbone: str, points: Sequence[ScalePoint], views: Sequence[BaselineComparison], peak: float,
) -> list[Limit]:
    """Regularisers and selection at the largest number of classes, and the making of views."""
    width, most = SHAPES[backbone].embed_dim, max((one.classes for one in points), default=0)
    found = []
    for one in points:
        if one.classes == most and one.part != "text side":
            # value and gradient: T Tᵀ and two products of its size; of the views, their logits
            needed = {"regulariser": 6 * most**2 * width, "selection": 2 * VIEWS * most * width}[one.part]
            name = f"regulariser, {one.case}" if one.part == "regulariser" else f"selection, {one.case}"
            found.append(limit(name, "", most, one.seconds, 0 if one.case == "C-TPT" else needed, peak))
    return found + [limit(f"views, {one.case}", "", 0, VIEWS / one.ours, 0, peak) for one in views]


def limit(part: str, backbone: str, classes: int, seconds: float, operations: int, peak: float) -> Limit:
    on_gpus = {name: operations / (SHARE_OF_STATED * rate) for name, rate in STATED_RATES.items()}
    share = operations / seconds / peak
    reason = next((text for name, text in WHY.items() if name in part), "") if share < ENOUGH else ""
    return Limit(part, backbone, classes, seconds, operations, share, on_gpus, reason)
