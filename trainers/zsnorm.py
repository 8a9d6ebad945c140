"""ZS-Norm: TPT on logits scaled to the range of one view's."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .functional.objectives import into_range
from .penalty import RANGE_SETTING, RangeMethod
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class ZSNorm(RangeMethod):
    """L_TPT of z' = (z − min z)/(max z − min z) · (high − low) + low, view by view.

    The range is that of Penalty. Predictions are not scaled. (Murugesan et al., ECCV 2024.)
    """

    label = "ZS-Norm"
    colour = "#999933"
    marker = "2"
    display_order = 16
    settings: ClassVar = [RANGE_SETTING]

    def episode_loss(self, logits: Tensor, first: Tensor, plain: Tensor) -> Tensor:
        """L_TPT of the logits scaled to the range."""
        low, high = self.range(first, plain)
        return self.view_loss(into_range(logits, low, high))
