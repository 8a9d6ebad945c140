"""TPS: tunes a shift of the class features, so that no text tower runs at test time."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from .engine.adapted import Adapted
from .functional.objectives import unit
from .registry import TRAINER_REGISTRY
from .tpt import TPT


class ShiftFunction:
    """Text features unit(T + s) as a function of the shift s."""

    def __init__(self, text: Tensor) -> None:
        """
        Args:
            text: Unit class features T of the initial prompt, (K, d).
        """
        self.initial = text

    def text(self, shift: Tensor) -> Tensor:
        """Features unit(T + s), (B, K, d), of B shifts."""
        return unit(self.initial + shift)

    def with_vjp(self, shift: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The features of B shifts, and a function from their gradients to the shifts'.

        Args:
            shift: (B, K, d).

        Returns:
            Features (B, K, d), and a function from (B, K, d) to (B, K, d).
        """
        leaf = shift.detach().clone().requires_grad_()
        with torch.enable_grad():
            text = self.text(leaf)
        return text.detach(), lambda grad_text: torch.autograd.grad(text, leaf, grad_text)[0]


class ShiftedText:
    """The start of all episodes: a shift of zero.

    It is a `TunableText` (engine/continual.py), like `PromptedCLIP`; its context is the shift.
    """

    def __init__(self, text: Tensor) -> None:
        self.encoder = ShiftFunction(text)
        self.context = torch.zeros_like(text)  # (K, d)
        self.text = self.zero_shot_text = self.encoder.text(self.context)

    def gradient(self, grad_text: Tensor) -> Tensor:
        """Gradients of the shift, given B gradients (B, K, d) of the text features."""
        _, vjp = self.encoder.with_vjp(self.context.expand_as(grad_text))
        return vjp(grad_text)


@TRAINER_REGISTRY.register()
class TPS(TPT):
    """min over s of L_TPT with class features unit(T + s), s = 0 at first.

    (Sui et al., TPS, WACV 2025.)

    Only the shift is tuned, so a step costs no pass of the text tower. The first step of AdamW is
    s = −lr · g/(|g| + 1e-8) in closed form, because its moments are g and g² and s has nothing to
    decay.
    """

    label = "TPS"
    colour = "#44AA99"
    marker = "p"
    display_order = 50
    tunes_context = False

    @cached_property
    def initial(self) -> ShiftedText:
        """The text features that are shifted: those of the initial prompt."""
        return ShiftedText(self.clip.text)

    @torch.no_grad()
    def adapt(self, views: Tensor) -> Adapted:
        """As TPT, with a shift in place of a context."""
        adapted = super().adapt(views)
        return replace(adapted, ctx=None)  # a shift of features is not a context
