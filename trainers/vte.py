"""VTE: predicts from the mean feature of confident views."""
from __future__ import annotations

from torch import Tensor

from .functional.objectives import confident_views
from .gradient_free import GradientFree
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class VTE(GradientFree):
    """α · mean of the confident views' features · Tᵀ. (Döbler et al., VTE, ECCV 2024 workshop.)

    As published, the mean is not normalised: the less the views agree, the shorter it is. All
    logits shrink with it, so disagreement lowers the confidence as a temperature would.
    """

    label = "VTE"
    colour = "#117733"
    marker = "*"
    display_order = 60

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        """Logits of the confident views' mean feature, (B, K)."""
        chosen = confident_views(logits, self.cfg.TTA.SELECT)
        mean = views.take_along_dim(chosen[..., None], dim=1).mean(1)  # (B, d)
        return self.clip.logits(mean)
