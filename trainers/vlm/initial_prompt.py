"""The prompt that all episodes start from, and all that is constant because they do."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from torch import Tensor

from ..functional.objectives import class_logits
from .class_towers import ClassTowers
from .oom import retry_on_oom


class InitialPrompt:
    """The initial context with its text features and the backward pass from them, made once a run.

    The backward pass is a vector-Jacobian product through one kept graph, or, where the Jacobian itself has been made,
    one matrix product.
    """

    def __init__(self, tower: ClassTowers, context: Tensor, zero_shot: Tensor | None = None) -> None:
        self.tower = tower
        self.episodes = sys.maxsize  # the most at once that memory has been found to hold
        self.context = context.detach()  # (n_ctx, width), or (K, n_ctx, width)
        self.text = retry_on_oom(lambda: self.tower.text(self.context[None])[0], self.halve_classes)  # (K, d)
        self.namesakes = first_of_equal(tower.class_tokens) if self.context.dim() == 2 else range(len(self.text))
        self.zero_shot = self.text if zero_shot is None else zero_shot  # (K, d), what predictions are compared with
        self.jacobian: Tensor | None = None  # (K, d, n_ctx · width)
        self.vjp: Callable[[Tensor], Tensor] | None = None

    def logits(self, images: Tensor, scale: Tensor) -> Tensor:
        """Class logits (..., K) of image features (..., d). Classes of one name have the same to the last bit, which
        neither the tower nor a product promises: votes and ties are not left to rounding."""
        logits = class_logits(images, self.text, scale)
        return logits if len(set(self.namesakes)) == len(self.text) else logits[..., self.namesakes]

    def gradient(self, cotangent: Tensor) -> Tensor:
        """Gradients of the context for B gradients (B, K, d) of the text features."""
        if self.jacobian is not None:
            by_class = cotangent.transpose(0, 1) @ self.jacobian  # (K, B, n_ctx · width); reads the Jacobian in place
            gradient = by_class.transpose(0, 1) if self.context.dim() == 3 else by_class.sum(0)
            return gradient.unflatten(-1, self.context.shape[-2:])
        if self.vjp is None:
            _, self.vjp = self.tower.with_vjp(self.context[None], batched=True)
        return self.vjp(cotangent)

    def halve_classes(self) -> str:
        """Less memory: groups of half as many classes."""
        self.tower = self.tower.halved()
        self.vjp = None
        return f"{self.tower.group} classes"


def first_of_equal(class_tokens: Sequence[Sequence[int]]) -> list[int]:
    """For each class the first of the same name, itself as a rule."""
    found: dict[tuple[int, ...], int] = {}
    return [found.setdefault(tuple(tokens), i) for i, tokens in enumerate(class_tokens)]
