"""The text tower cut into groups of classes, so that memory, not the number of classes, sets the pace."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...datasets.utils.errors import UserError
from .backbone import Backbone
from .class_token_position import Placement
from .compiling import compiled
from .text_tower import TextTower


class ClassTowers:
    """Text features of all classes and the backward pass to the context, a group of classes at a time.

    With one group, the usual case, the backward pass reuses the forward pass. With several, each group's forward pass
    is repeated when its gradient is wanted, so that only one group's activations exist at any moment.
    """

    def __init__(
        self, backbone: Backbone, class_tokens: Sequence[Sequence[int]], precision: str = "fp32", group: int = 0,
        placement: Placement | None = None,
    ) -> None:
        self.backbone, self.class_tokens, self.precision = backbone, class_tokens, precision
        self.placement = placement
        self.group = group or backbone.classes_at_once(class_tokens)  # classes a group
        groups = [class_tokens[i : i + self.group] for i in range(0, len(class_tokens), self.group)]
        self.towers = [backbone.text_tower(tokens, precision) for tokens in groups]
        self.forward_only: list = self.towers  # for features alone
        if placement:
            for i, tower in enumerate(self.towers):
                start = i * self.group
                tower.placement = placement.of_classes(range(start, start + len(groups[i])))

    @property
    def tokens(self) -> int:
        """Tokens that run for one context, shared ones not counted."""
        return sum(tower.tokens for tower in self.towers)

    def compile(self) -> None:
        """From here on passes without a gradient are compiled. Towers that their own library runs are not: what stands
        in for their embedding is put there anew in each pass."""
        self.forward_only = [
            compiled(one.__call__, "the text tower") if isinstance(one, TextTower) else one for one in self.towers
        ]

    def halved(self) -> ClassTowers:
        """The same in groups half as large."""
        if self.group == 1:
            raise UserError("out of memory with one class at a time: use DEVICE cpu")
        half = -(-self.group // 2)
        smaller = ClassTowers(self.backbone, self.class_tokens, self.precision, half, self.placement)
        if self.forward_only is not self.towers:
            smaller.compile()
        return smaller

    @torch.no_grad()
    def text(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Unit text features (B, K, d) for contexts (B, n_ctx, width) or (B, K, n_ctx, width), with or without noise
        (B, length, width) on all tokens."""
        return torch.cat([tower(self.of_group(context, i), noise) for i, tower in enumerate(self.forward_only)], dim=1)

    def of_group(self, context: Tensor, i: int) -> Tensor:
        """The contexts that group i reads: all of them, or its own classes' where they are class-specific."""
        return context[:, i * self.group : (i + 1) * self.group] if context.dim() == 4 else context

    def with_vjp(self, context: Tensor, batched: bool = False) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Text features, and a function from their gradients to the context's.

        Gradients (B, K, d) give (B, n_ctx, width), one for each of B contexts. With `batched`, a single context is
        given as (1, n_ctx, width) and gets B gradients at once; the function may then be called again and again.
        """
        if len(self.towers) > 1:
            return self.text(context), lambda cotangent: self.recompute_gradient(context, cotangent, batched)
        leaf, text = self.forward(context, 0)
        return text.detach(), lambda cotangent: vjp(text, leaf, cotangent, batched)

    def forward(self, context: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """A leaf for the context, and group i's text features as a function of it."""
        leaf = context.detach().clone().requires_grad_()
        with torch.enable_grad():
            return leaf, self.towers[i](self.of_group(leaf, i))

    def recompute_gradient(self, context: Tensor, cotangent: Tensor, batched: bool) -> Tensor:
        total = 0
        for i, part in enumerate(cotangent.split(self.group, dim=1)):
            leaf, text = self.forward(context, i)
            total = total + vjp(text, leaf, part, batched)
        return total


def vjp(text: Tensor, context: Tensor, cotangent: Tensor, batched: bool) -> Tensor:
    """The context's gradient for gradients of the text features, one an episode (first dimension).

    In half precision small gradients vanish on their way through the tower, so each episode's is scaled to a size
    near 1 by a power of two, which is exact and, the backward pass being linear, divided out again.
    """
    size = cotangent.flatten(1).abs().amax(1).clamp(min=torch.finfo(cotangent.dtype).tiny)
    factor = torch.exp2(-torch.log2(size).floor())
    scaled = cotangent * factor[:, None, None]
    if batched:
        scaled = scaled[:, None]  # (B, 1, K, d): B gradients of one context
    (gradient,) = torch.autograd.grad(text, context, scaled, retain_graph=batched, is_grads_batched=batched)
    gradient = gradient[:, 0] if batched else gradient
    return gradient / factor.view(-1, *[1] * (gradient.dim() - 1))
