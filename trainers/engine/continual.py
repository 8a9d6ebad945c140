"""Carries the tuned context from image to image, as TTA.RESET says."""
from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .adapted import Adapted

Moments = dict[str, Tensor]  # AdamW's state of one tensor, under torch's names


class TextFunction(Protocol):
    """Class text features as a function of what is tuned."""

    def text(self, context: Tensor) -> Tensor:
        """Features (B, K, d) for B contexts."""

    def with_vjp(self, context: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The features, and a function from their gradients (B, K, d) to the contexts'."""


class TunableText(Protocol):
    """What episodes start from: an initial context, or a shift of the text features."""

    @property
    def context(self) -> Tensor:
        """What is tuned."""

    @property
    def text(self) -> Tensor:
        """(K, d) text features of `context`."""

    @property
    def zero_shot_text(self) -> Tensor:
        """(K, d) features that predictions are compared with: `text`, unless that was learnt."""

    @property
    def encoder(self) -> TextFunction: ...

    def gradient(self, grad_text: Tensor) -> Tensor:
        """Gradients of `context` for B gradients (B, K, d) of its text features."""


class Start:
    """The start of one image of a stream.

    Zero-shot predictions stay those of the initial context.
    """

    def __init__(self, initial: TunableText, context: Tensor) -> None:
        """
        Args:
            initial: The start of the first image.
            context: The context that the image before this one left, such as (n_ctx, width).
        """
        # Unlike the initial context, this one changes from image to image: the text tower runs
        # forward and backward for it.
        text, gradient = initial.encoder.with_vjp(context[None])
        self.context = context
        self.text = text[0]  # (K, d)
        self.zero_shot_text = initial.zero_shot_text
        self.encoder = initial.encoder
        self.gradient = gradient


class ContinualContext:
    """The context that the last image left, with AdamW's moments and step count.

    These belong to the context and are reset with it. A context that gives no finite prediction is
    not carried: the next image starts where this one did.
    """

    def __init__(self, initial: TunableText, reset_every: int) -> None:
        """
        Args:
            initial: The start of the first image, and of every image after a reset.
            reset_every: Number of images after which the context is reset; 0 = never.
        """
        self.initial = initial
        self.reset_every = reset_every
        self.context = initial.context.clone()
        zeros = torch.zeros_like(self.context[None])
        self.moments: Moments = {
            "step": torch.zeros(()), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
        self.images = torch.zeros((), dtype=torch.long)  # number of images so far

    def start_next(self) -> tuple[Start, Moments]:
        """Returns the start of the next image, and a copy of AdamW's state, which the episode
        updates.
        """
        if self.reset_every and int(self.images) % self.reset_every == 0:
            self.context.copy_(self.initial.context)
            for moment in self.moments.values():
                moment.zero_()
        moments = {name: moment.clone() for name, moment in self.moments.items()}
        return Start(self.initial, self.context), moments

    def finish(self, adapted: Adapted, moments: Moments) -> None:
        """Keeps the context that the image tuned, if all numbers are finite.

        Args:
            adapted: The predictions for the image, with its tuned context.
            moments: AdamW's state after its last step.
        """
        self.images += 1
        if adapted.ctx is None:
            return
        for tensor in (adapted.logits, adapted.ctx, *moments.values()):
            if not tensor.isfinite().all():
                return
        self.context.copy_(adapted.ctx[0])
        for name, moment in moments.items():
            self.moments[name].copy_(moment)

    def tensors(self) -> dict[str, Tensor]:
        """All that the next image depends on, by name."""
        return {"context": self.context, "images": self.images, **self.moments}
