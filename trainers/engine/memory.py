"""How much is computed at once: as much as runs fastest, and less when memory runs out."""
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..vlm.oom import retry_on_oom
from ..vlm.text_encoder import InitialPrompt
from .adapted import Adapted

# Class tokens of all episodes in one pass. A CPU is fastest while activations stay in its caches; a GPU wants many.
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}


def within_memory(run: Callable[[Tensor], Adapted], views: Tensor, prompt: InitialPrompt) -> Adapted:
    """`run` on all images, as many at once as the device takes. Out of memory, the share is halved for good: first the
    episodes at once, then the classes at once."""
    limit = TOKENS_AT_ONCE.get(views.device.type, TOKENS_AT_ONCE["cuda"]) // prompt.tower.tokens

    def at_once() -> int:
        return max(1, min(len(views), limit, prompt.episodes))

    def shrink() -> str:
        if at_once() == 1:
            return prompt.halve_classes()
        prompt.episodes = -(-at_once() // 2)
        return f"{prompt.episodes} episodes"

    done: list[Adapted] = []
    rest = views
    while len(rest):
        done.append(retry_on_oom(lambda rest=rest: run(rest[: at_once()]), shrink))
        rest = rest[len(done[-1].logits) :]
    return Adapted.join(done)
