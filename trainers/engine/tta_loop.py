"""Episodic test-time tuning: every image starts from the same prompt, adapts it, predicts, and forgets it.

Images are adapted in batches, but each row of every tensor belongs to one image alone: the context, the optimizer's
moments and the loss are never mixed. (The method: Shu et al., TPT, NeurIPS 2022.)
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..functional.objectives import class_logits
from ..functional.posthoc import strong_columns
from .adapted import Adapted


class Start(Protocol):
    """What all episodes start from: an initial context, as `InitialPrompt` has it, or a shift of the text features."""

    context: Tensor  # what is adapted
    text: Tensor  # (K, d) that it gives
    zero_shot: Tensor  # (K, d) that predictions are compared with: `text`, unless that was learnt without images
    tower: object  # text(context) and with_vjp(context), for B contexts

    def gradient(self, cotangent: Tensor) -> Tensor:
        """Gradients of the context for B gradients (B, K, d) of the text features."""


class Term(Protocol):
    """A regulariser of the text features."""

    def penalty(self, text: Tensor) -> Tensor | None:
        """Its value for text features (..., K, d), one number an episode; None if there is none."""

    def weights(self, loss: Tensor, penalty: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """What the gradients of loss and penalty are multiplied by, both given detached as (B,)."""


class Hooks(Protocol):
    """What tells the methods apart. The loss of an episode is a weighted sum of `view_loss` and its terms."""

    def select(self, logits: Tensor) -> Tensor:
        """The views to learn from, (B, V, K) -> (B, n), chosen once with the initial prompt."""

    def view_loss(self, logits: Tensor) -> Tensor:
        """The loss of the chosen views, (B, n, K) -> (B,)."""

    def episode_loss(self, logits: Tensor, first: Tensor) -> Tensor:
        """`view_loss`, for methods that look back: `first` are the same views' logits in the first step, where they are
        `logits` themselves, gradient and all."""

    def terms(self) -> Sequence[Term]:
        """The regularisers that are added up."""

    def predict(self, views: Tensor, text: Tensor) -> Tensor:
        """Logits (B, K) of images, given the views' features (B, V, d) and adapted class features (..., K, d)."""


@torch.no_grad()
def run_episodes(prompt: Start, views: Tensor, scale: Tensor, method: Hooks, cfg: CfgNode) -> Adapted:
    """Adapts the prompt to each of B images, given as unit view features (B, V, d), view 0 the plain one."""
    batch = len(views)
    view_logits = class_logits(views, prompt.text, scale)  # (B, V, K)
    context = prompt.context.expand(batch, *prompt.context.shape).clone()
    loss = penalty = torch.full((batch,), torch.nan, device=views.device)
    if cfg.TTA.STEPS:
        chosen = method.select(view_logits)  # stays the same in all steps
        kept = views.take_along_dim(chosen[..., None], dim=1)  # (B, n, d)
        # Elementwise, so AdamW on a batch of contexts is as many optimizers as there are images.
        optimizer = torch.optim.AdamW([context], lr=cfg.OPTIM.LR, weight_decay=cfg.OPTIM.WEIGHT_DECAY)
    for step in range(cfg.TTA.STEPS):
        if step == 0:
            cotangent, loss, penalty = text_gradient(prompt.text, kept, scale, method)
            context.grad = prompt.gradient(cotangent)
        else:
            first = view_logits.take_along_dim(chosen[..., None], dim=1)  # (B, n, K)
            text, vjp = prompt.tower.with_vjp(context)
            cotangent, loss, penalty = text_gradient(text, kept, scale, method, first)
            context.grad = vjp(cotangent)
        optimizer.step()
    text = prompt.tower.text(context) if cfg.TTA.STEPS else prompt.text
    logits = method.predict(views, text)
    before = view_logits if prompt.zero_shot is prompt.text else class_logits(views, prompt.zero_shot, scale)
    after = class_logits(views, text, scale) if cfg.TTA.STEPS else view_logits
    columns = {"loss": loss, "penalty": penalty, **strong_columns(before, after)}
    return Adapted(logits, before[:, 0], context.detach(), columns)


def text_gradient(
    text: Tensor, kept: Tensor, scale: Tensor, method: Hooks, first: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient (B, K, d) of an episode's loss at the text features, with the values (B,) of the views' loss and of
    all regularisers together.

    `first` are the kept views' logits (B, n, K) in the first step; None in that step. `text` is (K, d) where all
    episodes share it, as in the first step.
    """
    batch = len(kept)
    with torch.enable_grad():
        own = text.expand(batch, *text.shape[-2:]).detach().requires_grad_()
        logits = class_logits(kept, own, scale)  # (B, n, K)
        loss = method.episode_loss(logits, logits if first is None else first)  # (B,)
        (gradient,) = torch.autograd.grad(loss.sum(), own)
        loss, total = loss.detach(), torch.zeros_like(loss.detach())
        on_loss, regularised = 1.0, 0.0
        for term in method.terms():
            found = penalty_and_gradient(term, text)
            if found is None:
                continue
            penalty, penalty_gradient = found[0].expand(batch), found[1]
            of_loss, of_penalty = (
                torch.as_tensor(weight, device=loss.device).expand(batch)[:, None, None]
                for weight in term.weights(loss, penalty)
            )
            on_loss = on_loss + (of_loss - 1)
            regularised = regularised + of_penalty * penalty_gradient
            total = total + penalty
    return on_loss * gradient + regularised, loss, total


# For each term the text features that it saw last in a first step, which a run never changes, and what it made of them.
LAST: WeakKeyDictionary[Term, tuple[Tensor, tuple[Tensor, Tensor] | None]] = WeakKeyDictionary()


def penalty_and_gradient(term: Term, text: Tensor) -> tuple[Tensor, Tensor] | None:
    """A term's value and its gradient at the text features. They see no image: where all episodes share the features
    (K, d), they are computed once a run, which for thousands of classes takes longer than an episode."""
    shared = text.dim() == 2
    if shared and term in LAST and LAST[term][0] is text:
        return LAST[term][1]
    with torch.enable_grad():
        leaf = text.detach().requires_grad_()
        penalty = term.penalty(leaf)
        found = None if penalty is None else (penalty.detach(), torch.autograd.grad(penalty.sum(), leaf)[0])
    if shared:
        LAST[term] = text, found
    return found
