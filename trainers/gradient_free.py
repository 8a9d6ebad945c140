"""The base of methods that make one prediction of an image's views and learn nothing."""
from __future__ import annotations

import torch
from torch import Tensor
from yacs.config import CfgNode

from .base import BaseTrainer
from .config.validation import require_kept_views
from .engine.adapted import Adapted
from .functional.posthoc import cots_columns


class GradientFree(BaseTrainer):
    """A method says what it makes of the views, by `combine`. The prompt stays as it is."""

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        require_kept_views(cfg)

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        logits = self.prompt.logits(views, self.scale)
        return Adapted(self.combine(views, logits), logits[:, 0], columns=cots_columns(logits, logits))

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        """Logits (B, K) of B images, given unit view features (B, V, d) and their logits (B, V, K)."""
        raise TypeError(f"{type(self).__name__} does not say what it makes of the views")
