"""A shift of the class features, tuned in place of a context: no text tower is needed."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..functional.objectives import unit


class ShiftFunction:
    """Text features unit(T + s) as a function of the shift s."""

    def __init__(self, text: Tensor) -> None:
        self.initial = text  # (K, d)

    def text(self, shift: Tensor) -> Tensor:
        """(B, K, d) -> (B, K, d)"""
        return unit(self.initial + shift)

    def with_vjp(self, shift: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The features, and a function from their gradients to the shift's."""
        leaf = shift.detach().clone().requires_grad_()
        with torch.enable_grad():
            text = self.text(leaf)
        return text.detach(), lambda grad_text: torch.autograd.grad(text, leaf, grad_text)[0]


class ShiftedText:
    """The start of all episodes: a shift of zero."""

    def __init__(self, text: Tensor) -> None:
        self.tower = ShiftFunction(text)
        self.context = torch.zeros_like(text)  # (K, d)
        self.text = self.zero_shot = self.tower.text(self.context)

    def gradient(self, grad_text: Tensor) -> Tensor:
        _, vjp = self.tower.with_vjp(self.context.expand_as(grad_text))
        return vjp(grad_text)
