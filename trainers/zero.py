"""ZERO: a vote of confident views, the limit of their mean prediction at temperature zero."""
from __future__ import annotations

from torch import Tensor

from .functional.aggregation import NO_VOTE, vote_shares
from .gradient_free import GradientFree
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class ZERO(GradientFree):
    """The class with the most votes of confident views. (Farina et al., ZERO, NeurIPS 2024.)

    Its confidence is the share of the votes. As published, views are only cropped and flipped on
    every data set: its yaml overrides the data set's.
    """

    label = "ZERO"
    colour = "#8C6D1F"
    marker = "d"
    display_order = 64
    own_views = True

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        """Logarithms of the classes' shares of the votes, (B, K): softmax of them is the shares."""
        return vote_shares(logits, self.cfg.TTA.SELECT).clamp(min=NO_VOTE).log()
