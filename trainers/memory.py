"""How much is computed at once: as much as runs fastest, and less when memory runs out."""
from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ..datasets.errors import UserError
from .episodes import Adapted
from .vlm.initial_prompt import InitialPrompt

logger = logging.getLogger(__name__)

# Class tokens of all episodes in one pass. A CPU is fastest while activations stay in its caches; a GPU wants many.
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}


def within_memory(run: Callable[[Tensor], Adapted], views: Tensor, prompt: InitialPrompt) -> Adapted:
    """`run` on all images, as many at once as the device takes. Out of memory, the share is halved: first the
    episodes at once, then the classes at once."""
    limit = TOKENS_AT_ONCE.get(views.device.type, TOKENS_AT_ONCE["cuda"])
    at_once = max(1, min(len(views), limit // prompt.tower.tokens))
    done: list[Adapted] = []
    start = 0
    while start < len(views):
        try:
            done.append(run(views[start : start + at_once]))
            start += at_once
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            if at_once > 1:
                at_once = -(-at_once // 2)
                logger.warning("out of memory: %d episodes at once from here on", at_once)
            elif prompt.tower.group > 1:
                prompt.halve_classes()
                logger.warning("out of memory: %d classes at once from here on", prompt.tower.group)
            else:
                raise UserError("out of memory with one image and one class at a time: use DEVICE cpu") from error
            release()
    return Adapted.join(done)


def out_of_memory(error: RuntimeError) -> bool:
    """CUDA has an exception of its own; the CPU's allocator only a message."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


def release() -> None:
    """Gives freed blocks back to the driver, so that smaller ones fit."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
