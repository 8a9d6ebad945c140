"""Computes text features of all classes for any context, in groups that fit into memory."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .backbone import Backbone
from .budget import Budget
from .generic_tower import GenericTower
from .numerics import is_gpu
from .prompts import ClassTokenPosition
from .text_tower import TextTower, TextWeights

Tower = TextTower | GenericTower


class TextEncoder:
    """Unit text features of all classes and the backward pass to the context.

    Classes run in groups of `budget.classes`. With one group, the usual case, the backward pass
    reuses the forward pass. With several, the forward pass of each group is repeated for its
    gradient, so that only one group's activations exist at any moment.
    """

    def __init__(
        self, backbone: Backbone, class_tokens: Sequence[Sequence[int]], precision: str = "fp32",
        position: ClassTokenPosition | None = None, budget: Budget | None = None, steps: int = 1,
    ) -> None:
        """
        Args:
            backbone: The model.
            class_tokens: Tokens after the context, `end` included, for each class.
            precision: Precision of the text tower: fp32, fp16 or bf16.
            position: Position of the class names; None = after the context.
            budget: The number of classes at once; None = as many as fit by their sizes.
            steps: Number of gradient steps of an episode, on which a budget by sizes depends.
        """
        self.backbone = backbone
        self.class_tokens = class_tokens
        self.precision = precision
        self.position = position
        all_classes = self.part(range(len(class_tokens)))
        # Tokens that run per context, without those that classes share.
        self.tokens = all_classes.tokens
        self.saved_bytes = all_classes.saved_bytes  # bytes that autograd saves for all classes
        if budget is None:
            budget = Budget.of(backbone, all_classes, steps)
        self.budget = budget
        # One text tower per group of `group_size` classes; the last group may be smaller.
        self.group_size = len(class_tokens)
        self.towers = [all_classes]

    @property
    def groups(self) -> list[Tower]:
        """One text tower per group of classes. They are made again when the budget has changed."""
        if self.group_size != self.budget.classes:
            self.group_size = self.budget.classes
            self.towers = self.make_groups(self.group_size)
        return self.towers

    def make_groups(self, size: int) -> list[Tower]:
        """Makes a text tower for each group of `size` classes."""
        total = len(self.class_tokens)
        towers = []
        for start in range(0, total, size):
            stop = min(start + size, total)
            towers.append(self.part(range(start, stop)))
        return towers

    def part(self, classes: Sequence[int]) -> Tower:
        """Makes the text tower for some of the classes: packed if it has plain layers, otherwise
        the library's.
        """
        position = None
        if self.position:
            position = self.position.of_classes(classes)
        tokens = [self.class_tokens[k] for k in classes]
        text = self.backbone.text
        if isinstance(text, TextWeights):
            return TextTower(text, tokens, self.precision, position)
        return GenericTower(text, tokens, self.precision, position)

    @torch.no_grad()
    def text(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Computes unit text features for B contexts, without a graph.

        Args:
            context: Contexts (B, n_ctx, width), or (B, K, n_ctx, width) if class-specific.
            noise: Noise (B, length, width), added to the embeddings of all tokens; None = none.

        Returns:
            Features (B, K, d).
        """
        features = []
        for number, tower in enumerate(self.groups):
            features.append(tower(self.of_group(context, number), noise))
        return torch.cat(features, dim=1)

    def of_group(self, context: Tensor, number: int) -> Tensor:
        """Returns the contexts of a group: all, or those of its classes if they are class-specific.

        Args:
            context: Contexts (B, n_ctx, width), or (B, K, n_ctx, width) if class-specific.
            number: Number of the group, from 0.
        """
        if context.dim() != 4:
            return context
        start = number * self.group_size
        return context[:, start : start + self.group_size]

    def with_vjp(
        self, context: Tensor, batched: bool = False,
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Computes text features, and a function from their gradients to the context's.

        Args:
            context: B contexts, as in `text`.
            batched: Whether a single context (1, n_ctx, width) is given, which gets many gradients
                at once; the function may then be called repeatedly.

        Returns:
            Features (B, K, d), and a function from gradients (B, K, d) to the contexts' (B, n_ctx,
            width), one for each of B contexts or, with `batched`, all for the single one.
        """
        if len(self.groups) == 1:
            leaf, text = self.forward(context, 0)
            return text.detach(), lambda grad_text: vjp(text, leaf, grad_text, batched)

        def gradient(grad_text: Tensor) -> Tensor:
            total = torch.zeros((), device=context.device)
            for number, part in enumerate(grad_text.split(self.group_size, dim=1)):
                leaf, text = self.forward(context, number)
                total = total + vjp(text, leaf, part, batched)
            return total

        return self.text(context), gradient

    def forward(self, context: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Computes a group's text features with a graph.

        Args:
            context: B contexts, as in `text`.
            number: Number of the group, from 0.

        Returns:
            A leaf of the graph for the context, and the features (B, k, d) computed from it.
        """
        leaf = context.detach().clone().requires_grad_()
        with torch.enable_grad():
            return leaf, self.groups[number](self.of_group(leaf, number))


def vjp(text: Tensor, context: Tensor, grad_text: Tensor, batched: bool) -> Tensor:
    """Computes the context's gradients from gradients of the text features, one per episode.

    In half precision small gradients underflow in the tower. So each episode's gradient is scaled
    to about 1 by a power of two, which is exact, and the result is divided by it again, which the
    linear backward pass allows.

    Args:
        text: Features (B, K, d), or (1, K, d) if batched, computed from `context`.
        context: The leaf of their graph, as `forward` returns it.
        grad_text: Gradients of the features, (B, K, d).
        batched: Whether all gradients go through the graph of a single context.

    Returns:
        Gradients of the context, with a first dimension B.
    """
    # The greatest number of each gradient; one that is all zeros must not be divided by 0.
    size = grad_text.flatten(1).abs().amax(1).clamp(min=torch.finfo(grad_text.dtype).tiny)
    factor = torch.exp2(-torch.log2(size).floor())
    scaled = grad_text * factor[:, None, None]
    if batched:
        gradient = gradients_of_one(text, context, scaled[:, None])[:, 0]
    else:
        (gradient,) = torch.autograd.grad(text, context, scaled)
    return gradient / factor.view(-1, *[1] * (gradient.dim() - 1))


def gradients_of_one(output: Tensor, leaf: Tensor, output_gradients: Tensor) -> Tensor:
    """Computes many gradients through one saved graph, in one backward pass.

    `is_grads_batched` runs many operations once per gradient, which a GPU would wait for: vmap runs
    each once for all of them. On a CPU it takes no longer, and gives the bits of version 1.0.

    Args:
        output: A tensor computed from `leaf`. Its graph stays for further calls.
        leaf: The tensor to differentiate with respect to.
        output_gradients: B gradients of `output`, (B, ...).

    Returns:
        B gradients of `leaf`, (B, ...).
    """
    if not is_gpu(leaf.device):
        (gradients,) = torch.autograd.grad(
            output, leaf, output_gradients, retain_graph=True, is_grads_batched=True)
        return gradients

    def gradient(output_gradient: Tensor) -> Tensor:
        (leaf_gradient,) = torch.autograd.grad(output, leaf, output_gradient, retain_graph=True)
        return leaf_gradient

    return torch.func.vmap(gradient)(output_gradients)
