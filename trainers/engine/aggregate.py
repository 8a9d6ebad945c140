"""One prediction out of an image's views, with the initial prompt and without a gradient."""
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..objectives import class_logits
from ..posthoc import strong_columns
from .adapted import Adapted

Combine = Callable[[Tensor, Tensor], Tensor]  # views (B, V, d) and their logits (B, V, K) -> logits (B, K)


def aggregate(views: Tensor, text: Tensor, scale: Tensor, combine: Combine) -> Adapted:
    """What `combine` makes of B images, given as unit view features, beside the plain view's own prediction."""
    logits = class_logits(views, text, scale)
    return Adapted(combine(views, logits), logits[:, 0], columns=strong_columns(logits, logits))
