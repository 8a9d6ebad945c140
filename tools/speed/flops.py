"""Operations of each part, counted by torch on tensors without content, beside the paper's complexity table.

torch's counter sees products of matrices and convolutions only. For the regularisers, whose other operations are
simple, those are added by formula: one for each addition, multiplication, division, root or comparison of numbers.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ...trainers.functional.flop_counts import REGULARISERS
from ...trainers.functional.objectives import dispersion, orthogonality, pair_similarities
from ...trainers.report.published import find
from ...trainers.vlm.openai import TOKENIZER, OpenAIBackbone
from ...trainers.vlm.openai_clip import CLIP, clip
from ...trainers.vlm.prompts import class_tokens
from ...trainers.vlm.text_encoder import TextEncoder
from .baseline import reference
from .records import Flops
from .shapes import class_names, random_clip
from .text_cases import VIEWS

logger = logging.getLogger(__name__)

CONTEXT = "a photo of a"
PAPER_WIDTH = 768  # the published figures are those of ViT-L/14: SoC's is 2K²d, O-TPT's 2K²d + 5K³ + K²
PUBLISHED = {"O-TPT, cubic": "O-TPT", "SoC": "SoC"}


def count(function: Callable[..., object], *args: object) -> tuple[int, object]:
    """Operations in products of matrices, and what the function returns."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        result = function(*args)
    return counter.get_total_flops(), result


def tower_flops(backbone: str, counts: Sequence[int]) -> list[Flops]:
    """The text tower, there and back, the plain way and ours; and the image tower."""
    model = random_clip(backbone, "meta")
    side = model.visual.input_resolution
    image, _ = count(model.encode_image, torch.empty(VIEWS, 3, side, side, device="meta"))
    found = [Flops("image tower", f"{backbone}, {VIEWS} views", 0, image)]
    for classes in counts:
        logger.info("operations: %s, %d classes", backbone, classes)
        for way, there, back in (("77 tokens a class", *plain_text(model, classes)),
                                 ("shared beginning", *our_text(model, classes))):
            found.append(Flops("text tower", f"{backbone}, {way}, there", classes, there))
            found.append(Flops("text tower", f"{backbone}, {way}, back", classes, back))
    return found


def plain_text(model: CLIP, classes: int) -> tuple[int, int]:
    names = class_names(classes)
    tokens = clip.tokenize([f"{CONTEXT} {name}." for name in names]).to("meta")
    context = torch.empty(len(CONTEXT.split()), model.transformer.width, device="meta", requires_grad=True)
    there, text = count(reference().encode_prompts, model, tokens, context)
    return there, count(torch.autograd.grad, text.sum(), context)[0]


def our_text(model: CLIP, classes: int) -> tuple[int, int]:
    tower = TextEncoder(OpenAIBackbone(model), class_tokens(class_names(classes), TOKENIZER))
    context = torch.empty(1, len(CONTEXT.split()), model.transformer.width, device="meta")
    there, (text, vjp) = count(tower.with_vjp, context)
    return there, count(vjp, torch.empty_like(text))[0]


def regulariser_flops(counts: Sequence[int]) -> list[Flops]:
    """The regularisers' values, as the paper counts them: without their gradients."""
    found = []
    products: dict[str, Callable[[Tensor], Tensor]] = {
        "O-TPT, cubic": reference().cubic_orthogonality, "O-TPT, closed form": orthogonality,
        "SoC": pair_similarities, "C-TPT": dispersion,
    }
    for classes in counts:
        text = torch.empty(classes, PAPER_WIDTH, device="meta")
        for case, function in products.items():
            cell = find("complexity", "mflops", PUBLISHED.get(case, ""), str(classes))
            found.append(Flops(
                "regulariser", case, classes, count(function, text)[0],
                REGULARISERS[case].singles(classes, PAPER_WIDTH),
                cell and cell.printed,
            ))
    return found
