"""MTA: predicts from the mode of the view features, found by mean shift."""
from __future__ import annotations

from torch import Tensor

from .functional.aggregation import view_mode
from .gradient_free import GradientFree
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class MTA(GradientFree):
    """α · mode(views) · Tᵀ, with the published constants for all data sets. (Zanella and Ben Ayed, MTA, CVPR 2024.)

    The mode has unit length and lies at the centre of a cluster, which makes it more confident than single views.
    """

    label, colour, marker, display_order = "MTA", "#3B3B98", "h", 62
    selects_views = False

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        return self.clip.logits(view_mode(views, logits))
