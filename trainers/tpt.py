"""TPT: test-time prompt tuning by the entropy of confident views, and the base of the calibrated methods."""
from __future__ import annotations

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets.utils.errors import ConfigError
from .base import BaseTrainer
from .config.validation import parse_regularisers, require_one_of
from .engine.adapted import Adapted
from .engine.memory import within_memory
from .engine.tta_loop import run_episodes
from .functional.objectives import class_logits, confident_views, marginal_entropy
from .registry import TRAINER_REGISTRY, branch_of, find_method, method_key


@TRAINER_REGISTRY.register()
class TPT(BaseTrainer):
    """min over the context of L_TPT, the entropy of the mean prediction of confident views. (Shu et al., NeurIPS 2022.)

    Other methods override its hooks; one that adds a regulariser says `penalty` and `weight`, and its loss is
    L_TPT + weight · penalty. TRAINER.REGULARISERS adds the terms of such methods to any of the family.
    """

    label, colour, marker, display_order = "TPT", "#E69F00", "^", 10
    tunes_context, takes_regularisers = True, True

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        require_one_of(cfg, "OPTIM.NAME", "adamw")
        for name in parse_regularisers(cfg.TRAINER.REGULARISERS):
            known = [other for other in TRAINER_REGISTRY if is_regulariser(TRAINER_REGISTRY.get(other))]
            if not is_regulariser(find_method(name)):
                raise ConfigError(f"TRAINER.REGULARISERS names {name!r}, which is no regulariser: use some of "
                                  f"{', '.join(map(method_key, known))}, each as name:weight")

    def __init__(self, cfg: CfgNode) -> None:
        super().__init__(cfg)
        added = parse_regularisers(cfg.TRAINER.REGULARISERS)
        self.added = [with_weight(find_method(name), cfg, weight) for name, weight in added.items()]

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

    def terms(self) -> list[TPT]:
        return [self, *self.added]

    def predict(self, views: Tensor, text: Tensor) -> Tensor:
        return class_logits(views[:, :1], text, self.scale)[:, 0]

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        return within_memory(
            lambda some: run_episodes(self.prompt, some, self.scale, self, self.cfg), views, self.prompt,
        )


def is_regulariser(method: type | None) -> bool:
    """Whether a method is TPT and a weighted term, which other methods can take over."""
    return isinstance(method, type) and issubclass(method, TPT) and method.penalty is not TPT.penalty


def with_weight(method: type[TPT], cfg: CfgNode, weight: float) -> TPT:
    """The method as a term of another: its own settings with another λ."""
    branch = branch_of(method.__name__)
    if "LAMBDA" not in cfg.TRAINER.get(branch, {}):
        raise ConfigError(f"TRAINER.REGULARISERS cannot weigh {method.__name__}: a term that others take over has "
                          f"its strength in TRAINER.{branch}.LAMBDA")
    cfg = cfg.clone()
    cfg.defrost()
    cfg.TRAINER.REGULARISERS = ""
    cfg.TRAINER[branch].LAMBDA = weight
    cfg.freeze()
    return method(cfg)
