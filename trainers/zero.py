"""ZERO: confident views vote, at temperature zero."""
from __future__ import annotations

from torch import Tensor

from .functional.aggregation import NO_VOTE, vote_shares
from .gradient_free import GradientFree
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class ZERO(GradientFree):
    """The class with the most votes of confident views. (Farina et al., ZERO, NeurIPS 2024.)

    The confidence that it states is the share of the votes. Views are crops and flips alone on every data set, as
    published: its yaml stands above the data set's.
    """

    label, colour, marker, display_order = "ZERO", "#8C6D1F", "d", 64
    own_views = True

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        return vote_shares(logits, self.cfg.TTA.SELECT).clamp(min=NO_VOTE).log()
