"""Backbones of other families: our text side beside their library's own tower, run for whole prompts."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...datasets.utils.errors import ConfigError
from ...trainers.functional.objectives import class_logits, confident_views, marginal_entropy
from ...trainers.vlm.backbone import Backbone
from ...trainers.vlm.generic_tower import GenericTower
from ...trainers.vlm.loading import as_backbone, load_clip
from ...trainers.vlm.prompts import class_tokens, initial_context
from .baseline import METHOD, WEIGHT, reference
from .records import BaselineComparison
from .shapes import class_names
from .text_cases import text_side

CONTEXT = "a photo of a"


def family_text_side(name: str, counts: Sequence[int], episodes: int, rounds: int) -> list[BaselineComparison]:
    """Seconds of an episode's text side, with the weights that the name stands for."""
    backbone = as_backbone(load_clip(name, "cpu"))
    if not hasattr(backbone, "generic_text"):
        raise ConfigError(f"{name} does not say how its library runs a whole prompt (`generic_text`)")
    return text_side(backbone, name, counts, episodes, rounds, plain_episode, plain_need)


def plain_tower(backbone: Backbone, names: Sequence[str]) -> GenericTower:
    """All tokens of every prompt, padding included, as public code has it."""
    return GenericTower(replace(backbone.generic_text, keep_padding=True), class_tokens(names, backbone.tokenizer))


def plain_need(backbone: Backbone, classes: int) -> int:
    return plain_tower(backbone, class_names(classes)).saved_bytes


def plain_episode(backbone: Backbone, names: Sequence[str], features: Tensor) -> Callable[[], object]:
    """One image at a time: forward, backward, a step of AdamW, and forward again, on view features (V, d)."""
    tower, scale, slow = plain_tower(backbone, names), backbone.logit_scale.exp(), reference()

    def episode() -> Tensor:
        context = initial_context(backbone, CONTEXT).requires_grad_()
        optimizer = torch.optim.AdamW([context], lr=0.005, weight_decay=0.01)
        with torch.enable_grad():
            text = tower(context[None])[0]  # (K, d)
            logits = class_logits(features[None], text, scale)  # (1, V, K)
            kept = confident_views(logits.detach(), 0.1)
            loss = marginal_entropy(logits.take_along_dim(kept[..., None], dim=1))[0]
            slow.regularised(METHOD, loss, text, WEIGHT).backward()
        optimizer.step()
        with torch.no_grad():
            return class_logits(features[None, :1], tower(context[None])[0], scale)

    return episode
