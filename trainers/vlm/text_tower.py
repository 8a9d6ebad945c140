"""A causal text transformer for prompts that share their beginning.

Each prompt is `[start][context][class name][.][end]`. The transformer is causal and is read at the end token, so
 * tokens after the end never matter: no padding to 77;
 * start and context are the same for all classes: they run once, and classes attend to their keys and values;
 * in the last layer only the end tokens' outputs matter.
All tokens of all classes lie in one packed sequence, so that every linear layer is a single matrix product; classes
of equal length are neighbours, so that attention needs no padding either. The weights are the model's own.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional.objectives import unit
from .class_token_position import Placement, arranged
from .precision import autocast
from .text_weights import Layer, TextWeights

KEPT_NUMBERS = 22  # for the backward pass of a token: a layer and a unit of width
SLOPE = 1.702  # OpenAI's activation, QuickGELU, is x · sigmoid(1.702 x)
QUICK_GELU, GELU, TANH_GELU = "quick_gelu", "gelu", "gelu_tanh"
ACTIVATIONS = {QUICK_GELU: None, GELU: F.gelu, TANH_GELU: partial(F.gelu, approximate="tanh")}


@dataclass(frozen=True)
class Block:
    """Prompts of equal length, neighbours in the packed sequence; each sees itself and what all share."""

    count: int
    length: int

    @property
    def tokens(self) -> int:
        return self.count * self.length


@dataclass(frozen=True)
class Layout:
    """How a packed sequence is made up: `shared` tokens that all prompts begin with, then the blocks."""

    shared: int
    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, lengths: Sequence[int], shared: int) -> Layout:
        """The layout of prompts whose own lengths are given in ascending order."""
        return cls(shared, tuple(Block(len(list(run)), length) for length, run in groupby(lengths)))

    def split(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, T, ...) -> the shared tokens (B, shared, ...) and each block (B, count, length, ...)."""
        shared, *blocks = x.split([self.shared, *(block.tokens for block in self.blocks)], dim=1)
        return shared, [y.unflatten(1, (b.count, b.length)) for y, b in zip(blocks, self.blocks, strict=True)]


