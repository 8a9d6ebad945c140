"""ZS-Norm: TPT on logits scaled to the range of the most confident view."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from yacs.config import CfgNode

from .functional.objectives import into_range, leading_range
from .registry import TRAINER_REGISTRY
from .tpt import TPT


@TRAINER_REGISTRY.register()
class ZSNorm(TPT):
    """L_TPT of z' = (z − min z)/(max z − min z) · (high − low) + low, view by view. (Murugesan et al., ECCV 2024.)

    The range is that of the most confident kept view in the first step, where, as in the public code, gradients flow
    through it. Predictions are not scaled.
    """

    label, colour, marker, display_order = "ZS-Norm", "#999933", "2", 16
    choices: ClassVar = {"TRAINER.ZSNORM.RANGE": ("flow", "detached")}

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        cfg.TRAINER.ZSNORM = CfgNode()
        cfg.TRAINER.ZSNORM.RANGE = "flow"  # gradients of the first step flow through the range too; or detached

    def episode_loss(self, logits: Tensor, first: Tensor) -> Tensor:
        if self.cfg.TRAINER.ZSNORM.RANGE == "detached":
            first = first.detach()
        return self.view_loss(into_range(logits, *leading_range(first)))
