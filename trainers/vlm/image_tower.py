"""From pixels to unit image features."""
from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...datasets.utils.errors import UserError
from ...datasets.views.pixels import Pixels
from ..functional.objectives import unit
from .backbone import Backbone
from .numerics import autocast, in_parallel, retry_on_oom

VIEWS_AT_ONCE = 256  # on a GPU: fills it and bounds memory
# On a CPU, numbers in the largest activation: from 32 MB on, malloc returns memory to the system after every use and
# pages it in again, which costs a quarter of the time.
CPU_NUMBERS_AT_ONCE = 5_000_000
REDUCED: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # views at once of models that ran out of memory


def normalise_pixels(views: Tensor, pixels: Pixels) -> Tensor:
    """Pixel values from 0 to 255, uint8 or float, normalised on their device. (..., 3, H, W)"""
    mean = torch.tensor(pixels.mean, device=views.device).view(3, 1, 1)
    std = torch.tensor(pixels.std, device=views.device).view(3, 1, 1)
    if views.dtype == torch.uint8 and views.device.type == "cpu" and views.dim() > 3:
        made = torch.empty(views.shape)
        for view, out in zip(views.flatten(0, -4), made.flatten(0, -4), strict=True):  # one fits a core's cache
            torch.div(view, 255, out=out).sub_(mean).div_(std)
        return made
    return torch.div(views.float() if views.is_floating_point() else views, 255).sub_(mean).div_(std)


def encode_views(backbone: Backbone, views: Tensor, precision: str = "fp32", normalised: bool | None = None) -> Tensor:
    """Unit features (B, V, d) of views (B, V, 3, H, W): normalised, or pixel values from 0 to 255, as uint8 always
    are and numbers of other types if `normalised` is False."""
    raw = views.dtype == torch.uint8 if normalised is None else not normalised

    @torch.no_grad()
    def encode_piece(piece: Tensor) -> Tensor:  # (n, 3, H, W) -> (n, d)
        piece = piece.to(backbone.device, non_blocking=True)
        pixels = normalise_pixels(piece, backbone.pixels) if raw else piece.float()
        with autocast(precision, backbone.device):
            return unit(backbone.encode_pixels(pixels))

    def encode() -> list[Tensor]:
        return in_parallel(encode_piece, views.flatten(0, 1).split(views_at_once(backbone)), backbone.device)

    return torch.cat(retry_on_oom(encode, lambda: halve_views(backbone))).unflatten(0, views.shape[:2])


def halve_views(backbone: Backbone) -> str:
    """Less memory: half as many views at once from now on."""
    if views_at_once(backbone) == 1:
        raise UserError("out of memory with one view at a time: use DEVICE cpu")
    REDUCED[backbone.module] = views_at_once(backbone) // 2
    return f"{REDUCED[backbone.module]} views"


def views_at_once(backbone: Backbone) -> int:
    """How many views go through the tower together: a power of two, so that the usual 64 views of each image are
    grouped in the same way at any place in a batch."""
    if backbone.module in REDUCED:
        return REDUCED[backbone.module]
    if backbone.device.type != "cpu":
        return VIEWS_AT_ONCE
    return min(VIEWS_AT_ONCE, 1 << max(1, CPU_NUMBERS_AT_ONCE // backbone.activations).bit_length() - 1)
