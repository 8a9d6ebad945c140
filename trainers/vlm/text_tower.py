"""A causal text transformer for prompts that share their beginning.

Each prompt is `[start][context][class name][.][end]`. The transformer is causal and is read at the end token, so
 * tokens after the end have no effect: no padding to 77;
 * start and context are the same for all classes: they run once, and classes attend to their keys and values;
 * in the last layer only the outputs at the end tokens are computed.
The tokens of all classes form one packed sequence, so that every linear layer is a single matrix product. Classes of
equal length are neighbours, so that attention needs no padding either.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..functional.objectives import unit
from .numerics import autocast
from .tokenizer import ClassTokenPosition, reorder_tokens

SAVED_NUMBERS = 22  # that autograd saves per token and layer, in units of the width
SLOPE = 1.702  # OpenAI's activation, QuickGELU, is x · sigmoid(1.702 x)
QUICK_GELU, GELU, TANH_GELU = "quick_gelu", "gelu", "gelu_tanh"

Affine = tuple[Tensor, Tensor | None]  # weight (out, in), or (width,) of a norm, and bias


@dataclass(frozen=True)
class Layer:
    """A pre-norm transformer layer."""

    norm_1: Affine
    qkv: Affine  # (3 · width, width): queries, keys and values in one matrix
    out: Affine
    norm_2: Affine
    fc1: Affine
    fc2: Affine


@dataclass(frozen=True)
class TextWeights:
    """The tensors of a causal text transformer that is read at the last token of a prompt, whichever library built it.
    A transformer with other layers, another mask or another readout runs in `generic_tower` instead."""

    embedding: nn.Embedding
    positions: Tensor  # (context_length, width)
    layers: tuple[Layer, ...]
    heads: int
    activation: str
    eps: float  # of all norms
    final_norm: Affine
    projection: Affine  # (width, d), and a bias (d,) or None
    start: tuple[int, ...]


def affine(module: Any) -> Affine:
    return module.weight, module.bias


def openai_text(text: Any, activation: str, start: tuple[int, ...]) -> TextWeights:
    """The tensors of a text tower under OpenAI's names, which open_clip has kept."""
    layers, projection = [], text.text_projection
    for block in text.transformer.resblocks:
        attention = block.attn
        layers.append(Layer(
            norm_1=affine(block.ln_1), qkv=(attention.in_proj_weight, attention.in_proj_bias),
            out=affine(attention.out_proj), norm_2=affine(block.ln_2),
            fc1=affine(block.mlp.c_fc), fc2=affine(block.mlp.c_proj),
        ))
    return TextWeights(
        embedding=text.token_embedding, positions=text.positional_embedding, layers=tuple(layers),
        heads=attention.num_heads, activation=activation, eps=text.ln_final.eps, final_norm=affine(text.ln_final),
        projection=(projection.weight.T, projection.bias) if isinstance(projection, nn.Linear) else (projection, None),
        start=start,
    )


