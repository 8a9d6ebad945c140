"""Runs a text tower that is not causal, or has unusual layers, by its own library's module.

A tower that attends in both directions mixes the context with each class name, so classes share no
computation as in `text_tower`: every prompt runs from its first token to its last, padding included
where it is attended. The library's own module does it; only the output of its token embedding is
replaced by one that holds the context.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..functional.objectives import unit
from .numerics import autocast
from .prompts import ANCHOR, ClassTokenPosition, Tokenizer, reorder_tokens

# Numbers that autograd saves per token and layer, in units of the width; attention weights come on
# top.
SAVED_NUMBERS = 20
ONE_AT_A_TIME = threading.Lock()  # threads share the module whose embedding is replaced


@dataclass(frozen=True)
class GenericText:
    """A library's text tower."""

    # Token ids (N, length) -> features (N, d), not scaled to length 1
    encode: Callable[[Tensor], Tensor]
    embedding: nn.Embedding  # token embedding, which `encode` calls
    tokenizer: Tokenizer
    length: int  # tokens of a padded prompt
    # Whether padding is attended or moves the readout. Otherwise prompts are only padded to the
    # longest of them, which is faster.
    keep_padding: bool
    layers: int
    heads: int


class GenericTower:
    """Class text features as a function of the context: differentiable, for any number of episodes
    at once.
    """

    def __init__(
        self, text: GenericText, class_tokens: Sequence[Sequence[int]], precision: str = "fp32",
        position: ClassTokenPosition | None = None,
    ) -> None:
        """
        Args:
            text: The library's tower.
            class_tokens: Tokens after the context, `end` included, for each class.
            precision: Precision of the tower: fp32, fp16 or bf16.
            position: Position of the class names; None = after the context.
        """
        self.text = text
        self.class_tokens = class_tokens
        self.precision = precision
        self.position = position
        self.device = text.embedding.weight.device
        self.classes = len(class_tokens)
        self.longest = max(map(len, class_tokens))
        length = self.longest
        if text.keep_padding:
            length = text.length
        self.tokens = self.classes * length  # tokens that run per context, padding included
        width = text.embedding.weight.shape[1]
        # Per token and layer; attention weights are saved before and after the softmax.
        numbers = SAVED_NUMBERS * width + 2 * text.heads * length
        self.layers = text.layers
        self.saved_bytes = 4 * self.tokens * self.layers * numbers  # 4 bytes each, as in fp32

    def __call__(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Computes unit text features for B contexts.

        Args:
            context: Contexts (B, n_ctx, width), or class-specific ones (B, K, n_ctx, width).
            noise: Noise (B, length, width), added to the tokens of all classes by position; None =
                none.

        Returns:
            Features (B, K, d).
        """
        batch = len(context)
        if context.dim() == 3:
            context = context[:, None].expand(-1, self.classes, -1, -1)  # (B, K, n_ctx, width)
        ids = self.prompt_ids(context.shape[2])  # (K, length)
        first = len(self.text.tokenizer.start)  # position of the context's first token
        after = first + context.shape[2]  # position of the class name's first token
        with torch.no_grad():
            # (B, K, length, width)
            words = self.text.embedding(ids).float().expand(batch, -1, -1, -1)
        # (B, K, length, width)
        embedded = torch.cat([words[:, :, :first], context, words[:, :, after:]], dim=2)
        if self.position:
            order = self.position.order(first, context.shape[2], ids.shape[1])
            ids = reorder_tokens(ids, order)
            embedded = reorder_tokens(embedded, order)
        if noise is not None:
            embedded = embedded + noise[:, None, : embedded.shape[2]]
        # The plain formula of attention, unlike the fused ones, can be differentiated for many
        # gradients at once. What a forward hook returns replaces the output of its module.
        with ONE_AT_A_TIME, sdpa_kernel(SDPBackend.MATH), autocast(self.precision, self.device):
            with self.text.embedding.register_forward_hook(lambda *_: embedded.flatten(0, 1)):
                features = self.text.encode(ids.repeat(batch, 1))
            return unit(features).unflatten(0, (batch, self.classes))

    def prompt_ids(self, n_ctx: int) -> Tensor:
        """Token ids (K, length), with an ordinary word in place of each context token.

        The library finds padding and the end of a text by these ids, so they must have the prompt's
        length. The embeddings of the words are replaced by the context's.
        """
        tokenizer = self.text.tokenizer
        word = tokenizer.encode(ANCHOR)[0]
        beginning = [*tokenizer.start, *[word] * n_ctx]
        length = len(beginning) + self.longest
        if self.text.keep_padding:
            length = self.text.length
        rows = []
        for class_tokens in self.class_tokens:
            row = [*beginning, *class_tokens]
            padding = [tokenizer.pad] * (length - len(row))
            rows.append([*row, *padding])
        return torch.tensor(rows, device=self.device)
