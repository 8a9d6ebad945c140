"""ZERO: confident views vote, at temperature zero."""
from __future__ import annotations

import torch
from torch import Tensor
from yacs.config import CfgNode

from .aggregation import NO_VOTE, vote_shares
from .base import BaseTrainer
from .config.validation import require_kept_views
from .engine.adapted import Adapted
from .engine.aggregate import aggregate
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class ZERO(BaseTrainer):
    """The class with the most votes of confident views. (Farina et al., ZERO, NeurIPS 2024.)

    The confidence that it states is the share of the votes. Views are crops and flips alone on every data set, as
    published: its yaml stands above the data set's.
    """

    label, colour, marker, rank = "ZERO", "#8C6D1F", "d", 64
    own_views = True

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        require_kept_views(cfg)

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        return aggregate(views, self.prompt.text, self.scale, self.combine)

    def combine(self, views: Tensor, logits: Tensor) -> Tensor:
        return vote_shares(logits, self.cfg.TTA.SELECT).clamp(min=NO_VOTE).log()
