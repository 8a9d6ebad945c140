"""The prompt that all episodes start from, and all that is constant because they do."""
from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor

from .class_towers import ClassTowers
from .shrink import until_it_fits


class InitialPrompt:
    """The initial context with its text features and the backward pass from them, made once a run.

    The backward pass is a vector-Jacobian product through one kept graph, or, where the Jacobian itself has been made,
    one matrix product.
    """

    def __init__(self, tower: ClassTowers, context: Tensor) -> None:
        self.tower = tower
        self.episodes = sys.maxsize  # the most at once that memory has been found to hold
        self.context = context.detach()  # (n_ctx, width), or (K, n_ctx, width)
        self.text = until_it_fits(lambda: self.tower.text(self.context[None])[0], self.halve_classes)  # (K, d)
        self.jacobian: Tensor | None = None  # (K, d, n_ctx · width)
        self.vjp: Callable[[Tensor], Tensor] | None = None

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
