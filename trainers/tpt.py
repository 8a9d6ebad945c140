"""TPT: test-time prompt tuning by the entropy of confident views, and the base of the calibrated methods."""
from __future__ import annotations

import torch
from torch import Tensor
from yacs.config import CfgNode

from .base import BaseTrainer
from .config.validation import require_one_of
from .engine.adapted import Adapted
from .engine.episodes import run_episodes
from .engine.memory import within_memory
from .objectives import class_logits, confident_views, marginal_entropy
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class TPT(BaseTrainer):
    """min over the context of L_TPT, the entropy of the mean prediction of confident views. (Shu et al., NeurIPS 2022.)

    Other methods override its hooks; one that adds a regulariser says `penalty` and `weight`, and its loss is
    L_TPT + weight · penalty.
    """

    label, colour, marker, rank = "TPT", "#E69F00", "^", 10
    tunes_context = True

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        require_one_of(cfg, "OPTIM.NAME", "adamw")

    def select(self, logits: Tensor) -> Tensor:
        return confident_views(logits, self.cfg.TTA.SELECT)

    def view_loss(self, logits: Tensor) -> Tensor:
        return marginal_entropy(logits)

    def episode_loss(self, logits: Tensor, first: Tensor) -> Tensor:
        return self.view_loss(logits)

    def penalty(self, text: Tensor) -> Tensor | None:
        return None

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor | float:
        return 1.0

    def weights(self, loss: Tensor, penalty: Tensor) -> tuple[Tensor | float, Tensor | float]:
        return 1.0, self.weight(loss, penalty)

    def predict(self, views: Tensor, text: Tensor) -> Tensor:
        return class_logits(views[:, :1], text, self.scale)[:, 0]

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        return within_memory(
            lambda some: run_episodes(self.prompt, some, self.scale, self, self.cfg), views, self.prompt,
        )
