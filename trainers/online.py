"""The base class of methods that learn online from view features alone, without a text tower."""
from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..datasets.utils.errors import ConfigError
from .base import BaseTrainer
from .config.build import require_kept_views
from .config.settings import OneOf, Range, Setting
from .engine.adapted import Adapted
from .functional.objectives import class_logits, confident_views
from .registry import branch_of
from .vlm.loading import SMALL
from .vlm.prompted_clip import LoadedModel, PromptedCLIP

logger = logging.getLogger(__name__)

# The factor of the cosines in the public code of several methods: exp(logit_scale) of OpenAI's
# models.
SCALE = 100.0
# Allowed values of the settings VIEWS and VALUES, see `Online`.
VIEWS = OneOf(("plain", "confident"))
VALUES = OneOf(("given", "paper"))
SCALE_SETTING = Setting(
    "SCALE",
    SCALE,
    "factor of the cosines; 0 = the backbone's own",
    allowed=Range(least=0),
)
VIEW_SETTINGS = ("TTA.VIEWS", "TTA.AUGMIX", "TTA.SELECT")  # of methods that select views


def show_values(kind: object) -> str:
    """The words for VALUES in the labels of rows."""
    if kind == "paper":
        return "values tuned per set on test labels"
    return "one value for all sets"


class Online(BaseTrainer):
    """A method that predicts image by image and learns from each for the next ones.

    It defines `adapt_image`, and `state_tensors` for all that it learns. Several of these methods
    have the following settings in their branch, TRAINER.<NAME>:

    - VIEWS: `plain`, or `confident`: the views of lowest entropy, averaged. The mean feature is not
      normalised.
    - VALUES: `given`, or `paper`: the published values of `per_set` for the data set, which were
      tuned on test labels.
    - SCALE: the factor of the cosines; 0 = the backbone's own. The embedded small CLIP always uses
      its own, because it was trained with 26 instead of 100.
    """

    online = True
    per_set: ClassVar[Sequence[str]] = ()  # settings that VALUES paper replaces
    paper: ClassVar[Mapping[str, Sequence[float]]] = {}  # their published values by data set

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        """Refuses a selection without views, and published values where there are none."""
        branch = branch_of(cls.__name__)
        method_settings = cfg.TRAINER[branch]
        if selects_views(method_settings):
            require_kept_views(cfg)
        if method_settings.get("VALUES") == "paper" and cfg.DATASET.NAME not in cls.paper:
            raise ConfigError(f"TRAINER.{branch}.VALUES is 'paper', but none are published for "
                              f"'{cfg.DATASET.NAME}': use given, or one of {', '.join(cls.paper)}")

    @classmethod
    def used_settings(cls, settings: Mapping[str, object]) -> Collection[str]:
        """How views are made and selected, where the method uses confident views."""
        prefix = f"TRAINER.{branch_of(cls.__name__)}."
        method_settings = {}
        for key, value in settings.items():
            if key.startswith(prefix):
                method_settings[key.removeprefix(prefix)] = value
        if selects_views(method_settings):
            return VIEW_SETTINGS
        return ()

    @property
    def num_views(self) -> int:
        """TTA.VIEWS where the method uses confident views, else 1."""
        method_settings = self.cfg.TRAINER[branch_of(type(self).__name__)]
        if selects_views(method_settings):
            return self.cfg.TTA.VIEWS
        return 1

    @cached_property
    def method_settings(self) -> CfgNode:
        """The branch, with the published values where they are asked for."""
        settings = self.cfg.TRAINER[branch_of(type(self).__name__)].clone()
        if settings.get("VALUES") == "paper":
            published = self.paper[self.cfg.DATASET.NAME]
            settings.defrost()
            settings.update(zip(self.per_set, published, strict=True))
        return settings

    def make_clip(self, model: LoadedModel) -> PromptedCLIP:
        """The model; the log says which values apply and whether the scale is unusual."""
        clip = super().make_clip(model)
        settings = self.method_settings
        if self.per_set:
            values = ", ".join(f"{key.lower()} {settings[key]:g}" for key in self.per_set)
            logger.info("%s: %s (%s)", self.label, values, settings.VALUES)
        if not self.uses_backbone_scale(clip):
            self.warn_of_scale(clip)
        return clip

    def uses_backbone_scale(self, clip: PromptedCLIP) -> bool:
        """Whether cosines are multiplied by the backbone's own scale."""
        return clip.backbone.name == SMALL or not self.method_settings.get("SCALE")

    def warn_of_scale(self, clip: PromptedCLIP) -> None:
        """Warns where the published scale differs from the backbone's by more than 1 %.

        Confidence follows from the scale, so such a backbone is calibrated otherwise.
        """
        trained = float(clip.backbone.logit_scale.exp())
        scale = self.method_settings.SCALE
        if abs(scale / trained - 1) > 0.01:
            logger.warning(
                "%s multiplies cosines by %g, as published, but this backbone was trained "
                "with %.1f: TRAINER.%s.SCALE 0 uses that",
                self.label,
                scale,
                trained,
                branch_of(type(self).__name__),
            )

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """Predicts a batch image by image, in its order: each image learns from the ones before."""
        return Adapted.join([self.adapt_image(image) for image in views.split(1)])

    def adapt_image(self, views: Tensor) -> Adapted:
        """Predicts one image, given as unit view features (1, V, d), and learns from it."""
        raise TypeError(f"{type(self).__name__} does not define adapt_image()")

    @cached_property
    def scale(self) -> Tensor | float:
        """The factor of the cosines, () or (K,)."""
        if self.uses_backbone_scale(self.clip):
            return self.clip.scale
        return self.method_settings.SCALE * self.clip.lengths

    def logits(self, features: Tensor, text: Tensor) -> Tensor:
        """Class logits, equal for classes of one name.

        Args:
            features: Unit image features, (..., d).
            text: Class features, (K, d).

        Returns:
            (..., K).
        """
        return self.clip.equal_names(class_logits(features, text, self.scale))

    def used_views(self, views: Tensor, text: Tensor, kind: str = "") -> tuple[Tensor, Tensor]:
        """The views of an image that a method uses.

        Args:
            views: Unit features (1, V, d).
            text: Class features (K, d).
            kind: `plain` for the plain view, `confident` for those of lowest entropy, lowest first;
                "" = what VIEWS says.

        Returns:
            Features (n, d) and logits (n, K).
        """
        if (kind or self.method_settings.VIEWS) == "plain":
            return views[0, :1], self.logits(views[0, :1], text)
        logits = self.logits(views[0], text)
        chosen = confident_views(logits, self.cfg.TTA.SELECT)
        return views[0, chosen], logits[chosen]

    def zero_shot(self, views: Tensor) -> Tensor:
        """Logits of the plain view with the initial prompt, (1, V, d) -> (1, K)."""
        return self.clip.logits(views[:, 0])


def selects_views(method_settings: Mapping[str, object]) -> bool:
    """Whether a method uses confident views, by its own settings. A method without VIEWS does."""
    return (method_settings.get("VIEWS", "confident") == "confident"
            or method_settings.get("PREDICT") == "confident")


def log_probability(p: Tensor) -> Tensor:
    """Logits whose softmax is p, for methods that predict probabilities: log p, finite for p = 0.
    """
    return p.clamp(min=torch.finfo(p.dtype).tiny).log()
