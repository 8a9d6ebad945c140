"""VTE: the mean of confident views stands for the image."""
from __future__ import annotations

import torch
from torch import Tensor
from yacs.config import CfgNode

from .base import BaseTrainer
from .config.validation import require_kept_views
from .engine.adapted import Adapted
from .engine.aggregate import aggregate
from .objectives import class_logits, confident_views
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class VTE(BaseTrainer):
    """α · mean of the confident views' features · Tᵀ. (Döbler et al., VTE, 2024.)

    The mean is not brought back to unit length, as published: the less the views agree, the shorter it is, which acts
    as a temperature.
    """

    label, colour, marker, rank = "VTE", "#117733", "*", 60

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        require_kept_views(cfg)

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        return aggregate(views, self.prompt.text, self.scale, self.combine)

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        chosen = confident_views(logits, self.cfg.TTA.SELECT)
        mean = views.take_along_dim(chosen[..., None], dim=1).mean(1)  # (B, d)
        return class_logits(mean, self.prompt.text, self.scale)
