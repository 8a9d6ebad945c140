"""From pixels to unit image features."""
from __future__ import annotations

import torch
from torch import Tensor

from ...datasets.views.pixels import Pixels
from ..functional.objectives import unit
from .backbone import Backbone
from .budget import Budget, retry_on_oom
from .numerics import autocast, in_parallel


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


def encode_views(
    backbone: Backbone, views: Tensor, precision: str = "fp32", normalised: bool | None = None,
    budget: Budget | None = None,
) -> Tensor:
    """Unit features of views.

    Args:
        backbone: The model.
        views: (B, V, 3, H, W), normalised or pixel values from 0 to 255.
        precision: Of the image tower.
        normalised: Whether they are normalised; None = all but uint8, which is always pixel values.
        budget: Views at once, halved when memory runs out; None = as many as fit by their sizes.

    Returns:
        Features (B, V, d).
    """
    raw = views.dtype == torch.uint8 if normalised is None else not normalised
    if budget is None:
        budget = Budget.of_images(backbone)

    @torch.no_grad()
    def encode_piece(piece: Tensor) -> Tensor:  # (n, 3, H, W) -> (n, d)
        piece = piece.to(backbone.device, non_blocking=True)
        pixels = normalise_pixels(piece, backbone.pixels) if raw else piece.float()
        with autocast(precision, backbone.device):
            return unit(backbone.encode_pixels(pixels))

    def encode() -> list[Tensor]:
        pieces = views.flatten(0, 1).split(budget.views)
        return in_parallel(encode_piece, pieces, backbone.device)

    return torch.cat(retry_on_oom(encode, budget.halve_views)).unflatten(0, views.shape[:2])
