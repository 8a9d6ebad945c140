"""Episodic test-time prompt tuning: every image starts from the same prompt, adapts it, predicts, and forgets it.

Images are adapted in batches, but each row of every tensor belongs to one image alone: the context, the optimizer's
moments and the loss are never mixed. (The method: Shu et al., TPT, NeurIPS 2022.)
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ...datasets.utils.errors import DataError
from ..objectives import class_logits, confident_views, marginal_entropy
from ..vlm.initial_prompt import InitialPrompt


class Objective(Protocol):
    """What tells the methods apart: the loss of an episode is L_TPT + weight · penalty."""

    def penalty(self, text: Tensor) -> Tensor | None:
        """The regulariser of text features (..., K, d), one number an episode; None if the method has none."""

    def weight(self, loss: Tensor, penalty: Tensor) -> Tensor | float:
        """λ, or λ times a detached balance of both terms."""


@dataclass(frozen=True)
class EpisodeSettings:
    """How an episode runs; see TTA and OPTIM in the config."""

    select: float
    steps: int
    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass
class Adapted:
    """What B episodes leave behind."""

    logits: Tensor  # (B, K) of the plain view with the adapted prompt
    zero_shot_logits: Tensor  # (B, K) of the plain view with the initial prompt
    ctx: Tensor  # (B, n_ctx, width), the adapted contexts
    loss: Tensor  # (B,) L_TPT before the last step; NaN where no step was taken
    penalty: Tensor  # (B,) regulariser before the last step; 0 where the method has none, NaN without a step
    flagged: Tensor | None = None  # (B,) whether `logits` are the zero-shot ones because a number was lost

    @classmethod
    def none(cls, classes: int) -> Adapted:
        """No episode at all."""
        return cls(torch.empty(0, classes), torch.empty(0, classes), *(torch.empty(0) for _ in range(3)))

    @classmethod
    def join(cls, parts: list[Adapted]) -> Adapted:
        columns = {name: [getattr(part, name) for part in parts] for name in cls.__dataclass_fields__}
        return cls(**{name: None if column[0] is None else torch.cat(column) for name, column in columns.items()})

    def with_fallback(self, names: Sequence[object]) -> Adapted:
        """Where a number is lost, the image keeps its zero-shot prediction and is flagged. `names` tells images apart
        when not even that is a number."""
        flagged = ~self.logits.isfinite().all(-1)
        logits = torch.where(flagged[:, None], self.zero_shot_logits, self.logits)
        lost = ~logits.isfinite().all(-1)
        if lost.any():
            raise DataError(f"CLIP's features of {names[int(lost.nonzero()[0])]} are not finite: try MODEL.PREC fp32")
        return replace(self, logits=logits, flagged=flagged)


def run_episodes(
    prompt: InitialPrompt, views: Tensor, scale: Tensor, objective: Objective, how: EpisodeSettings,
) -> Adapted:
    """Adapts the prompt to each of B images, given as unit view features (B, V, d), view 0 the plain one."""
    batch = views.shape[0]
    view_logits = class_logits(views, prompt.text, scale)  # (B, V, K)
    chosen = confident_views(view_logits, how.select)  # (B, n), the same in all steps
    kept = views.take_along_dim(chosen[..., None], dim=1)  # (B, n, d)
    context = prompt.context.expand(batch, *prompt.context.shape)
    loss = penalty = torch.full((batch,), torch.nan, device=views.device)
    optimizer = BatchedAdamW(context, how)
    for step in range(how.steps):
        if step == 0:
            cotangent, loss, penalty = text_gradient(prompt.text, kept, scale, objective)
            gradient = prompt.gradient(cotangent)
        else:
            text, pull_back = prompt.tower.with_pull_back(context)
            cotangent, loss, penalty = text_gradient(text, kept, scale, objective)
            gradient = pull_back(cotangent)
        context = optimizer.step(context, gradient)
    text = prompt.tower.text(context) if how.steps else prompt.text
    logits = class_logits(views[:, :1], text, scale)[:, 0]
    return Adapted(logits, view_logits[:, 0], context, loss, penalty)


def text_gradient(text: Tensor, kept: Tensor, scale: Tensor, objective: Objective) -> tuple[Tensor, Tensor, Tensor]:
    """∂(L_TPT + weight · penalty)/∂T, (B, K, d), with both terms' values (B,).

    `text` is (K, d) where all episodes share it, as in the first step: the penalty and its gradient, which see no
    image, are then computed once.
    """
    batch = kept.shape[0]
    with torch.enable_grad():
        own = text.expand(batch, *text.shape[-2:]).detach().requires_grad_()
        loss = marginal_entropy(class_logits(kept, own, scale))  # (B,)
        (gradient,) = torch.autograd.grad(loss.sum(), own)
        text = text.detach().requires_grad_()
        penalty = objective.penalty(text)
        if penalty is None:
            return gradient, loss.detach(), torch.zeros_like(loss.detach())
        (penalty_gradient,) = torch.autograd.grad(penalty.sum(), text)
    loss, penalty = loss.detach(), penalty.detach().expand(batch)
    weight = torch.as_tensor(objective.weight(loss, penalty), device=loss.device).expand(batch)
    return gradient + weight[:, None, None] * penalty_gradient, loss, penalty


class BatchedAdamW:
    """AdamW with moments of their own for every episode: elementwise, so a batch is B independent optimizers."""

    def __init__(self, like: Tensor, how: EpisodeSettings) -> None:
        self.how = how
        self.steps = 0
        self.mean = torch.zeros_like(like)
        self.square = torch.zeros_like(like)

    def step(self, value: Tensor, gradient: Tensor) -> Tensor:
        how, (beta1, beta2) = self.how, self.how.betas
        self.steps += 1
        self.mean = torch.lerp(self.mean, gradient, 1 - beta1)
        self.square = beta2 * self.square + (1 - beta2) * gradient.square()
        spread = self.square.sqrt() / (1 - beta2**self.steps) ** 0.5 + how.eps
        rate = how.lr / (1 - beta1**self.steps)
        return value * (1 - how.lr * how.weight_decay) - rate * self.mean / spread
