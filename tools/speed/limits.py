"""How near the parts are to what the machine can do at all, and what they would take on GPUs of known rates.

The peak is that of matrix products of the tower's own shapes, timed in the same run. The time on a GPU is a model:
counted operations over the maker's stated dense rate in half precision, at the share of it given below.
"""
from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from .flops import count
from .measure import interleaved
from .records import Comparison, Flops, Limit
from .shapes import SHAPES, random_clip
from .text_cases import VIEWS

logger = logging.getLogger(__name__)

STATED_RATES = {"A100": 312e12, "H100": 989e12}  # operations a second
SHARE_OF_STATED = 0.4  # what large transformers reach of them
VIEWS_TIMED = 8


def peak_rate(backbone: str, rounds: int) -> float:
    """Operations a second of the two products of a transformer's MLP, of the image tower's shape."""
    shape = SHAPES[backbone]
    tokens = VIEWS_TIMED * ((shape.image_resolution // shape.vision_patch_size) ** 2 + 1)
    wide = 4 * shape.vision_width
    x, up, down = torch.randn(tokens, shape.vision_width), torch.randn(shape.vision_width, wide), torch.randn(
        wide, shape.vision_width)
    seconds = interleaved({"products": lambda: x @ up @ down}, rounds)["products"]
    return 4 * tokens * shape.vision_width * wide / seconds


def limits(backbone: str, comparisons: Sequence[Comparison], flops: Sequence[Flops], rounds: int) -> list[Limit]:
    """The image tower, timed here, and the text side's cases, timed before."""
    logger.info("limits: %s", backbone)
    peak = peak_rate(backbone, rounds)
    model, side = random_clip(backbone), SHAPES[backbone].image_resolution
    pixels = torch.randn(VIEWS_TIMED, 3, side, side)
    with torch.no_grad():
        seconds = interleaved({"tower": lambda: model.encode_image(pixels)}, rounds)["tower"] / VIEWS_TIMED * VIEWS
    operations, _ = count(random_clip(backbone, "meta").encode_image, torch.empty(VIEWS, 3, side, side, device="meta"))
    found = [limit(f"image tower, {VIEWS} views", backbone, 0, seconds, operations, peak)]
    ours = {
        (one.classes, one.case.rsplit(", ", 1)[-1]): one.products for one in flops
        if one.part == "text tower" and one.case.startswith(f"{backbone}, shared")
    }
    for one in comparisons:
        if one.part == "text side" and one.backbone == backbone and "Jacobian" not in one.case:
            # the initial prompt's forward pass is kept: an episode is its backward pass, and one forward pass more
            needed = ours.get((one.classes, "there"), 0) + ours.get((one.classes, "back"), 0)
            found.append(limit(f"text side, {one.case}", backbone, one.classes, one.ours, needed, peak))
    return found


def limit(part: str, backbone: str, classes: int, seconds: float, operations: int, peak: float) -> Limit:
    on_gpus = {name: operations / (SHARE_OF_STATED * rate) for name, rate in STATED_RATES.items()}
    return Limit(part, backbone, classes, seconds, operations, operations / seconds / peak, on_gpus)
