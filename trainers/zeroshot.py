"""Zero-shot CLIP: hand-written prompts, no adaptation."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from yacs.config import CfgNode

from .base import BaseTrainer
from .config.validation import require
from .engine.adapted import Adapted
from .functional.objectives import class_logits
from .registry import TRAINER_REGISTRY
from .vlm.backbone import Backbone
from .vlm.openai_clip import CLIP
from .vlm.templates import check_setting, find_templates, template_features


@TRAINER_REGISTRY.register()
class ZeroShot(BaseTrainer):
    """The plain view against the initial prompt, or against templates. (Radford et al., CLIP, ICML 2021.)"""

    label, colour, marker, display_order = "Zero-shot", "#767676", "X", 0
    tuned, takes_templates = False, True
    templates: list[str]
    text: Tensor  # (K, d)

    @classmethod
    def validate(cls, cfg: CfgNode) -> None:
        check_setting(cfg.PROMPT.TEMPLATE)
        require(cfg, not (cfg.PROMPT.TEMPLATE and cfg.MODEL.INIT_WEIGHTS), "PROMPT.TEMPLATE",
                "empty where MODEL.INIT_WEIGHTS gives the prompt")

    @property
    def num_views(self) -> int:
        return 1

    def use_model(self, model: CLIP | Backbone, classnames: Sequence[str]) -> None:
        super().use_model(model, classnames)
        own = self.dataset.template if self.dataset else None  # None with `adapt`
        ensemble = self.dataset.ensemble if self.dataset else ()
        self.templates = find_templates(self.cfg.PROMPT.TEMPLATE, self.cfg.DATASET.NAME, own, ensemble)
        self.text = self.prompt.text
        if self.templates:
            self.text = template_features(self.backbone, self.templates, classnames, self.precision)

    def metadata(self) -> dict[str, object]:
        return {**super().metadata(), **({"templates": self.templates} if self.templates else {})}

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        logits = class_logits(views[:, :1], self.text, self.scale)[:, 0]
        context = self.prompt.context.expand(len(logits), *self.prompt.context.shape)
        return Adapted(logits, logits, context)