class TextTower:
    """Class text features as a function of the context: differentiable, for any number of episodes at once."""

    def __init__(self, weights: TextWeights, class_tokens: Sequence[Sequence[int]], precision: str = "fp32") -> None:
        self.weights = weights
        self.precision = precision
        self.device = weights.positions.device
        self.tokens = sum(map(len, class_tokens))
        self.placement: Placement | None = None  # of names that do not stand at the end
        order = sorted(range(len(class_tokens)), key=lambda k: len(class_tokens[k]))
        self.order = torch.tensor(order, device=self.device)
        self.restore = self.order.argsort()  # from packed order back to class order
        self.lengths = [len(class_tokens[k]) for k in order]
        self.offsets = torch.cat([torch.arange(length) for length in self.lengths]).to(self.device)  # within own tokens
        self.kept_bytes = 4 * KEPT_NUMBERS * self.tokens * weights.positions.shape[1] * len(weights.layers)
        with torch.no_grad():
            start = torch.tensor(weights.start, dtype=torch.long, device=self.device)
            self.start = weights.embedding(start).float()  # (1, width)
            own = torch.tensor([token for k in order for token in class_tokens[k]], device=self.device)
            self.own = weights.embedding(own).float()  # (tokens of all classes, width)

    def __call__(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Unit text features (B, K, d) for contexts (B, n_ctx, width), or class-specific ones (B, K, n_ctx, width);
        `noise` (B, length, width) is added to the tokens of all classes, place by place."""
        weights = self.weights
        positions = weights.positions[None] if noise is None else weights.positions + noise[:, : len(weights.positions)]
        projection, bias = weights.projection
        with autocast(self.precision, self.device):
            if self.placement and context.dim() == 3:
                context = context[:, None].expand(-1, len(self.lengths), -1, -1)  # shared, but not the beginning
            pack = self.pack_whole if context.dim() == 4 else self.pack_shared
            x, layout = pack(context, positions)
            for layer in weights.layers[:-1]:
                x = x + attention(weights, layer, x, layout)
                x = x + mlp(weights, layer, x)
            last = weights.layers[-1]
            at_end = torch.cat([block[:, :, -1] for block in layout.split(x)[1]], dim=1)  # (B, K, width)
            at_end = at_end + attention(weights, last, x, layout, at_end=True)
            at_end = at_end + mlp(weights, last, at_end)
            text = F.layer_norm(at_end, at_end.shape[-1:], *weights.final_norm, weights.eps) @ projection
            return unit(text if bias is None else text + bias)[:, self.restore]

    def pack_shared(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Layout]:
        """`[start][context]` once, then the own tokens of all classes."""
        batch, n_ctx, _ = context.shape
        first, shared = len(self.start), len(self.start) + n_ctx
        x = torch.cat([
            (self.start + positions[:, :first]).expand(batch, -1, -1),
            context + positions[:, first:shared],
            (self.own + positions[:, shared + self.offsets]).expand(batch, -1, -1),
        ], dim=1)
        return x, Layout.of(self.lengths, shared)

    def pack_whole(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Layout]:
        """Every class has a beginning of its own: `[start][context][own tokens]` of one class after the other."""
        batch, classes, _, width = context.shape
        start = self.start.expand(batch, classes, -1, width)
        beginnings = torch.cat([start, context[:, self.order]], dim=2)  # (B, K, 1 + n_ctx, width)
        whole_lengths = [beginnings.shape[2] + length for length in self.lengths]
        own_layout = Layout.of(self.lengths, shared=0)
        _, own = own_layout.split(self.own[None])
        prompts, done = [], 0
        for beginning, tokens in zip(beginnings.split([b.count for b in own_layout.blocks], dim=1), own, strict=True):
            whole = torch.cat([beginning, tokens.expand(batch, -1, -1, -1)], dim=2)
            if self.placement:
                placement = self.placement.of_classes(self.order[done : done + whole.shape[1]].tolist())
                whole = arranged(whole, placement.order(len(self.start), context.shape[2], whole.shape[2]))
            done += whole.shape[1]
            prompts.append((whole + positions[:, None, : whole.shape[2]]).flatten(1, 2))
        return torch.cat(prompts, dim=1), Layout.of(whole_lengths, shared=0)


def mlp(weights: TextWeights, layer: Layer, x: Tensor) -> Tensor:
    """The layer's MLP. QuickGELU, x · sigmoid(c x), is silu(c x) / c: both factors go into the matrix products, which
    spares passes over the largest tensor of the tower."""
    x = F.layer_norm(x, x.shape[-1:], *layer.norm_2, weights.eps)
    activation = ACTIVATIONS[weights.activation]
    if activation:
        return F.linear(activation(F.linear(x, *layer.widen)), *layer.narrow)
    (widen, widen_bias), (narrow, narrow_bias) = layer.widen, layer.narrow
    hidden = torch.addmm(widen_bias, x.flatten(0, 1), widen.T, beta=SLOPE, alpha=SLOPE)
    return torch.addmm(narrow_bias, F.silu(hidden), narrow.T, alpha=1 / SLOPE).unflatten(0, x.shape[:2])


def attention(weights: TextWeights, layer: Layer, x: Tensor, layout: Layout, at_end: bool = False) -> Tensor:
    """Causal self-attention within each prompt of the packed sequence, at all tokens or only at the prompts' ends."""
    x = F.layer_norm(x, x.shape[-1:], *layer.norm_1, weights.eps)
    qkv = F.linear(x, *layer.qkv).unflatten(-1, (3, weights.heads, -1))
    shared, blocks = layout.split(qkv)
    q, shared_k, shared_v = shared.permute(2, 0, 3, 1, 4)  # (B, heads, shared, d_head) each
    outputs = []
    if not at_end and layout.shared:
        outputs.append(attend(q[:, :, None], shared_k[:, :, None], shared_v[:, :, None]))
    for block in blocks:
        q, k, v = block.permute(3, 0, 4, 1, 2, 5)  # (B, heads, count, length, d_head) each
        outputs.append(attend(q[..., -1:, :] if at_end else q, k, v, shared_k, shared_v))
    return F.linear(torch.cat(outputs, dim=2).transpose(1, 2).flatten(2), *layer.out)


def attend(q: Tensor, k: Tensor, v: Tensor, shared_k: Tensor | None = None, shared_v: Tensor | None = None) -> Tensor:
    """Attention of each prompt's last queries to the shared tokens and, causally, to its own.

    q (B, heads, count, queries, d), k and v (B, heads, count, length, d), shared (B, heads, shared, d);
    returns (B, heads, count · queries, d).
    """
    count, queries, length = q.shape[2], q.shape[3], k.shape[3]
    q = q * q.shape[-1] ** -0.5
    scores = q @ k.mT
    if queries > 1:
        future = torch.ones(queries, length, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if shared_k is None:
        return (scores.softmax(-1).to(v.dtype) @ v).flatten(2, 3)
    shared_scores = (q.flatten(2, 3) @ shared_k.mT).unflatten(2, (count, queries))
    weights = torch.cat([shared_scores, scores], dim=-1).softmax(-1).to(v.dtype)
    shared_weights, own_weights = weights.split([shared_k.shape[2], length], dim=-1)
    return (own_weights @ v).flatten(2, 3) + shared_weights.flatten(2, 3) @ shared_v
