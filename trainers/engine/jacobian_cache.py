"""The Jacobian of the initial prompt: computed once, and kept on disk for later runs."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor

from ...datasets.utils.errors import UserError
from ..runs.dist import Distributed
from ..vlm.budget import retry_on_oom
from ..vlm.jacobian import TextShape, text_jacobian
from ..vlm.prompted_clip import PromptedCLIP
from .cache import ArrayCache

NAME = "jacobian"  # of the array in its folder


def build_jacobian(
    clip: PromptedCLIP, cache_dir: str, key: Mapping[str, object], dist: Distributed,
) -> Tensor:
    """The Jacobian of the initial prompt, read from the cache or computed.

    Args:
        clip: Model, classes and context.
        cache_dir: CACHE.DIR; "" = none.
        key: What the numbers depend on besides the context.
        dist: The processes of the run. The main one fills the cache, from which the others read.

    Returns:
        An array (K, d, n_ctx · width) on the model's device.
    """
    if not cache_dir:
        return compute_jacobian(clip)
    context = hashlib.sha256(clip.context.cpu().numpy().tobytes()).hexdigest()
    cache = ArrayCache(cache_dir, NAME, {**key, "context": context})
    if dist.is_main:
        jacobian = read_or_compute(clip, cache)
        dist.barrier()
        return jacobian
    dist.barrier()  # waits until the main process has filled the cache
    return read_or_compute(clip, cache)


def read_or_compute(clip: PromptedCLIP, cache: ArrayCache) -> Tensor:
    """The Jacobian, read from the cache, or computed and written there.

    Args:
        clip: Model, classes and context.
        cache: Its folder, which only this context's Jacobian is in.
    """
    cached = cache.read(NAME, NAME)
    if cached is not None:
        return torch.from_numpy(cached[NAME]).to(clip.context.device)
    shape = TextShape.of(clip.encoder, clip.context)
    cache.reserve(shape.jacobian_bytes, "the Jacobian's numbers")
    jacobian = compute_jacobian(clip)
    cache.write(NAME, jacobian=jacobian.cpu().numpy())
    return jacobian


def compute_jacobian(clip: PromptedCLIP) -> Tensor:
    """The Jacobian (K, d, n_ctx · width). Predictions depend on whether it is used, by rounding.

    So a run that has decided to use it stops where memory runs out.
    """
    return retry_on_oom(refuse, text_jacobian, clip.encoder, clip.context)


def refuse() -> NoReturn:
    """Ends the run where memory runs out."""
    raise UserError("out of memory while the Jacobian is computed: use TTA.JACOBIAN off")
