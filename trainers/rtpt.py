"""R-TPT: minimises each confident view's entropy; similar views have more weight in predictions."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .config.settings import OneOf, Range, Setting
from .functional.aggregation import reliability
from .functional.objectives import class_logits, mean_entropy
from .registry import TRAINER_REGISTRY
from .tpt import TPT


@TRAINER_REGISTRY.register()
class RTPT(TPT):
    """min mean_i H(p_i), then Σ_i w_i z_i over all views, w their reliability.

    p_i and z_i are probabilities and logits of view i, H is the entropy. Views that resemble many
    others are reliable, so an adversarial or cut-off view has little weight. The public code tells
    a view from its neighbours by its cosine with itself, which rounding makes uncertain:
    `DIAGONAL code`. (Sheng et al., R-TPT, CVPR 2025.)
    """

    label = "R-TPT"
    colour = "#7B4FA3"
    marker = ">"
    display_order = 12
    settings: ClassVar = [
        Setting(
            "NEIGHBOURS",
            20,
            "number of nearest other views whose mean cosine is a view's reliability",
            allowed=Range(least=1, text="at least 1"),
        ),
        Setting(
            "TEMPERATURE",
            0.01,
            "temperature of the softmax that turns reliabilities into weights",
            allowed=Range(above=0),
        ),
        Setting(
            "DIAGONAL",
            "index",
            "rule that excludes a view from its own neighbours: index; or code, cosine >= 1",
            allowed=OneOf(("index", "code")),
        ),
    ]

    def view_loss(self, logits: Tensor) -> Tensor:
        """The mean of the views' entropies, (B, n, K) -> (B,); TPT has the entropy of their mean.
        """
        return mean_entropy(logits)

    def predict(self, views: Tensor, text: Tensor) -> Tensor:
        """Σ_i w_i z_i over all views.

        Args:
            views: Unit view features, (B, V, d).
            text: Tuned class features, (..., K, d).

        Returns:
            Logits, (B, K).
        """
        settings = self.cfg.TRAINER.RTPT
        excludes_by_index = settings.DIAGONAL == "index"
        weights = reliability(
            views, settings.NEIGHBOURS, settings.TEMPERATURE, excludes_by_index)  # (B, V)
        logits = class_logits(views, text, self.clip.scale)  # (B, V, K)
        return (weights[..., None] * logits).sum(1)
