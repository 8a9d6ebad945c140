"""MTA: predicts from the mode of the view features, found by mean shift."""
from __future__ import annotations

from torch import Tensor

from .functional.aggregation import view_mode
from .gradient_free import GradientFree
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class MTA(GradientFree):
    """α · mode(views) · Tᵀ, with the published constants for all data sets.

    The mode has unit length and lies at the centre of a cluster, which makes it more confident than
    single views. (Zanella and Ben Ayed, MTA, CVPR 2024.)
    """

    label = "MTA"
    colour = "#3B3B98"
    marker = "h"
    display_order = 62
    selects_views = False  # all views count, each by how near it is to the others

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        """Logits of the views' mode, (B, K)."""
        return self.clip.logits(view_mode(views, logits))