@dataclass(frozen=True)
class Layout:
    """A packed sequence: `shared` tokens that all prompts begin with, then blocks of prompts of equal length."""

    shared: int
    blocks: tuple[tuple[int, int], ...]  # (prompts, length) of each

    @classmethod
    def of(cls, lengths: Sequence[int], shared: int) -> Layout:
        """The layout of prompts whose own lengths are given in ascending order."""
        blocks = []
        for length, prompts in groupby(lengths):
            blocks.append((len(list(prompts)), length))
        return cls(shared, tuple(blocks))

    def split(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Takes a packed sequence apart.

        Args:
            x: (B, T, ...)

        Returns:
            The shared tokens (B, shared, ...), and each block (B, count, length, ...).
        """
        sizes = [count * length for count, length in self.blocks]
        shared, *parts = x.split([self.shared, *sizes], dim=1)
        blocks = []
        for part, (count, length) in zip(parts, self.blocks, strict=True):
            blocks.append(part.unflatten(1, (count, length)))
        return shared, blocks


class TextTower:
    """Class text features as a function of the context, for any number of episodes at once."""

    def __init__(
        self, weights: TextWeights, class_tokens: Sequence[Sequence[int]], precision: str = "fp32",
        position: ClassTokenPosition | None = None,
    ) -> None:
        self.weights = weights
        self.precision = precision
        self.position = position
        self.device = weights.positions.device
        self.tokens = sum(map(len, class_tokens))
        width = weights.positions.shape[1]
        self.saved_bytes = 4 * SAVED_NUMBERS * self.tokens * width * len(weights.layers)
        order = sorted(range(len(class_tokens)), key=lambda k: len(class_tokens[k]))
        self.order = torch.tensor(order, device=self.device)
        self.restore = self.order.argsort()  # from packed order back to class order
        self.lengths = [len(class_tokens[k]) for k in order]
        # Of each token within its class's own tokens.
        offsets = [torch.arange(length) for length in self.lengths]
        self.offsets = torch.cat(offsets).to(self.device)
        packed_tokens = [token for k in order for token in class_tokens[k]]
        with torch.no_grad():
            start = torch.tensor(weights.start, dtype=torch.long, device=self.device)
            self.start = weights.embedding(start).float()  # (1, width)
            own = torch.tensor(packed_tokens, device=self.device)
            self.own = weights.embedding(own).float()  # (tokens of all classes, width)

    def __call__(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Unit text features of B contexts.

        Args:
            context: (B, n_ctx, width), or class-specific (B, K, n_ctx, width).
            noise: (B, length, width), added to the tokens of all classes, by position.

        Returns:
            Features (B, K, d), differentiable in the context.
        """
        weights = self.weights
        positions = weights.positions[None]
        if noise is not None:
            positions = weights.positions + noise[:, : len(weights.positions)]
        with autocast(self.precision, self.device):
            if self.position and context.dim() == 3:
                # The prompts of the classes differ from the first context token on.
                context = context[:, None].expand(-1, len(self.lengths), -1, -1)
            if context.dim() == 4:
                x, layout = self.pack_separate(context, positions)
            else:
                x, layout = self.pack_shared(context, positions)
            *layers, last = weights.layers
            for layer in layers:
                x = x + attention(weights, layer, x, layout)
                x = x + mlp(weights, layer, x)
            _, blocks = layout.split(x)
            at_end = torch.cat([block[:, :, -1] for block in blocks], dim=1)  # (B, K, width)
            at_end = at_end + attention(weights, last, x, layout, at_end=True)
            at_end = at_end + mlp(weights, last, at_end)
            projection, bias = weights.projection
            at_end = F.layer_norm(at_end, at_end.shape[-1:], *weights.final_norm, weights.eps)
            text = at_end @ projection
            if bias is not None:
                text = text + bias
            return unit(text)[:, self.restore]

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

    def pack_separate(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Layout]:
        """`[start][context][own tokens]` class by class: for class-specific contexts and other positions of names."""
        batch, classes, n_ctx, width = context.shape
        start = self.start.expand(batch, classes, -1, width)
        beginnings = torch.cat([start, context[:, self.order]], dim=2)  # (B, K, 1 + n_ctx, width)
        own_layout = Layout.of(self.lengths, shared=0)
        _, own = own_layout.split(self.own[None])
        prompts, done = [], 0
        for (count, _), tokens in zip(own_layout.blocks, own, strict=True):
            block = slice(done, done + count)
            prompt = torch.cat([beginnings[:, block], tokens.expand(batch, -1, -1, -1)], dim=2)
            if self.position:
                position = self.position.of_classes(self.order[block].tolist())
                prompt = reorder_tokens(prompt, position.order(len(self.start), n_ctx, prompt.shape[2]))
            prompts.append((prompt + positions[:, None, : prompt.shape[2]]).flatten(1, 2))
            done += count
        return torch.cat(prompts, dim=1), Layout.of([beginnings.shape[2] + n for n in self.lengths], shared=0)


def mlp(weights: TextWeights, layer: Layer, x: Tensor) -> Tensor:
    """The layer's MLP. QuickGELU, x · sigmoid(c x), is silu(c x) / c: both factors go into the matrix products, which
    saves passes over the largest tensor of the tower."""
    x = F.layer_norm(x, x.shape[-1:], *layer.norm_2, weights.eps)
    (weight_1, bias_1), (weight_2, bias_2) = layer.fc1, layer.fc2
    if weights.activation != QUICK_GELU:
        kind = "tanh" if weights.activation == TANH_GELU else "none"
        return F.linear(F.gelu(F.linear(x, weight_1, bias_1), approximate=kind), weight_2, bias_2)
    assert bias_1 is not None and bias_2 is not None  # every library's transformers have both
    hidden = torch.addmm(bias_1, x.flatten(0, 1), weight_1.T, beta=SLOPE, alpha=SLOPE)
    return torch.addmm(bias_2, F.silu(hidden), weight_2.T, alpha=1 / SLOPE).unflatten(0, x.shape[:2])


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
    if shared_k is None or shared_v is None:
        return (scores.softmax(-1).to(v.dtype) @ v).flatten(2, 3)
    shared_scores = (q.flatten(2, 3) @ shared_k.mT).unflatten(2, (count, queries))
    weights = torch.cat([shared_scores, scores], dim=-1).softmax(-1).to(v.dtype)
    shared_weights, own_weights = weights.split([shared_k.shape[2], length], dim=-1)
    return (own_weights @ v).flatten(2, 3) + shared_weights.flatten(2, 3) @ shared_v
