"""Continual tuning: the context that TTA.RESET carries from image to image."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from yacs.config import CfgNode

from .adapted import Adapted
from .tta_loop import TextFunction, TunableText, tune_and_predict

if TYPE_CHECKING:
    from ..tpt import TPT


class CarriedText:
    """The start of the next image: the context that the last one left, with AdamW's moments and step count, which
    belong to it and are carried and reset with it. Zero-shot predictions stay those of the initial context.

    A context that gives no finite prediction is not carried: the next image starts where this one did.
    """

    text: Tensor  # (K, d) of the carried context
    gradient: Callable[[Tensor], Tensor]  # of the carried context, for gradients (1, K, d) of its text features

    def __init__(self, initial: TunableText, every: int) -> None:
        self.initial, self.every = initial, every  # reset after so many images; 0 = never
        self.zero_shot = initial.zero_shot
        self.context = initial.context.clone()
        zeros = torch.zeros_like(self.context[None])
        self.moments = {"step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}  # as torch names them
        self.images = torch.zeros((), dtype=torch.long)  # so far

    @property
    def tower(self) -> TextFunction:
        return self.initial.tower

    def adapt(self, views: Tensor, scale: Tensor, method: TPT, cfg: CfgNode) -> Adapted:
        """Tunes for one image (1, V, d) and keeps what it tuned."""
        if self.every and int(self.images) % self.every == 0:
            self.context.copy_(self.initial.context)
            for moment in self.moments.values():
                moment.zero_()
        text, self.gradient = self.tower.with_vjp(self.context[None])
        self.text = text[0]
        moments = {name: moment.clone() for name, moment in self.moments.items()}  # out of memory: tried again
        adapted = tune_and_predict(self, views, scale, method, cfg, moments)
        assert adapted.ctx is not None
        if all(tensor.isfinite().all() for tensor in (adapted.logits, adapted.ctx, *moments.values())):
            self.context.copy_(adapted.ctx[0])
            for name, moment in moments.items():
                self.moments[name].copy_(moment)
        self.images += 1
        return adapted

    def tensors(self) -> dict[str, Tensor]:
        """All that the next image depends on, by name."""
        return {"context": self.context, "images": self.images, **self.moments}
