"""MODEL.COMPILE: the towers as compiled functions, for machines that run for hours.

Shapes are static: the few sizes of a run's groups of views and of episodes are compiled once each, which takes about a
minute. Of the text tower those passes are compiled that only ask for features, as every episode's last one does. Where
the gradient is asked for, one graph is kept and read backwards for many images at once (`is_grads_batched`), which
compiled functions do not allow.
"""
from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from .backbone import Backbone

logger = logging.getLogger(__name__)

Encode = Callable[..., Tensor]


def compile_image_tower(backbone: Backbone) -> None:
    """From here on `encode_pixels` is compiled."""
    backbone.encode_pixels = compiled(backbone.encode_pixels, "the image tower")


def compiled(plain: Encode, what: str) -> Encode:
    """A tower, compiled when it is first called. Where that fails, for want of a C++ compiler say, it is as before."""
    quick = torch.compile(plain, dynamic=False)
    works: bool | None = None

    def encode(*given: Tensor | None) -> Tensor:
        nonlocal works
        if works is False:
            return plain(*given)
        try:
            features = quick(*given)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if works:
                raise
            works = False
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            logger.warning("MODEL.COMPILE: torch cannot compile %s here (%s), so it runs as it is", what, reason)
            return plain(*given)
        works = True
        return features

    return encode
