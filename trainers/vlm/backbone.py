"""What the rest of the house knows of a CLIP, whichever library built it. One file a family says how."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from ...datasets.views.pixels import Pixels
from .class_token_position import Placement
from .tokens import Tokenizer

KEPT_BYTES = {"cpu": 4e9, "cuda": 8e9}  # of a text tower's activations that wait for the backward pass


class Tower(Protocol):
    """Class text features as a function of the context: differentiable, for any number of episodes at once."""

    tokens: int  # that run for one context; those that all classes share are not counted
    kept_bytes: int  # of activations that wait for the backward pass, about
    placement: Placement | None  # of class names that do not stand at the end; None until it is set

    def __call__(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Unit features (B, K, d) for contexts (B, n_ctx, width), or class-specific ones (B, K, n_ctx, width); with
        `noise` (B, length, width) on the tokens of all classes."""


class Backbone(ABC):
    """An image tower and a text tower that share a space: frozen, in fp32, on one device."""

    name: str  # what `load_clip` was asked for; "" if the model was handed over
    module: nn.Module  # the library's own model
    tokenizer: Tokenizer
    context_length: int  # tokens of a prompt, control tokens included
    embedding: nn.Module  # token ids -> (..., width)
    pixels: Pixels  # what the image tower takes
    features: int  # d
    activations: int  # numbers in the image tower's largest activation of one view, which sets how many run together

    @property
    def device(self) -> torch.device:
        return self.logit_scale.device

    @property
    def logit_scale(self) -> Tensor:
        """The logarithm of what cosines are multiplied by. A bias on all logits, as SigLIP has, cancels in softmax."""
        return self.module.logit_scale.reshape(())

    @property
    def width(self) -> int:
        """Of the token embeddings, which the context is made of."""
        return self.embedding.weight.shape[1]

    def embed(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Token embeddings (K, length, width) of rows of equal length."""
        return self.embedding(torch.tensor(tokens, dtype=torch.long, device=self.device)).detach().float()

    @abstractmethod
    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Image features (N, d), not scaled to length 1, of normalised pixels (N, 3, size, size)."""

    @abstractmethod
    def text_tower(self, class_tokens: Sequence[Sequence[int]], precision: str) -> Tower:
        """The text tower for these classes, given as the tokens after the context, `end` included."""

    def with_pixels(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """The same with other numbers to normalise pixels by, where they are given."""
        other = copy(self)
        other.pixels = replace(self.pixels, mean=tuple(mean) or self.pixels.mean, std=tuple(std) or self.pixels.std)
        return other

    def classes_at_once(self, class_tokens: Sequence[Sequence[int]]) -> int:
        """How many classes' activations are kept for the backward pass together: all, if KEPT_BYTES hold them, which
        is so up to a thousand or two. Beyond, each group's forward pass is repeated in any case, so groups are small
        enough for the backward pass's own memory to fit beside them: half of it each."""
        classes, kept = len(class_tokens), self.text_tower(class_tokens, "fp32").kept_bytes
        budget = KEPT_BYTES.get(self.device.type, KEPT_BYTES["cuda"])
        return classes if kept <= budget else max(1, int(classes * budget / 2 / kept))
