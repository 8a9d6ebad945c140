"""The Jacobian of the initial prompt: computed where it saves time, and kept on disk for later runs."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import UserError
from ..config.fingerprint import ENGINE
from ..runs.dist import Distributed
from ..vlm.numerics import retry_on_oom
from ..vlm.text_encoder import InitialPrompt, TextEncoder, break_even, jacobian_size, pays, text_jacobian
from .cache import ArrayCache

LARGEST_AUTO = 4.5e9  # bytes of a Jacobian that `auto` uses; ViT-B/16's for ImageNet's 1000 classes takes 4.2e9


def build_jacobian(
    cfg: CfgNode, prompt: InitialPrompt, images: int, key: Mapping[str, object], dist: Distributed,
) -> Tensor | None:
    """The Jacobian of the initial prompt, if TTA.JACOBIAN is on, or if it is auto, not too large, and worth computing
    for so many images. Gradients by it differ in the last bits from those without: whether it is used depends on counts
    and settings alone, never on what another run has left in a cache. `key` is what the cached numbers depend on
    besides the context."""
    if cfg.TTA.JACOBIAN == "off":
        return None
    features = prompt.text.shape[1]
    fits = jacobian_size(len(prompt.text), features, prompt.context) <= LARGEST_AUTO
    is_worth_it = pays(images, break_even(prompt.tower, prompt.context.shape[-2], features))
    if cfg.TTA.JACOBIAN == "auto" and not (fits and is_worth_it):
        return None
    cache = None
    if cfg.CACHE.DIR:
        cache = ArrayCache(cfg.CACHE.DIR, "jacobian", {
            **key,
            "context": hashlib.sha256(prompt.context.cpu().numpy().tobytes()).hexdigest(),
            "device_type": prompt.context.device.type,
            "engine": ENGINE,
        })
    jacobian = cached_jacobian(prompt.tower, prompt.context, cache) if cache is None or dist.is_main else None
    dist.barrier()  # the other processes read what the main process has cached
    return cached_jacobian(prompt.tower, prompt.context, cache) if jacobian is None else jacobian


def cached_jacobian(tower: TextEncoder, context: Tensor, cache: ArrayCache | None) -> Tensor:
    """The Jacobian, read from the cache, or computed and written there."""
    if cache:
        stored = cache.read("jacobian", "jacobian")
        if stored is not None:
            return torch.from_numpy(stored["jacobian"]).to(context.device)
        size = jacobian_size(len(tower.class_tokens), tower.backbone.features, context)
        cache.reserve(size, "the Jacobian's numbers")
    jacobian = retry_on_oom(lambda: text_jacobian(tower, context), refuse)
    if cache:
        cache.write("jacobian", jacobian=jacobian.cpu().numpy())
    return jacobian


def refuse() -> NoReturn:
    raise UserError("out of memory while the Jacobian is computed: use TTA.JACOBIAN off")
