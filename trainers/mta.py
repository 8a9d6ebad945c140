"""MTA: the mode of the views, found by mean shift, stands for the image."""
from __future__ import annotations

import torch
from torch import Tensor

from .aggregation import view_mode
from .base import BaseTrainer
from .engine.adapted import Adapted
from .engine.aggregate import aggregate
from .objectives import class_logits
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class MTA(BaseTrainer):
    """α · mode(views) · Tᵀ, with the published constants for all data sets. (Zanella and Ben Ayed, MTA, CVPR 2024.)

    The mode has unit length and lies in the midst of a cluster, which makes it more confident than any one view.
    """

    label, colour, marker, rank = "MTA", "#3B3B98", "h", 62

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        return aggregate(views, self.prompt.text, self.scale, self.combine)

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        return class_logits(view_mode(views, logits), self.prompt.text, self.scale)
