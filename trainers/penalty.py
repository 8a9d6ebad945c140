"""Penalty: TPT with a penalty on logits outside the range of one view's."""
from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .config.settings import OneOf, Range, Setting
from .functional.objectives import leading_range, range_excess
from .registry import TRAINER_REGISTRY, branch_of
from .tpt import TPT

# The view whose logits in the first step give the range. confident: the most confident of the
# selected ones; as in the public code, gradients of that step flow through it. detached: they do
# not. plain: the plain view's before the step.
RANGE_SETTING = Setting(
    "RANGE",
    "confident",
    "view that gives the range: confident; detached, the same view without its gradients; "
    "or plain",
    allowed=OneOf(("confident", "detached", "plain")),
)


class RangeMethod(TPT):
    """TPT with a loss that knows the range of logits before tuning, that of the view that RANGE
    names.
    """

    def range(self, first: Tensor, plain: Tensor) -> tuple[Tensor, Tensor]:
        """The range of logits before tuning.

        Args:
            first: Logits of the selected views in the first step, (B, n, K).
            plain: Logits of the plain view before it, (B, 1, K).

        Returns:
            The lowest and the highest logit, (B, 1, 1) each.
        """
        kind = self.cfg.TRAINER[branch_of(type(self).__name__)].RANGE
        if kind == "plain":
            return leading_range(plain)
        if kind == "detached":
            return leading_range(first.detach())
        return leading_range(first)


@TRAINER_REGISTRY.register()
class Penalty(RangeMethod):
    """L_TPT + λ · (mean relu(z − max) + mean relu(min − z)). (Murugesan et al., ECCV 2024.)

    The public code takes the range of the most confident view, and one step. The paper describes it
    as that of the zero-shot logits, which is what CoTS's rerun takes (`RANGE plain`).
    """

    label = "Penalty"
    colour = "#882255"
    marker = "1"
    display_order = 15
    settings: ClassVar = [
        Setting(
            "LAMBDA",
            10.0,
            "λ, weight of the penalty",
            allowed=Range(least=0),
            show="λ {}",
        ),
        RANGE_SETTING,
    ]

    def episode_loss(self, logits: Tensor, first: Tensor, plain: Tensor) -> Tensor:
        """L_TPT + λ · the mean distance of the logits from the range."""
        low, high = self.range(first, plain)
        excess = range_excess(logits, low, high)
        return self.view_loss(logits) + self.cfg.TRAINER.PENALTY.LAMBDA * excess
