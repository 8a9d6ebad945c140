"""How many episodes run at once: as many as are fastest, and fewer when memory runs out."""
from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..vlm.numerics import retry_on_oom
from ..vlm.text_encoder import InitialPrompt
from .adapted import Adapted

# Class tokens of all episodes in one pass. A CPU is fastest while activations stay in its caches; a GPU wants many.
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}


def adapt_within_memory(adapt: Callable[[Tensor], Adapted], views: Tensor, prompt: InitialPrompt) -> Adapted:
    """`adapt` on all images, as many at once as the device holds. When memory runs out, first the number of episodes,
    then the number of classes per pass is halved for the rest of the run."""
    limit = TOKENS_AT_ONCE.get(views.device.type, TOKENS_AT_ONCE["cuda"]) // prompt.tower.tokens

    def at_once() -> int:
        return max(1, min(len(views), limit, prompt.episodes))

    def halve() -> str:
        if at_once() == 1:
            return prompt.halve_classes()
        prompt.episodes = -(-at_once() // 2)
        return f"{prompt.episodes} episodes"

    done: list[Adapted] = []
    rest = views
    while len(rest):
        done.append(retry_on_oom(lambda rest=rest: adapt(rest[: at_once()]), halve))  # type: ignore[misc]
        rest = rest[len(done[-1].logits) :]
    return Adapted.join(done)
