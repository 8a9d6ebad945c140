"""Computes the Jacobian of the initial prompt once, and keeps it on disk for later runs."""
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

NAME = "jacobian"  # of the file in its folder, and of the array in it


def build_jacobian(
    clip: PromptedCLIP, cache_dir: str, key: Mapping[str, object], dist: Distributed,
) -> Tensor:
    """Returns the Jacobian of the initial prompt, read from the cache or computed.

    Args:
        clip: Model, classes and context.
        cache_dir: The folder of all caches, CACHE.DIR; "" = none.
        key: Everything that the numbers depend on besides the context, as JSON values.
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
    """Reads the Jacobian from the cache, or computes it and writes it there.

    Args:
        clip: Model, classes and context.
        cache: The cache of this context's Jacobian alone.
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
    """Computes the Jacobian (K, d, n_ctx · width).

    Predictions with it and without it differ by rounding. So a run that has decided to use it stops
    if memory runs out, and does not go on without it.
    """
    return retry_on_oom(refuse, text_jacobian, clip.encoder, clip.context)


def refuse() -> NoReturn:
    """Ends the run where memory runs out."""
    raise UserError("out of memory while the Jacobian is computed: use TTA.JACOBIAN off")
