"""OnZeta: learns class proportions and class vectors online, image by image."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .base import BaseTrainer
from .config.settings import Range, Setting
from .engine.adapted import Adapted
from .functional.aggregation import NO_VOTE
from .functional.objectives import class_logits, unit
from .registry import TRAINER_REGISTRY

VISION_TEMPERATURE = 0.04  # of the vision label: the softmax over cosines with the vectors W
# Learning rates of the class shares and of the vectors, divided by √i at the i-th image, as is
# usual in online learning.
SHARE_RATE = 20.0
VECTOR_RATE = 0.5


@TRAINER_REGISTRY.register()
class OnZeta(BaseTrainer):
    """b v + (1 − b) t: text label t balanced over classes, vision label v from vectors W.

    b = β √(i/n) grows with the number i of images seen. The published α and β differ between data
    sets; here all data sets have the same. (Qian and Hu, ECCV 2024.)
    """

    label = "OnZeta"
    colour = "#6699CC"
    marker = "8"
    display_order = 72
    settings: ClassVar = [
        Setting(
            "ALPHA",
            1.0,
            "least share of every class, in units of 1/K; 0 = none",
            allowed=Range(least=0),
        ),
        Setting(
            "BETA",
            0.4,
            "weight of the vision label at the last image; 0.8 is published for ImageNet",
            allowed=Range(least=0, most=1),
        ),
        Setting(
            "TEMPERATURE",
            0.01,
            "temperature of the text label, as published; 0 = the backbone's own",
            allowed=Range(least=0, text="0 (the backbone's) or above"),
        ),
        Setting(
            "IMAGES",
            0,
            "n, number of images that will come; 0 = those of the run, or outside a run those so "
            "far",
            allowed=Range(least=0, text="0 (the run's) or a number of images"),
        ),
    ]
    online = True

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str]:
        """None: the plain view alone is predicted, without tuning."""
        return ()

    @property
    def num_views(self) -> int:
        """1, the plain one."""
        return 1

    @cached_property
    def text_scale(self) -> Tensor | float:
        """The factor of the cosines of the text label, () or (K,)."""
        temperature = self.cfg.TRAINER.ONZETA.TEMPERATURE
        if temperature:
            return self.clip.lengths / temperature
        return self.clip.scale

    @property
    def total(self) -> int:
        """n, the images that will come; 0 = not known."""
        return self.cfg.TRAINER.ONZETA.IMAGES or self.num_images

    # The state, as it is before the first image.

    @cached_property
    def seen(self) -> Tensor:
        """Number of images so far, ()."""
        return torch.zeros((), dtype=torch.long)

    @cached_property
    def dual(self) -> Tensor:
        """ρ, (K,): how much each class's logit is raised, because it was predicted too rarely.

        They are the dual variables of the constraint that each class has a share of at least
        ALPHA/K of all predictions, so they do not fall below 0.
        """
        return torch.zeros_like(self.clip.text[:, 0])

    @cached_property
    def vectors(self) -> Tensor:
        """W, (K, d): class vectors in the space of images, at first the text features."""
        return self.clip.text.clone()

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """Predicts a batch image by image, in its order: each image learns from the ones before."""
        return Adapted.join([self.adapt_image(image) for image in views.split(1)])

    def adapt_image(self, views: Tensor) -> Adapted:
        """Predicts one image, given as unit view features (1, V, d), and learns from it."""
        settings = self.cfg.TRAINER.ONZETA
        x = views[0, 0]  # (d,)
        self.seen += 1
        seen = int(self.seen)
        rate = seen**-0.5
        trust = settings.BETA * (seen / max(seen, self.total)) ** 0.5  # b

        # The labels t = p e^ρ, normalised, and v, both (K,).
        text = (class_logits(x, self.clip.text, self.text_scale) + self.dual).softmax(-1)
        vision = (self.vectors @ x / VISION_TEMPERATURE).softmax(-1)
        # A gradient step each, after the labels that are predicted from were computed: on the
        # constraint of the shares, and on the cross entropy of the vision label with the text
        # label.
        self.dual.sub_(SHARE_RATE * rate * (text - settings.ALPHA / len(text))).clamp_(min=0)
        step = VECTOR_RATE * rate / VISION_TEMPERATURE * torch.outer(vision - text, x)  # (K, d)
        self.vectors.copy_(unit(self.vectors - step))

        mixed = trust * vision + (1 - trust) * text
        zero_shot_logits = class_logits(views[:, 0], self.clip.text, self.clip.scale)
        return Adapted(mixed.clamp(min=NO_VOTE).log()[None], zero_shot_logits)

    def state_tensors(self) -> dict[str, Tensor]:
        """Number of images, dual variables of the class shares, and class vectors."""
        return {"seen": self.seen, "dual": self.dual, "vectors": self.vectors}
