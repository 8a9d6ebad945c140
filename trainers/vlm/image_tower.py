"""From pixels to unit image features."""
from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ...datasets.utils.errors import UserError
from ...datasets.views.pixels import Pixels
from ..functional.objectives import unit
from .backbone import Backbone
from .numerics import in_parallel
from .oom import retry_on_oom
from .precision import autocast

VIEWS_AT_ONCE = 256  # on a GPU: fills it and bounds memory
# On a CPU, numbers in the largest activation: from 32 MB on, memory is handed back to the system after every use and
# paged in anew, which costs a quarter of the time.
CPU_NUMBERS_AT_ONCE = 5_000_000
SHRUNK: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # views at once of models that were out of memory


def normalise_pixels(views: Tensor, pixels: Pixels) -> Tensor:
    """Pixel values from 0 to 255, uint8 or float, normalised on the device they are on. (..., 3, H, W)"""
    mean = torch.tensor(pixels.mean, device=views.device).view(3, 1, 1)
    std = torch.tensor(pixels.std, device=views.device).view(3, 1, 1)
    return torch.div(views.float() if views.is_floating_point() else views, 255).sub_(mean).div_(std)


def encode_views(
    backbone: Backbone, views: Tensor, precision: str = "fp32", normalised: bool | None = None,
) -> Tensor:
    """Unit features (B, V, d) of views (B, V, 3, H, W): normalised, or pixel values from 0 to 255, as uint8 always
    are and numbers of other types if `normalised` is False."""
    raw = views.dtype == torch.uint8 if normalised is None else not normalised

    def encode() -> list[Tensor]:
        pieces = views.flatten(0, 1).split(views_at_once(backbone))
        return in_parallel(lambda piece: encode_chunk(backbone, piece, precision, raw), pieces, backbone.device)

    return torch.cat(retry_on_oom(encode, lambda: halve_views(backbone))).unflatten(0, views.shape[:2])


@torch.no_grad()
def encode_chunk(backbone: Backbone, views: Tensor, precision: str, raw: bool) -> Tensor:
    """Unit features (n, d) of views (n, 3, H, W)."""
    views = views.to(backbone.device, non_blocking=True)
    pixels = normalise_pixels(views, backbone.pixels) if raw else views.float()
    with autocast(precision, backbone.device):
        return unit(backbone.encode_pixels(pixels))


def halve_views(backbone: Backbone) -> str:
    """Less memory: half as many views at once from now on."""
    if views_at_once(backbone) == 1:
        raise UserError("out of memory with one view at a time: use DEVICE cpu")
    SHRUNK[backbone.module] = views_at_once(backbone) // 2
    return f"{SHRUNK[backbone.module]} views"


def views_at_once(backbone: Backbone) -> int:
    """How many views go through the tower together: a power of two, so that the usual 64 views of each image are
    grouped in the same way wherever in a batch the image stands."""
    if backbone.module in SHRUNK:
        return SHRUNK[backbone.module]
    if backbone.device.type != "cpu":
        return VIEWS_AT_ONCE
    return min(VIEWS_AT_ONCE, 1 << max(1, CPU_NUMBERS_AT_ONCE // backbone.activations).bit_length() - 1)
