"""Episodic test-time tuning: every image starts from the same prompt, tunes it, and is predicted with it.

Images are tuned in batches, but each row of every tensor belongs to one image: contexts, optimizer moments and losses
never mix. (Shu et al., TPT, NeurIPS 2022.)
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from yacs.config import CfgNode

from ..functional.objectives import class_logits
from ..functional.posthoc import cots_columns
from .adapted import Adapted

if TYPE_CHECKING:
    from ..tpt import TPT


class TextFunction(Protocol):
    """Class text features as a function of what is tuned."""

    def text(self, context: Tensor) -> Tensor:
        """Features (B, K, d) for B contexts."""

    def with_vjp(self, context: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The features, and a function from their gradients (B, K, d) to the contexts'."""


class TunableText(Protocol):
    """What all episodes start from: an initial context, as in `InitialPrompt`, or a shift of the text features."""

    context: Tensor  # what is tuned
    text: Tensor  # (K, d) text features of the initial context
    zero_shot: Tensor  # (K, d) features that predictions are compared with: `text`, unless that was learnt

    @property
    def tower(self) -> TextFunction: ...

    def gradient(self, grad_text: Tensor) -> Tensor:
        """Gradients of the initial context for B gradients (B, K, d) of its text features."""


@torch.no_grad()
def tune_and_predict(
    prompt: TunableText, views: Tensor, scale: Tensor, method: TPT, cfg: CfgNode,
    moments: dict[str, Tensor] | None = None,
) -> Adapted:
    """Tunes the prompt for each of B images, given as unit view features (B, V, d), view 0 the plain one. `moments`:
    AdamW's state to start from, which is updated; None = a new one. An episode's loss is the method's `episode_loss` +
    Σ weight · penalty over its regularisers."""
    view_logits = class_logits(views, prompt.text, scale)  # (B, V, K)
    context, loss, penalty = tune(prompt, views, view_logits, scale, method, cfg, moments)
    text = prompt.tower.text(context) if cfg.TTA.STEPS else prompt.text
    before = view_logits if prompt.zero_shot is prompt.text else class_logits(views, prompt.zero_shot, scale)
    after = class_logits(views, text, scale) if cfg.TTA.STEPS else view_logits
    columns = {"loss": loss, "penalty": penalty, **cots_columns(before, after)}
    return Adapted(method.predict(views, text), before[:, 0], context.detach(), columns)


def tune(
    prompt: TunableText, views: Tensor, view_logits: Tensor, scale: Tensor, method: TPT, cfg: CfgNode,
    moments: dict[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """TTA.STEPS steps of AdamW. Returns the contexts, and loss and penalty (B,) before the last step."""
    batch = len(views)
    context = prompt.context.expand(batch, *prompt.context.shape).clone()
    loss = penalty = torch.full((batch,), torch.nan, device=views.device)
    if not cfg.TTA.STEPS:
        return context, loss, penalty
    selected = method.select(view_logits)[..., None]  # (B, n, 1), the same in all steps
    kept = views.take_along_dim(selected, dim=1)  # (B, n, d)
    # AdamW works elementwise, so one optimizer on a batch of contexts is one optimizer per image.
    optimizer = torch.optim.AdamW([context], lr=cfg.OPTIM.LR, weight_decay=cfg.OPTIM.WEIGHT_DECAY)
    if moments is not None:
        optimizer.state[context] = moments
    for step in range(cfg.TTA.STEPS):
        if step == 0:
            grad_text, loss, penalty = text_gradient(prompt.text, kept, scale, method)
            context.grad = prompt.gradient(grad_text)
        else:
            text, vjp = prompt.tower.with_vjp(context)
            first = view_logits.take_along_dim(selected, dim=1)  # (B, n, K)
            grad_text, loss, penalty = text_gradient(text, kept, scale, method, first)
            context.grad = vjp(grad_text)
        optimizer.step()
    return context, loss, penalty


def text_gradient(
    text: Tensor, kept: Tensor, scale: Tensor, method: TPT, first: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient (B, K, d) of an episode's loss at the text features, and the values (B,) of the views' loss and of
    the sum of all penalties.

    `text` is (K, d) in the first step, where all episodes share it, and (B, K, d) later. `first` are the kept views'
    logits (B, n, K) of the first step; None in that step.
    """
    batch = len(kept)
    with torch.enable_grad():
        own = text.expand(batch, *text.shape[-2:]).detach().requires_grad_()
        logits = class_logits(kept, own, scale)  # (B, n, K)
        loss = method.episode_loss(logits, logits if first is None else first)  # (B,)
        (gradient,) = torch.autograd.grad(loss.sum(), own)
        # d(total)/d(text) by the chain rule: the penalties' gradients are shared by all images, only their weights
        # differ, so total is differentiated with respect to the scalars loss and penalty.
        loss = loss.detach().requires_grad_()
        terms = [(term, found) for term in method.regularisers() if (found := penalty_and_gradient(term, text))]
        penalties = [value.expand(batch).clone().requires_grad_() for _, (value, _) in terms]
        total = loss.clone()
        for (term, _), penalty in zip(terms, penalties, strict=True):
            total = total + term.weight(loss, penalty) * penalty
        slopes = torch.autograd.grad(total.sum(), [loss, *penalties])
    gradient = slopes[0][:, None, None] * gradient
    if terms:
        gradient = gradient + sum(
            slope[:, None, None] * of_penalty for slope, (_, (_, of_penalty)) in zip(slopes[1:], terms, strict=True))
    return gradient, loss.detach(), sum((penalty.detach() for penalty in penalties), torch.zeros_like(loss.detach()))


# For each regulariser the text features of its last first step, which are constant in a run, and what it gave for them.
LAST: WeakKeyDictionary[TPT, tuple[Tensor, tuple[Tensor, Tensor] | None]] = WeakKeyDictionary()


def penalty_and_gradient(term: TPT, text: Tensor) -> tuple[Tensor, Tensor] | None:
    """A penalty and its gradient at the text features; None if the method has no penalty. It depends on no image: where
    all episodes share the features (K, d), it is computed once per run, which matters for thousands of classes."""
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
