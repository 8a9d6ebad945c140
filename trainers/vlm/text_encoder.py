"""Text features of all classes: for any context, in groups of classes that fit into memory, and at the initial prompt,
with all that is constant there, such as their Jacobian."""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ...datasets.utils.errors import UserError, WeightsError
from ..functional.objectives import class_logits
from .backbone import Backbone
from .generic_tower import GenericTower
from .numerics import retry_on_oom
from .prompts import ClassTokenPosition
from .text_tower import TextTower

SAVED_BYTES = {"cpu": 4e9, "cuda": 8e9}  # limit of the activations that autograd saves in a text tower
TOKENS_PER_GROUP = 1024  # of a Jacobian: bounds the activations that autograd saves
TOKENS_PER_PASS = {"cpu": 2048, "cuda": 32768}  # of a Jacobian: tokens times gradients that run at once
EQUAL = 1e-6  # features that differ by less in every number are taken as equal


class TextEncoder:
    """Unit text features of all classes and the backward pass to the context, one group of classes at a time.

    With one group, the usual case, the backward pass reuses the forward pass. With several, the forward pass of each
    group is repeated for its gradient, so that only one group's activations exist at any moment.
    """

    def __init__(
        self, backbone: Backbone, class_tokens: Sequence[Sequence[int]], precision: str = "fp32", group: int = 0,
        position: ClassTokenPosition | None = None,
    ) -> None:
        self.backbone, self.class_tokens, self.precision, self.position = backbone, class_tokens, precision, position
        self.group = group or self.classes_within_memory()  # classes per group
        self.towers = [self.part(range(i, min(i + self.group, len(class_tokens))))
                       for i in range(0, len(class_tokens), self.group)]
        self.tokens = sum(tower.tokens for tower in self.towers)  # that run per context, shared ones not counted

    def part(self, classes: Sequence[int]) -> TextTower | GenericTower:
        """The text tower for some of the classes."""
        position = self.position.of_classes(classes) if self.position else None
        return self.backbone.text_tower([self.class_tokens[k] for k in classes], self.precision, position)

    def classes_within_memory(self) -> int:
        """All classes, if SAVED_BYTES hold their activations, which is so up to one or two thousand. With more, groups
        are half as large as would fit, because the backward pass needs memory of its own."""
        saved = self.backbone.text_tower(self.class_tokens, "fp32").saved_bytes
        limit = SAVED_BYTES.get(self.backbone.device.type, SAVED_BYTES["cuda"])
        classes = len(self.class_tokens)
        return classes if saved <= limit else max(1, int(classes * limit / 2 / saved))

    def halved(self) -> TextEncoder:
        """The same in groups half as large."""
        if self.group == 1:
            raise UserError("out of memory with one class at a time: use DEVICE cpu")
        return TextEncoder(self.backbone, self.class_tokens, self.precision, -(-self.group // 2), self.position)

    @torch.no_grad()
    def text(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Unit text features (B, K, d) for contexts (B, n_ctx, width) or (B, K, n_ctx, width), with or without noise
        (B, length, width) on all tokens."""
        return torch.cat([tower(self.of_group(context, i), noise) for i, tower in enumerate(self.towers)], dim=1)

    def of_group(self, context: Tensor, i: int) -> Tensor:
        """The contexts of group i: all of them, or those of its classes where they are class-specific."""
        return context[:, i * self.group : (i + 1) * self.group] if context.dim() == 4 else context

    def with_vjp(self, context: Tensor, batched: bool = False) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Text features, and a function from their gradients to the context's.

        Gradients (B, K, d) give (B, n_ctx, width), one for each of B contexts. With `batched`, a single context is
        given as (1, n_ctx, width) and gets B gradients at once; the function may then be called repeatedly.
        """
        if len(self.towers) == 1:
            leaf, text = self.forward(context, 0)
            return text.detach(), lambda grad_text: vjp(text, leaf, grad_text, batched)

        def gradient(grad_text: Tensor) -> Tensor:
            total = torch.zeros((), device=context.device)
            for i, part in enumerate(grad_text.split(self.group, dim=1)):
                leaf, text = self.forward(context, i)
                total = total + vjp(text, leaf, part, batched)
            return total

        return self.text(context), gradient

    def forward(self, context: Tensor, i: int) -> tuple[Tensor, Tensor]:
        """A leaf for the context, and group i's text features as a function of it."""
        leaf = context.detach().clone().requires_grad_()
        with torch.enable_grad():
            return leaf, self.towers[i](self.of_group(leaf, i))


def vjp(text: Tensor, context: Tensor, grad_text: Tensor, batched: bool) -> Tensor:
    """The context's gradient for gradients of the text features, one per episode (first dimension).

    In half precision small gradients underflow in the tower. So each episode's is scaled to about 1 by a power of two,
    which is exact, and divided by it again, which the linear backward pass allows.
    """
    size = grad_text.flatten(1).abs().amax(1).clamp(min=torch.finfo(grad_text.dtype).tiny)
    factor = torch.exp2(-torch.log2(size).floor())
    scaled = grad_text * factor[:, None, None]
    if not batched:
        (gradient,) = torch.autograd.grad(text, context, scaled)
    else:  # (B, 1, K, d): B gradients of one context
        (gradient,) = torch.autograd.grad(text, context, scaled[:, None], retain_graph=True, is_grads_batched=True)
        gradient = gradient[:, 0]
    return gradient / factor.view(-1, *[1] * (gradient.dim() - 1))


class TextFeatures(NamedTuple):
    """Of classes that are described by texts, instead of a context and their names."""

    unit: Tensor  # (K, d)
    tokens: list[list[int]]  # of each class, all its texts joined: equal ones have equal features
    lengths: Tensor  # (K,) factors of the cosines, or () = 1


class InitialPrompt:
    """The context that all episodes start from, with its text features and their backward pass, made once per run.

    The backward pass is a vector-Jacobian product through one saved graph or, where the Jacobian itself has been
    computed, one matrix product.
    """

    def __init__(
        self, tower: TextEncoder, context: Tensor, zero_shot: Tensor | None = None, texts: TextFeatures | None = None,
    ) -> None:
        """`texts` replace the features of context and class names, for methods that do not change the context."""
        self.tower = tower
        self.episodes = sys.maxsize  # the most at once that fit into memory so far
        self.context = context.detach()  # (n_ctx, width), or (K, n_ctx, width)
        self.text = retry_on_oom(lambda: self.tower.text(self.context[None])[0], self.halve_classes)  # (K, d)
        check_distinct(self.text, tower.class_tokens)
        # For each class the first one of its name or texts; None where all, or the contexts, differ.
        first = first_of_equal(texts.tokens if texts else tower.class_tokens)
        self.first_of_name = first if self.context.dim() == 2 and len(set(first)) < len(first) else None
        self.text = texts.unit if texts else self.text
        self.zero_shot = self.text if zero_shot is None else zero_shot  # (K, d), what predictions are compared with
        self.jacobian: Tensor | None = None  # (K, d, n_ctx · width)
        self.vjp: Callable[[Tensor], Tensor] | None = None

    def logits(self, images: Tensor, scale: Tensor) -> Tensor:
        """Class logits (..., K) of image features (..., d), bitwise equal for classes of one name, so that votes
        and ties between them do not depend on rounding."""
        logits = class_logits(images, self.text, scale)
        return logits if self.first_of_name is None else logits[..., self.first_of_name]

    def gradient(self, grad_text: Tensor) -> Tensor:
        """Gradients of the context for B gradients (B, K, d) of the text features."""
        if self.jacobian is not None:
            by_class = grad_text.transpose(0, 1) @ self.jacobian  # (K, B, n_ctx · width); reads the Jacobian in place
            gradient = by_class.transpose(0, 1) if self.context.dim() == 3 else by_class.sum(0)
            return gradient.unflatten(-1, self.context.shape[-2:])
        if self.vjp is None:
            _, self.vjp = self.tower.with_vjp(self.context[None], batched=True)
        return self.vjp(grad_text)

    def halve_classes(self) -> str:
        """Less memory: groups of half as many classes."""
        self.tower = self.tower.halved()
        self.vjp = None
        return f"{self.tower.group} classes"


def first_of_equal(class_tokens: Sequence[Sequence[int]]) -> list[int]:
    """For each class the first one with the same tokens, usually itself."""
    found: dict[tuple[int, ...], int] = {}
    return [found.setdefault(tuple(tokens), i) for i, tokens in enumerate(class_tokens)]


def check_distinct(text: Tensor, class_tokens: Sequence[Sequence[int]]) -> None:
    """Refuses equal features of classes whose names have different tokens: the text tower does not read the names."""
    classes = torch.tensor(sorted(set(first_of_equal(class_tokens))), device=text.device)
    distinct = text[classes]
    weights = torch.linspace(1, 2, text.shape[1], dtype=torch.double, device=text.device)
    order = (distinct.double() @ weights).argsort()  # equal features are neighbours
    equal = (distinct[order[1:]] - distinct[order[:-1]]).abs().amax(1) < EQUAL
    if not text.is_meta and equal.any():  # meta tensors have no values
        first = int(equal.int().argmax())
        pair = sorted(classes[order[first : first + 2]].tolist())
        raise WeightsError(f"classes {pair[0]} and {pair[1]} (counted from 0) get the same text features, though their "
                           f"names differ: the tokenizer and the text tower of this backbone do not fit together")


def jacobian_size(classes: int, features: int, context: Tensor) -> int:
    """Bytes of the (K, d, n_ctx · width) array in fp32."""
    return 4 * classes * features * context.shape[-2] * context.shape[-1]


def break_even(tower: TextEncoder, n_ctx: int, features: int) -> int:
    """The number of images whose gradients cost as much as the Jacobian. It needs one backward pass per feature, in
    each of which start and context run for every class. With several groups of classes, an image's gradient repeats
    the forward pass too, which costs as much as the backward pass."""
    per_image = tower.tokens * (1 if len(tower.towers) == 1 else 2)
    return features * (tower.tokens + len(tower.class_tokens) * (1 + n_ctx)) // per_image


def pays(images: int, even: float) -> bool:
    """Whether the Jacobian, which costs as much as the gradients of `even` images, is worth computing for so many."""
    return images > 2 * even


def text_jacobian(tower: TextEncoder, context: Tensor) -> Tensor:
    """∂T/∂context as (K, d, n_ctx · width), class by class: each class gets a context of its own.

    A constant of the run, shared by all methods and λ. With it, the first step's backward pass through the text tower
    is one matrix product. It costs about as much as the backward passes of a thousand images.
    """
    classes, features = len(tower.class_tokens), tower.backbone.features
    per_class = context if context.dim() == 3 else context.expand(classes, -1, -1)  # (K, n_ctx, width)
    jacobian = torch.empty(classes, features, context.shape[-2] * context.shape[-1], device=context.device)
    length = 1 + context.shape[-2] + -(-tower.tokens // classes)
    group = max(1, TOKENS_PER_GROUP // length)
    at_once = max(1, TOKENS_PER_PASS.get(context.device.type, TOKENS_PER_PASS["cuda"]) // (group * length))
    outputs = torch.eye(features, device=context.device)
    with tqdm(total=classes * features, desc="Jacobian", unit="row", unit_scale=True, dynamic_ncols=True) as bar:
        for start in range(0, classes, group):
            some = range(classes)[start : start + group]
            leaf = per_class[some.start : some.stop].clone().requires_grad_()
            with torch.enable_grad():
                text = tower.part(some)(leaf[None])[0]  # (k, d)
            for first in range(0, features, at_once):
                rows = outputs[first : first + at_once]  # (r, d): the same feature of every class
                rows = rows[:, None].expand(-1, len(text), -1)
                (slope,) = torch.autograd.grad(text, leaf, rows, retain_graph=True, is_grads_batched=True)
                jacobian[some.start : some.stop, first : first + len(rows)] = slope.flatten(2).transpose(0, 1)
                bar.update(len(rows) * len(text))
    return jacobian
