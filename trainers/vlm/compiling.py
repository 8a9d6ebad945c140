"""MODEL.COMPILE: the image tower as one compiled function, for machines that run for hours.

Shapes are static: the few sizes of a run's groups of views are compiled once each, which takes about a minute. The
text tower is left as it is: its graph is kept and read backwards for many images at once (`is_grads_batched`), which
compiled functions do not allow.
"""
from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from .backbone import Backbone

logger = logging.getLogger(__name__)

Encode = Callable[[Tensor], Tensor]


def compile_image_tower(backbone: Backbone) -> None:
    """From here on `encode_pixels` is compiled. Where that fails, for want of a C++ compiler say, it is as before."""
    backbone.encode_pixels = with_fallback(torch.compile(backbone.encode_pixels, dynamic=False), backbone.encode_pixels)


def with_fallback(compiled: Encode, plain: Encode) -> Encode:
    works: bool | None = None

    def encode(pixels: Tensor) -> Tensor:
        nonlocal works
        if works is False:
            return plain(pixels)
        try:
            features = compiled(pixels)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if works:
                raise
            works = False
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            logger.warning("MODEL.COMPILE: torch cannot compile the image tower here (%s), so it runs as it is", reason)
            return plain(pixels)
        works = True
        return features

    return encode
