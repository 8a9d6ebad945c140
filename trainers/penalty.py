"""Penalty: TPT with a penalty on logits outside the range of the most confident view."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from yacs.config import CfgNode

from .functional.objectives import leading_range, range_excess
from .registry import TRAINER_REGISTRY
from .tpt import TPT


@TRAINER_REGISTRY.register()
class Penalty(TPT):
    """L_TPT + λ · (mean relu(z − max) + mean relu(min − z)). (Murugesan et al., ECCV 2024.)

    The range is that of the most confident kept view in the first step, where, as in the public code, gradients flow
    through it; that code takes one step. The paper describes it as the range of the zero-shot logits.
    """

    label, colour, marker, display_order = "Penalty", "#882255", "1", 15
    choices: ClassVar = {"TRAINER.PENALTY.RANGE": ("flow", "detached")}

    @classmethod
    def extend_defaults(cls, cfg: CfgNode) -> None:
        cfg.TRAINER.PENALTY = CfgNode()
        cfg.TRAINER.PENALTY.LAMBDA = 10.0  # λ
        cfg.TRAINER.PENALTY.RANGE = "flow"  # gradients of the first step flow through the range too; or detached

    def episode_loss(self, logits: Tensor, first: Tensor) -> Tensor:
        own = self.cfg.TRAINER.PENALTY
        low, high = leading_range(first.detach() if own.RANGE == "detached" else first)
        return self.view_loss(logits) + own.LAMBDA * range_excess(logits, low, high)
