"""OnZeta: learns class proportions and class vectors online, image by image."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from .base import BaseTrainer
from .config.settings import Range, Setting
from .engine.adapted import Adapted
from .functional.aggregation import NO_VOTE
from .functional.objectives import class_logits, unit
from .registry import TRAINER_REGISTRY

SHARPNESS = 0.04  # temperature of the vision vectors
SHARE_RATE, VECTOR_RATE = 20.0, 0.5  # of the class shares and of the vectors, over √i at the i-th image


@TRAINER_REGISTRY.register()
class OnZeta(BaseTrainer):
    """b v + (1 − b) t: text label t balanced over classes, vision label v from vectors W. (Qian and Hu, ECCV 2024.)

    b = β √(i/n) grows with the number i of images seen. The published α and β differ between data sets; here all data
    sets have the same.
    """

    label, colour, marker, display_order = "OnZeta", "#6699CC", "8", 72
    settings: ClassVar = [
        Setting("ALPHA", 1.0, "least share of every class, in units of 1/K; 0 = none",
                allowed=Range(least=0)),
        Setting("BETA", 0.4,
                "weight of the vision label at the last image; 0.8 is published for ImageNet",
                allowed=Range(least=0, most=1)),
        Setting("TEMPERATURE", 0.01, "of the text label, as published; 0 = the backbone's own",
                allowed=Range(least=0, text="0 (the backbone's) or above")),
        Setting("IMAGES", 0, "n, images that will come; 0 = the run's, or those so far outside a run",
                allowed=Range(least=0, text="0 (the run's) or a number of images")),
    ]
    online = True
    seen: Tensor  # number of images
    dual: Tensor  # ρ (K,)
    vectors: Tensor  # W (K, d)

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str]:
        return ()  # the plain view alone

    @property
    def num_views(self) -> int:
        return 1

    def prepare(self) -> None:
        own, text = self.cfg.TRAINER.ONZETA, self.prompt.text
        self.text_scale = self.lengths / own.TEMPERATURE if own.TEMPERATURE else self.scale
        self.total = own.IMAGES or len(self.indices)
        self.seen = torch.zeros((), dtype=torch.long)
        self.dual, self.vectors = torch.zeros_like(text[:, 0]), text.clone()

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        return Adapted.join([self.adapt_image(image) for image in views.split(1)])

    def adapt_image(self, views: Tensor) -> Adapted:
        own, x = self.cfg.TRAINER.ONZETA, views[0, 0]
        self.seen += 1
        seen = int(self.seen)
        rate, trust = seen**-0.5, own.BETA * (seen / max(seen, self.total)) ** 0.5
        text = (class_logits(x, self.prompt.text, self.text_scale) + self.dual).softmax(-1)  # t = p e^ρ, normalised
        vision = (self.vectors @ x / SHARPNESS).softmax(-1)
        self.dual.sub_(SHARE_RATE * rate * (text - own.ALPHA / len(text))).clamp_(min=0)
        self.vectors.copy_(unit(self.vectors - VECTOR_RATE * rate / SHARPNESS * torch.outer(vision - text, x)))
        mixed = trust * vision + (1 - trust) * text
        return Adapted(mixed.clamp(min=NO_VOTE).log()[None], class_logits(views[:, 0], self.prompt.text, self.scale))

    def state_tensors(self) -> dict[str, Tensor]:
        return {"seen": self.seen, "dual": self.dual, "vectors": self.vectors}
