"""TPT: test-time prompt tuning by the entropy of confident views, and the base class of the calibrated methods."""
from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets import Dataset
from ..datasets.utils.errors import ConfigError
from .base import BaseTrainer
from .config.validation import parse_regularisers, require_kept_views
from .engine.adapted import Adapted, adapt_within_memory
from .engine.carried import CarriedText
from .engine.tta_loop import TunableText, tune_and_predict
from .functional.objectives import class_logits, confident_views, marginal_entropy
from .registry import EVERY_IMAGE, TRAINER_REGISTRY, branch_of, find_method, method_key


@TRAINER_REGISTRY.register()
class TPT(BaseTrainer):
    """min over the context of L_TPT, the entropy of the mean prediction of confident views. (Shu et al., NeurIPS 2022.)

    Other methods override its hooks. One that adds a regulariser defines `penalty` and `weight`; its loss is
    L_TPT + weight · penalty. TRAINER.REGULARISERS adds the terms of such methods to any of them.
    """

    label, colour, marker, display_order = "TPT", "#E69F00", "^", 10
    tunes_context, takes_regularisers = True, True
    carried_text: CarriedText | None = None

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        if cfg.TTA.STEPS:
            require_kept_views(cfg)
        for name in parse_regularisers(cfg.TRAINER.REGULARISERS):
            find_regulariser(name)

    def __init__(self, cfg: CfgNode, dataset: Dataset | None = None) -> None:
        super().__init__(cfg, dataset)
        self.online = cfg.TTA.RESET not in EVERY_IMAGE
        added = parse_regularisers(cfg.TRAINER.REGULARISERS)
        self.added = [with_weight(find_regulariser(name), cfg, weight) for name, weight in added.items()]

    def select(self, logits: Tensor) -> Tensor:
        """The views to learn from, (B, V, K) -> (B, n), selected once with the initial prompt."""
        return confident_views(logits, self.cfg.TTA.SELECT)

    def view_loss(self, logits: Tensor) -> Tensor:
        """The loss of the selected views, (B, n, K) -> (B,)."""
        return marginal_entropy(logits)

    def episode_loss(self, logits: Tensor, first: Tensor) -> Tensor:
        """`view_loss`, for methods that also use the same views' logits in the first step, where they are `logits`."""
        return self.view_loss(logits)

    def penalty(self, text: Tensor) -> Tensor | None:
        """The regulariser of text features (..., K, d), one number per episode; None if there is none."""
        return None

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor | float:
        """The factor of the penalty, given the values (B,) of both. Gradients run through it unless it is detached."""
        return 1.0

    def regularisers(self) -> list[TPT]:
        return [self, *self.added]

    def predict(self, views: Tensor, text: Tensor) -> Tensor:
        """Logits (B, K), given view features (B, V, d) and tuned text features (..., K, d)."""
        return class_logits(views[:, :1], text, self.scale)[:, 0]

    @property
    def initial(self) -> TunableText:
        """What is tuned, as it is before the first image."""
        return self.prompt

    @property
    def carried(self) -> CarriedText:
        """What TTA.RESET carries from image to image."""
        if self.carried_text is None or self.carried_text.initial is not self.initial:
            every = 0 if self.cfg.TTA.RESET == "never" else int(self.cfg.TTA.RESET)
            self.carried_text = CarriedText(self.initial, every)
        return self.carried_text

    def state_tensors(self) -> dict[str, Tensor]:
        return self.carried.tensors()

    def tune(self, views: Tensor) -> Adapted:
        """Tunes for B images and predicts them; for a single one where the context is carried."""
        if self.online:
            return self.carried.adapt(views, self.scale, self, self.cfg)
        return tune_and_predict(self.initial, views, self.scale, self, self.cfg)

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        turns = views.split(1) if self.online else [views]
        return Adapted.join([adapt_within_memory(self.tune, some, self.prompt) for some in turns])

    def metadata(self) -> dict[str, object]:
        return {**super().metadata(), **({"reset": self.cfg.TTA.RESET} if self.online else {})}


def is_regulariser(method: type | None) -> TypeGuard[type[TPT]]:
    """Whether a method is TPT plus a weighted penalty, which other methods can add."""
    return isinstance(method, type) and issubclass(method, TPT) and method.penalty is not TPT.penalty


def find_regulariser(name: str) -> type[TPT]:
    """The regulariser of this name, in any spelling."""
    if is_regulariser(method := find_method(name)):
        return method
    known = [method_key(other) for other in TRAINER_REGISTRY if is_regulariser(TRAINER_REGISTRY.get(other))]
    raise ConfigError(f"TRAINER.REGULARISERS names {name!r}, which is not a regulariser: use some of "
                      f"{', '.join(known)}, each as name:weight")


def with_weight(method: type[TPT], cfg: CfgNode, weight: float) -> TPT:
    """The method as a regulariser of another: its own settings with another λ."""
    branch = branch_of(method.__name__)
    if "LAMBDA" not in cfg.TRAINER.get(branch, {}):
        raise ConfigError(f"TRAINER.REGULARISERS cannot weight {method.__name__}: a penalty that other methods add "
                          f"needs its λ in TRAINER.{branch}.LAMBDA")
    cfg = cfg.clone()
    cfg.defrost()
    cfg.TRAINER.REGULARISERS = ""
    cfg.TRAINER[branch].LAMBDA = weight
    cfg.freeze()
    return method(cfg)
