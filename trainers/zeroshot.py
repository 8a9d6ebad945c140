"""Zero-shot CLIP: hand-written prompts, no adaptation."""
from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from .base import BaseTrainer
from .engine.adapted import Adapted
from .functional.objectives import class_logits
from .registry import TRAINER_REGISTRY


@TRAINER_REGISTRY.register()
class ZeroShot(BaseTrainer):
    """The plain view against the initial prompt, templates or descriptions.

    (Radford et al., CLIP, ICML 2021.)
    """

    label = "Zero-shot"
    colour = "#767676"
    marker = "X"
    display_order = 0
    tuned = False

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str]:
        """None: the plain view alone is predicted, without tuning."""
        return ()

    @property
    def num_views(self) -> int:
        """1, the plain one."""
        return 1

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """Logits of the plain view; they are the zero-shot logits too."""
        logits = class_logits(views[:, :1], self.clip.text, self.clip.scale)[:, 0]
        context = self.clip.context.expand(len(logits), *self.clip.context.shape)
        return Adapted(logits, logits, context)
