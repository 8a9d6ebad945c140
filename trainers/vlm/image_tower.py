"""Computes unit image features from pixels."""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ...datasets.views.geometry import Pixels
from ..functional.objectives import unit
from .backbone import Backbone
from .budget import Budget, retry_on_oom
from .numerics import autocast, in_parallel


@lru_cache(maxsize=8)
def pixel_statistics(pixels: Pixels, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns mean and standard deviation of a backbone's pixels, (3, 1, 1) each.

    They are uploaded once, because each upload would make the host wait for a GPU.

    Args:
        pixels: The image tower's input.
        device: The device of the result.
    """
    mean = torch.tensor(pixels.mean, dtype=torch.float32, device=device).view(3, 1, 1)
    std = torch.tensor(pixels.std, dtype=torch.float32, device=device).view(3, 1, 1)
    return mean, std


def normalise_pixels(views: Tensor, pixels: Pixels) -> Tensor:
    """Normalises pixel values as the image tower takes them: (value / 255 − mean) / deviation.

    Args:
        views: Pixel values from 0 to 255, uint8 or float, (..., 3, H, W).
        pixels: The image tower's input.

    Returns:
        Normalised pixels in fp32 on the device of the views, (..., 3, H, W).
    """
    mean, std = pixel_statistics(pixels, views.device)
    if views.dtype == torch.uint8 and views.device.type == "cpu" and views.dim() > 3:
        normalised = torch.empty(views.shape)
        # One view fits into a core's cache.
        for view, out in zip(views.flatten(0, -4), normalised.flatten(0, -4), strict=True):
            torch.div(view, 255, out=out).sub_(mean).div_(std)
        return normalised
    if views.is_floating_point():
        views = views.float()
    return torch.div(views, 255).sub_(mean).div_(std)


def encode_views(
    backbone: Backbone, views: Tensor | Sequence[Tensor], precision: str = "fp32",
    normalised: bool | None = None, budget: Budget | None = None, parallel: bool = True,
) -> Tensor:
    """Computes unit features of views.

    Views on the CPU are uploaded piece by piece: only those of one piece are on the device at a
    time, and when they do not fit, pieces become smaller.

    Args:
        backbone: The model.
        views: Views of B images, (B, V, 3, H, W) or a tensor (V, 3, H, W) for each; normalised, or
            pixel values from 0 to 255.
        precision: Precision of the image tower.
        normalised: Whether the views are normalised; None = unless they are uint8, which always
            holds pixel values.
        budget: The number of views at once, halved when memory runs out; None = as many as fit by
            their sizes.
        parallel: Whether a CPU computes pieces on several cores. False in a thread that encodes
            one of many images.

    Returns:
        Features (B, V, d).
    """
    has_pixel_values = not normalised
    if normalised is None:
        has_pixel_values = views[0].dtype == torch.uint8
    if budget is None:
        budget = Budget.of_images(backbone)

    @torch.no_grad()
    def encode_piece(piece: Sequence[Tensor]) -> Tensor:
        """Encodes tensors (n, 3, H, W) to features (sum of n, d)."""
        uploaded = [part.to(backbone.device, non_blocking=True) for part in piece]
        pixels = uploaded[0]
        if len(uploaded) > 1:
            pixels = torch.cat(uploaded)
        if has_pixel_values:
            pixels = normalise_pixels(pixels, backbone.pixels)
        else:
            pixels = pixels.float()
        with autocast(precision, backbone.device):
            return unit(backbone.encode_pixels(pixels))

    def encode() -> list[Tensor]:
        # Divided at each attempt, because running out of memory makes the budget smaller.
        if isinstance(views, Tensor):
            pieces = [[piece] for piece in views.flatten(0, 1).split(budget.views)]
        else:
            pieces = split_views(views, budget.views)
        if not parallel:
            return [encode_piece(piece) for piece in pieces]
        return in_parallel(encode_piece, pieces, backbone.device)

    features = torch.cat(retry_on_oom(budget.halve_views, encode))
    return features.unflatten(0, (len(views), len(views[0])))


def split_views(images: Sequence[Tensor], size: int) -> list[list[Tensor]]:
    """Divides the views of images into pieces, without copying them.

    Args:
        images: The views of each image, (V, 3, H, W).
        size: Number of views per piece; only the last piece may have fewer.

    Returns:
        Slices (n, 3, H, W) of one image or several, for each piece.
    """
    pieces: list[list[Tensor]] = []
    room = 0  # number of views that the last piece still takes
    for views in images:
        first = 0
        while first < len(views):
            if room == 0:
                pieces.append([])
                room = size
            part = views[first : first + room]
            pieces[-1].append(part)
            room -= len(part)
            first += len(part)
    return pieces
