"""Any text tower, run whole by its own library: for those that are not causal, where nothing can be shared.

A tower that attends in both directions mixes the context with each class name, so every prompt runs from its first
token to its last, and where padding is attended, to the end of the padding. The library's own module does it; only the
output of its token embedding is replaced by one that holds the context.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..functional.objectives import unit
from .class_token_position import Placement, arranged
from .precision import autocast
from .tokens import ANCHOR, Tokenizer

KEPT_NUMBERS = 20  # times the width, for each token and layer; attention's weights come on top
ONE_AT_A_TIME = threading.Lock()  # the replaced embedding is the module's, which threads share


@dataclass(frozen=True)
class WholeText:
    """What a family tells about a text tower that runs whole."""

    run: Callable[[Tensor], Tensor]  # token ids (N, length) -> features (N, d), not scaled to length 1
    embedding: nn.Module  # the module whose output the run begins with
    tokenizer: Tokenizer
    length: int  # tokens of a whole prompt
    keep_padding: bool  # whether padding is attended or moves what is read; else prompts end with the longest
    layers: int
    heads: int


class WholeTower:
    """Class text features as a function of the context: differentiable, for any number of episodes at once."""

    def __init__(self, text: WholeText, class_tokens: Sequence[Sequence[int]], precision: str = "fp32") -> None:
        self.text, self.class_tokens, self.precision = text, class_tokens, precision
        self.device = text.embedding.weight.device
        self.longest = max(map(len, class_tokens))
        self.tokens = len(class_tokens) * (text.length if text.keep_padding else self.longest)
        length = self.tokens // len(class_tokens)
        numbers = KEPT_NUMBERS * text.embedding.weight.shape[1] + 2 * text.heads * length  # a token and layer
        self.kept_bytes = 4 * self.tokens * text.layers * numbers
        self.placement: Placement | None = None  # of names that do not stand at the end

    def __call__(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Unit text features (B, K, d) for contexts (B, n_ctx, width), or class-specific ones (B, K, n_ctx, width);
        `noise` (B, length, width) is added to the tokens of all classes, place by place."""
        batch, classes = len(context), len(self.class_tokens)
        if context.dim() == 3:
            context = context[:, None].expand(-1, classes, -1, -1)  # (B, K, n_ctx, width)
        ids = self.prompt_ids(context.shape[2])  # (K, length)
        first, after = len(self.text.tokenizer.start), len(self.text.tokenizer.start) + context.shape[2]
        with torch.no_grad():
            words = self.text.embedding(ids).float().expand(batch, -1, -1, -1)  # (B, K, length, width)
        embedded = torch.cat([words[:, :, :first], context, words[:, :, after:]], dim=2)  # (B, K, length, width)
        if self.placement:
            order = self.placement.order(first, context.shape[2], ids.shape[1])
            ids, embedded = arranged(ids, order), arranged(embedded, order)
        if noise is not None:
            embedded = embedded + noise[:, None, : embedded.shape[2]]
        embedded = embedded.flatten(0, 1)
        # The plain formula of attention, unlike the fused ones, can be differentiated for many gradients at once.
        with ONE_AT_A_TIME, sdpa_kernel(SDPBackend.MATH), autocast(self.precision, self.device):
            with replaced_output(self.text.embedding, embedded):
                features = self.text.run(ids.repeat(batch, 1))
            return unit(features).unflatten(0, (batch, classes))

    def prompt_ids(self, n_ctx: int) -> Tensor:
        """Token ids (K, length). An ordinary word stands where the context goes, so that no rule of the library about
        padding or the end of a text is met there."""
        tokenizer = self.text.tokenizer
        beginning = [*tokenizer.start, *[tokenizer.encode(ANCHOR)[0]] * n_ctx]
        length = self.text.length if self.text.keep_padding else len(beginning) + self.longest
        rows = [[*beginning, *own] for own in self.class_tokens]
        return torch.tensor([[*row, *[tokenizer.pad] * (length - len(row))] for row in rows], device=self.device)


@contextmanager
def replaced_output(module: nn.Module, value: Tensor) -> Iterator[None]:
    """While this lasts, whatever the module is given, it returns `value`."""
    handle = module.register_forward_hook(lambda *_: value)
    try:
        yield
    finally:
        handle.remove()
