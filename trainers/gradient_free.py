"""The base class of methods that combine an image's views into a prediction without tuning."""
from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor
from yacs.config import CfgNode

from .base import BaseTrainer
from .config.build import require_kept_views
from .engine.adapted import Adapted
from .functional.posthoc import cots_columns


class GradientFree(BaseTrainer):
    """A method defines `combine`. The prompt does not change."""

    selects_views = True  # uses TTA.SELECT

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """A method that selects views needs at least one selected view."""
        if cls.selects_views:
            require_kept_views(cfg)

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str]:
        """How views are made, and how they are selected if the method does that."""
        if cls.selects_views:
            return ("TTA.VIEWS", "TTA.AUGMIX", "TTA.SELECT")
        return ("TTA.VIEWS", "TTA.AUGMIX")

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """Logits of all views with the initial prompt, combined image by image."""
        logits = self.clip.logits(views)
        combined = self.combine(views, logits)
        return Adapted(combined, logits[:, 0], columns=cots_columns(logits, logits))

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        """Predicts from all views of an image.

        Args:
            views: Unit view features (B, V, d).
            logits: Logits of each view, (B, V, K).

        Returns:
            Logits (B, K).
        """
        raise TypeError(f"{type(self).__name__} does not define combine()")
