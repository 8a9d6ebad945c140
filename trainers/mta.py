"""MTA: the mode of the views, found by mean shift, stands for the image."""
from __future__ import annotations

from torch import Tensor

from .functional.aggregation import view_mode
from .gradient_free import GradientFree
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class MTA(GradientFree):
    """α · mode(views) · Tᵀ, with the published constants for all data sets. (Zanella and Ben Ayed, MTA, CVPR 2024.)

    The mode has unit length and lies in the midst of a cluster, which makes it more confident than any one view.
    """

    label, colour, marker, display_order = "MTA", "#3B3B98", "h", 62

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        return self.prompt.logits(view_mode(views, logits), self.scale)
