"""From pixels to unit image features."""
from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ...datasets.utils.errors import UserError
from ..objectives import unit
from .openai_clip import CLIP, clip
from .precision import autocast
from .shrink import until_it_fits

MEAN = (0.48145466, 0.4578275, 0.40821073)  # CLIP's pixel statistics
STD = (0.26862954, 0.26130258, 0.27577711)
VIEWS_AT_ONCE = 256  # on a GPU: fills it and bounds memory
# On a CPU, numbers in the largest activation: from 32 MB on, memory is handed back to the system after every use and
# paged in anew, which costs a quarter of the time.
CPU_NUMBERS_AT_ONCE = 5_000_000
SHRUNK: WeakKeyDictionary[CLIP, int] = WeakKeyDictionary()  # views at once of models that were out of memory


def normalise_pixels(pixels: Tensor) -> Tensor:
    """uint8 views, normalised on the device they are on. (..., 3, H, W)"""
    mean = torch.tensor(MEAN, device=pixels.device).view(3, 1, 1)
    std = torch.tensor(STD, device=pixels.device).view(3, 1, 1)
    return (pixels.float() / 255 - mean) / std


@torch.no_grad()
def encode_views(model: CLIP, views: Tensor, precision: str = "fp32") -> Tensor:
    """Unit features (B, V, d) of views (B, V, 3, H, W), either uint8 or already normalised."""
    def encode() -> list[Tensor]:
        return [encode_chunk(model, chunk, precision) for chunk in views.flatten(0, 1).split(views_at_once(model))]

    return torch.cat(until_it_fits(encode, lambda: halve_views(model))).unflatten(0, views.shape[:2])


def encode_chunk(model: CLIP, views: Tensor, precision: str) -> Tensor:
    """Unit features (n, d) of views (n, 3, H, W)."""
    device = model.logit_scale.device
    views = views.to(device, non_blocking=True)
    pixels = normalise_pixels(views) if views.dtype == torch.uint8 else views.float()
    with autocast(precision, device):
        return unit(encode_pixels(model, pixels))


def halve_views(model: CLIP) -> str:
    """Less memory: half as many views at once from now on."""
    if views_at_once(model) == 1:
        raise UserError("out of memory with one view at a time: use DEVICE cpu")
    SHRUNK[model] = views_at_once(model) // 2
    return f"{SHRUNK[model]} views"


def views_at_once(model: CLIP) -> int:
    """How many views go through the tower together: a power of two, so that the usual 64 views of each image are
    grouped in the same way wherever in a batch the image stands."""
    if model in SHRUNK:
        return SHRUNK[model]
    visual = model.visual
    if model.logit_scale.device.type != "cpu":
        return VIEWS_AT_ONCE
    if isinstance(visual, clip.model.VisionTransformer):
        numbers = 4 * visual.positional_embedding.numel()  # the hidden layer of an MLP
    else:
        numbers = visual.conv3.out_channels * (visual.input_resolution // 2) ** 2  # before the stem's pooling
    return min(VIEWS_AT_ONCE, 1 << max(1, CPU_NUMBERS_AT_ONCE // numbers).bit_length() - 1)


def encode_pixels(model: CLIP, pixels: Tensor) -> Tensor:
    """Image features (N, d), not normalised. A vision transformer is read at its class token, so in the last layer only
    that one is computed, which spares most of that layer."""
    visual = model.visual
    if not isinstance(visual, clip.model.VisionTransformer):
        return model.encode_image(pixels)
    patches = visual.conv1(pixels).flatten(2).mT  # (N, patches, width)
    x = torch.cat([visual.class_embedding.expand(len(patches), 1, -1), patches], dim=1) + visual.positional_embedding
    x = visual.ln_pre(x).transpose(0, 1)  # (tokens, N, width), as the layers want it
    *layers, last = visual.transformer.resblocks
    for layer in layers:
        x = layer(x)
    attended = last.ln_1(x)
    first = x[:1] + last.attn(attended[:1], attended, attended, need_weights=False)[0]
    first = first + last.mlp(last.ln_2(first))
    return visual.ln_post(first[0]) @ visual.proj
