"""When the Jacobian of the initial prompt pays, and keeping it for later runs."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch
from torch import Tensor
from yacs.config import CfgNode

from ...datasets.utils.errors import ConfigError, UserError
from ..config.fingerprint import ENGINE
from ..vlm.jacobian import break_even, jacobian_size, pays, text_jacobian
from ..vlm.oom import retry_on_oom
from ..vlm.text_encoder import InitialPrompt, TextEncoder
from .cache import ArrayCache
from .dist import Distributed


def build_jacobian(
    cfg: CfgNode, prompt: InitialPrompt, images: int, facts: Mapping[str, str], classnames: Sequence[str],
    dist: Distributed,
) -> Tensor | None:
    """The Jacobian of the initial prompt, if it is wanted, fits into memory, and pays for so many images or is there.

    `facts` are the hash of the weights and the precision, which the cached numbers follow from besides the prompt.
    """
    if cfg.TTA.JACOBIAN == "off":
        return None
    features = prompt.text.shape[1]
    size = jacobian_size(len(prompt.text), features, prompt.context) / 1e9
    fits = size <= cfg.TTA.JACOBIAN_GB
    if cfg.TTA.JACOBIAN == "on" and not fits:
        raise ConfigError(f"the Jacobian takes {size:.1f} GB: raise TTA.JACOBIAN_GB ({cfg.TTA.JACOBIAN_GB:g}), or use "
                          f"TTA.JACOBIAN off")
    cache = ArrayCache(cfg.CACHE.DIR, "jacobian", {
        **facts, "classnames": list(classnames),
        "context": hashlib.sha256(prompt.context.cpu().numpy().tobytes()).hexdigest(), "engine": ENGINE,
        **({"position": prompt.tower.position.name} if prompt.tower.position else {}),
    }) if cfg.CACHE.DIR else None
    there = cache is not None and cache.read("jacobian") is not None
    worth = pays(images, break_even(prompt.tower, prompt.context.shape[-2], features), cached=cache is not None)
    if not dist.broadcast(cfg.TTA.JACOBIAN == "on" or (fits and (worth or there))):
        return None
    if cache is None or dist.is_main:
        jacobian = cached_jacobian(prompt.tower, prompt.context, cache)
    dist.barrier()  # the first rank makes it for all
    if cache is not None and not dist.is_main:
        jacobian = cached_jacobian(prompt.tower, prompt.context, cache)
    return jacobian


def no_room() -> NoReturn:
    raise UserError("out of memory while the Jacobian is made: use TTA.JACOBIAN off")


def cached_jacobian(tower: TextEncoder, context: Tensor, cache: ArrayCache | None) -> Tensor:
    """The Jacobian, read from the cache or made and put there."""
    if cache and (found := cache.read("jacobian")):
        return torch.from_numpy(found[0].copy()).to(context.device)
    classes, features = len(tower.class_tokens), tower.backbone.features
    if cache:
        cache.reserve(jacobian_size(classes, features, context), "the Jacobian's numbers")
    jacobian = retry_on_oom(lambda: text_jacobian(tower, context), no_room)
    if cache:
        cache.write("jacobian", jacobian.cpu().numpy(), {})
    return jacobian
