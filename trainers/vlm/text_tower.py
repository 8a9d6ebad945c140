"""Runs a causal text transformer on prompts that share their beginning.

Each prompt is `[start][context][class name][.][end]`. The transformer is causal and is read at the
end token, so

- tokens after the end have no effect: no padding to 77;
- start and context are the same for all classes: they run once, and classes attend to their keys
  and values;
- in the last layer only the outputs at the end tokens are computed.

The tokens of all classes form one packed sequence, so that every linear layer is a single matrix
product. Attention runs over blocks of prompts of one length. On a CPU each length is a block of its
own, without padding. A GPU waits for the host to launch its operations, so there are few blocks,
and the shorter prompts of a block are padded after their end.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..functional.objectives import unit
from .numerics import autocast, is_gpu
from .prompts import ClassTokenPosition, reorder_tokens

SAVED_NUMBERS = 22  # numbers that autograd saves per token and layer, in units of the width
SLOPE = 1.702  # OpenAI's activation, QuickGELU, is x · sigmoid(1.702 x)
QUICK_GELU = "quick_gelu"
GELU = "gelu"
TANH_GELU = "gelu_tanh"
# Blocks of prompts on a GPU. With ImageNet's names, three add 15 % of padding and two 39 %.
BLOCKS_ON_GPU = 3

Affine = tuple[Tensor, Tensor | None]  # weight (out, in), or (width,) of a norm, and bias


@dataclass(frozen=True)
class Layer:
    """A pre-norm transformer layer: x + attention(norm_1(x)), then x + mlp(norm_2(x))."""

    norm_1: Affine
    qkv: Affine  # (3 · width, width): queries, keys and values in one matrix
    out: Affine  # (width, width), after the attention
    norm_2: Affine
    fc1: Affine  # (4 · width, width) as a rule
    fc2: Affine  # back to the width


@dataclass(frozen=True)
class TextWeights:
    """The tensors of a causal text transformer that is read at the last token of a prompt.

    It does not matter which library built it. A transformer with other layers, another mask or
    another readout runs in `generic_tower` instead.
    """

    embedding: nn.Embedding
    positions: Tensor  # (context_length, width)
    layers: tuple[Layer, ...]
    heads: int
    activation: str
    eps: float  # ε that all norms add to the variance
    final_norm: Affine
    projection: Affine  # (width, d), and a bias (d,) or None
    start: tuple[int, ...]  # control tokens at the start of a prompt


def affine(module: Any) -> Affine:
    """Weight and bias of a linear layer or norm."""
    return module.weight, module.bias


def openai_text(text: Any, activation: str, start: tuple[int, ...]) -> TextWeights:
    """Returns the tensors of a text tower with OpenAI's names, which open_clip has kept.

    Args:
        text: OpenAI's CLIP, or a text tower of open_clip.
        activation: QUICK_GELU, GELU or TANH_GELU.
        start: Control tokens at the start of a prompt.
    """
    layers = []
    for block in text.transformer.resblocks:
        attention = block.attn
        layers.append(Layer(
            norm_1=affine(block.ln_1),
            qkv=(attention.in_proj_weight, attention.in_proj_bias),
            out=affine(attention.out_proj),
            norm_2=affine(block.ln_2),
            fc1=affine(block.mlp.c_fc),
            fc2=affine(block.mlp.c_proj),
        ))
    projection: Affine = (text.text_projection, None)
    if isinstance(text.text_projection, nn.Linear):
        projection = (text.text_projection.weight.T, text.text_projection.bias)
    return TextWeights(
        embedding=text.token_embedding,
        positions=text.positional_embedding,
        layers=tuple(layers),
        heads=attention.num_heads,
        activation=activation,
        eps=text.ln_final.eps,
        final_norm=affine(text.ln_final),
        projection=projection,
        start=start,
    )


@dataclass(frozen=True)
class Block:
    """Neighbouring prompts that are laid out with the same number of own tokens.

    "Own" tokens are those that follow what all prompts share.
    """

    prompts: int
    length: int  # own tokens of each prompt, padding included
    future: Tensor  # (length, length), True where the key follows the query
    padding: Tensor | None  # (prompts, 1, length), True after a prompt's end; None without padding
    visible: Tensor  # (length, shared + length), True where a query attends to a key
    visible_at_end: Tensor  # (prompts, 1, 1, shared + length), the same for the queries at the ends


@dataclass(frozen=True)
class Layout:
    """A packed sequence: `shared` tokens that all prompts begin with, then blocks of prompts."""

    shared: int
    beginning: Block | None  # the shared tokens, as one prompt
    blocks: tuple[Block, ...]
    ends: Tensor  # positions of the prompts' last tokens in the sequence, (K,)

    @classmethod
    def of(
        cls, lengths: Sequence[int], padded: Sequence[int], shared: int, device: torch.device,
    ) -> Layout:
        """Lays out prompts in ascending order of their lengths.

        Args:
            lengths: Number of own tokens of each prompt.
            padded: Number of own tokens of each prompt, padding included.
            shared: Number of tokens that all prompts begin with.
            device: The device of the masks.
        """
        blocks = []
        ends = []
        first_token = shared  # position of the next prompt's first token in the sequence
        first = 0  # number of the next block's first prompt
        while first < len(lengths):
            length = padded[first]
            prompts = padded.count(length)  # ascending, so all of this length are neighbours
            real = lengths[first : first + prompts]
            blocks.append(make_block(real, length, shared, device))
            for own_tokens in real:
                ends.append(first_token + own_tokens - 1)
                first_token += length
            first += prompts
        beginning = None
        if shared:
            beginning = make_block([shared], shared, 0, device)
        return cls(shared, beginning, tuple(blocks), torch.tensor(ends, device=device))

    def split(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Takes a packed sequence apart.

        Args:
            x: The packed sequence, (B, T, ...).

        Returns:
            The shared tokens (B, shared, ...), and each block (B, prompts, length, ...).
        """
        sizes = [block.prompts * block.length for block in self.blocks]
        shared, *parts = x.split([self.shared, *sizes], dim=1)
        separate = []
        for part, block in zip(parts, self.blocks, strict=True):
            separate.append(part.unflatten(1, (block.prompts, block.length)))
        return shared, separate


def make_block(lengths: Sequence[int], length: int, shared: int, device: torch.device) -> Block:
    """Makes a block of prompts, with the masks of their attention.

    Args:
        lengths: Number of own tokens of each prompt.
        length: Number of own tokens of every prompt, padding included.
        shared: Number of tokens that all prompts begin with.
        device: The device of the masks.
    """
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    after_end = torch.arange(length) >= torch.tensor(lengths)[:, None]  # (prompts, length)
    visible = torch.ones(length, shared + length, dtype=torch.bool)
    visible[:, shared:] = ~future
    visible_at_end = torch.ones(len(lengths), 1, 1, shared + length, dtype=torch.bool)
    visible_at_end[:, 0, 0, shared:] = ~after_end
    padding = None
    if min(lengths) < length:
        padding = after_end[:, None].to(device)
    return Block(
        prompts=len(lengths),
        length=length,
        future=future.to(device),
        padding=padding,
        visible=visible.to(device),
        visible_at_end=visible_at_end.to(device),
    )


def pad_lengths(lengths: Sequence[int], most_blocks: int) -> list[int]:
    """Divides prompts into at most `most_blocks` blocks, with as little padding as possible.

    Args:
        lengths: Lengths of the prompts in tokens, ascending.
        most_blocks: Largest number of blocks, and so of different lengths in the result.

    Returns:
        The length of each prompt's block.
    """
    distinct = sorted(set(lengths))
    counts = [lengths.count(length) for length in distinct]
    # Dynamic programming, because trying all ways to divide many lengths would take too long. The
    # fewest tokens of the first n distinct lengths in at most b blocks, and where the last of
    # these blocks begins. With one block more, the last block may begin at any length.
    fewest: list[float] = [0, *[torch.inf] * len(distinct)]
    begins: list[list[int]] = []
    for _ in range(min(most_blocks, len(distinct))):
        tokens = [0.0]
        begin = [0]
        for stop in range(1, len(distinct) + 1):
            candidates = []
            for start in range(stop):
                in_block = sum(counts[start:stop]) * distinct[stop - 1]
                candidates.append(fewest[start] + in_block)
            tokens.append(min(candidates))
            begin.append(candidates.index(min(candidates)))
        fewest = tokens
        begins.append(begin)

    block_length = {}
    stop = len(distinct)
    for begin in reversed(begins):
        for length in distinct[begin[stop] : stop]:
            block_length[length] = distinct[stop - 1]
        stop = begin[stop]
    return [block_length[length] for length in lengths]


class TextTower:
    """Class text features as a function of the context, for any number of episodes at once."""

    def __init__(
        self, weights: TextWeights, class_tokens: Sequence[Sequence[int]], precision: str = "fp32",
        position: ClassTokenPosition | None = None,
    ) -> None:
        """
        Args:
            weights: The transformer's tensors.
            class_tokens: Tokens after the context, `end` included, for each class.
            precision: Precision of the tower: fp32, fp16 or bf16.
            position: Position of the class names; None = after the context.
        """
        self.weights = weights
        self.precision = precision
        self.position = position
        self.device = weights.positions.device
        order = sorted(range(len(class_tokens)), key=lambda k: len(class_tokens[k]))
        self.order = torch.tensor(order, device=self.device)
        self.restore = self.order.argsort()  # from packed order back to class order
        self.classes = len(class_tokens)
        self.lengths = [len(class_tokens[k]) for k in order]
        self.padded = self.lengths
        if is_gpu(self.device):
            self.padded = pad_lengths(self.lengths, BLOCKS_ON_GPU)
        self.tokens = sum(self.padded)  # tokens that run per context, padding included
        self.layers = len(weights.layers)
        width = weights.positions.shape[1]
        self.saved_bytes = 4 * SAVED_NUMBERS * self.tokens * width * self.layers  # 4 for fp32
        # Position of each token within its class's own tokens.
        offsets = [torch.arange(length) for length in self.padded]
        self.offsets = torch.cat(offsets).to(self.device)
        packed_tokens: list[int] = []
        for k, length in zip(order, self.padded, strict=True):
            tokens = class_tokens[k]
            # Any token will do: the transformer is causal, so nothing sees what follows the end.
            padding = [tokens[-1]] * (length - len(tokens))
            packed_tokens += [*tokens, *padding]
        with torch.no_grad():
            start = torch.tensor(weights.start, dtype=torch.long, device=self.device)
            self.start = weights.embedding(start).float()  # (tokens at the start, width)
            packed = torch.tensor(packed_tokens, device=self.device)
            self.embeddings = weights.embedding(packed).float()  # (tokens of all classes, width)
        self.layouts: dict[tuple[int, int], Layout] = {}

    def __call__(self, context: Tensor, noise: Tensor | None = None) -> Tensor:
        """Computes unit text features for B contexts.

        Args:
            context: Contexts (B, n_ctx, width), or class-specific ones (B, K, n_ctx, width).
            noise: Noise (B, length, width), added to the tokens of all classes by position; None =
                none.

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
            # The output is read at the ends alone, so the last layer computes only those.
            at_end = x.index_select(1, layout.ends)  # (B, K, width)
            at_end = at_end + attention(weights, last, x, layout, at_end=True)
            at_end = at_end + mlp(weights, last, at_end)
            projection, bias = weights.projection  # (width, d), (d,)
            at_end = F.layer_norm(at_end, at_end.shape[-1:], *weights.final_norm, weights.eps)
            text = at_end @ projection
            if bias is not None:
                text = text + bias
            return unit(text)[:, self.restore]

    def layout(self, shared: int, separate: int) -> Layout:
        """Returns the layout of all prompts, which is made once.

        Args:
            shared: Number of tokens that all prompts begin with.
            separate: Number of tokens of each prompt, not shared, before those of its class.
        """
        if (shared, separate) not in self.layouts:
            lengths = [separate + length for length in self.lengths]
            padded = [separate + length for length in self.padded]
            self.layouts[shared, separate] = Layout.of(lengths, padded, shared, self.device)
        return self.layouts[shared, separate]

    def pack_shared(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Layout]:
        """Packs `[start][context]` once, then the own tokens of all classes.

        Args:
            context: Contexts, (B, n_ctx, width).
            positions: Embeddings of positions with noise, (1 or B, context_length, width).

        Returns:
            The packed sequence (B, T, width), and its layout.
        """
        batch, n_ctx, _ = context.shape
        first = len(self.start)
        shared = first + n_ctx
        x = torch.cat([
            (self.start + positions[:, :first]).expand(batch, -1, -1),
            context + positions[:, first:shared],
            (self.embeddings + positions[:, shared + self.offsets]).expand(batch, -1, -1),
        ], dim=1)
        return x, self.layout(shared, separate=0)

    def pack_separate(self, context: Tensor, positions: Tensor) -> tuple[Tensor, Layout]:
        """Packs `[start][context][own tokens]` class by class.

        This is for class-specific contexts and for other positions of names.

        Args:
            context: Contexts, (B, K, n_ctx, width).
            positions: Embeddings of positions with noise, (1 or B, context_length, width).

        Returns:
            The packed sequence (B, T, width), and its layout.
        """
        batch, classes, n_ctx, width = context.shape
        start = self.start.expand(batch, classes, -1, width)
        beginnings = torch.cat([start, context[:, self.order]], dim=2)  # (B, K, 1 + n_ctx, width)
        before = beginnings.shape[2]
        layout = self.layout(shared=0, separate=before)
        prompts = []
        first_class = 0
        first_token = 0
        for block in layout.blocks:
            own_length = block.length - before
            classes_of_block = slice(first_class, first_class + block.prompts)
            tokens_of_block = slice(first_token, first_token + block.prompts * own_length)
            endings = self.embeddings[tokens_of_block].unflatten(0, (block.prompts, own_length))
            endings = endings.expand(batch, -1, -1, -1)
            prompt = torch.cat([beginnings[:, classes_of_block], endings], dim=2)
            if self.position:
                position = self.position.of_classes(self.order[classes_of_block].tolist())
                order = position.order(len(self.start), n_ctx, block.length)
                prompt = reorder_tokens(prompt, order)
            prompts.append((prompt + positions[:, None, : block.length]).flatten(1, 2))
            first_class += block.prompts
            first_token += block.prompts * own_length
        return torch.cat(prompts, dim=1), layout


def mlp(weights: TextWeights, layer: Layer, x: Tensor) -> Tensor:
    """Computes a layer's MLP.

    QuickGELU, x · sigmoid(c x), is silu(c x) / c: both factors go into the matrix products, which
    saves passes over the largest tensor of the tower.

    Args:
        weights: The transformer, for its activation and the ε of its norms.
        layer: The layer.
        x: The packed sequence (B, T, width), or its tokens at the ends (B, K, width).
    """
    x = F.layer_norm(x, x.shape[-1:], *layer.norm_2, weights.eps)
    weight_1, bias_1 = layer.fc1
    weight_2, bias_2 = layer.fc2
    if weights.activation != QUICK_GELU:
        kind = "none"
        if weights.activation == TANH_GELU:
            kind = "tanh"
        hidden = F.gelu(F.linear(x, weight_1, bias_1), approximate=kind)
        return F.linear(hidden, weight_2, bias_2)
    assert bias_1 is not None and bias_2 is not None  # every library's transformers have both
    # hidden = c · (x W₁ᵀ + b₁), then silu(hidden) W₂ᵀ / c + b₂.
    hidden = torch.addmm(bias_1, x.flatten(0, 1), weight_1.T, beta=SLOPE, alpha=SLOPE)
    out = torch.addmm(bias_2, F.silu(hidden), weight_2.T, alpha=1 / SLOPE)
    return out.unflatten(0, x.shape[:2])


def attention(
    weights: TextWeights, layer: Layer, x: Tensor, layout: Layout, at_end: bool = False,
) -> Tensor:
    """Computes causal self-attention within each prompt of the packed sequence.

    Args:
        weights: The transformer, for its heads and the ε of its norms.
        layer: The layer.
        x: The packed sequence (B, T, width).
        layout: The positions of the prompts in the sequence.
        at_end: Whether only the outputs at the prompts' ends are computed.

    Returns:
        The outputs (B, T, width), or (B, K, width) at the ends.
    """
    x = F.layer_norm(x, x.shape[-1:], *layer.norm_1, weights.eps)
    qkv = F.linear(x, *layer.qkv).unflatten(-1, (3, weights.heads, -1))
    shared, blocks = layout.split(qkv)
    q, shared_k, shared_v = shared.permute(2, 0, 3, 1, 4)  # (B, heads, shared, d_head) each
    outputs = []
    if at_end:
        sizes = [block.prompts for block in layout.blocks]
        end_queries = qkv[:, :, 0].index_select(1, layout.ends).split(sizes, dim=1)
    elif layout.beginning is not None:
        # All prompts begin with the same tokens: one prompt, to which nothing is shared.
        outputs.append(attend(
            layout.beginning, q[:, :, None], shared_k[:, :, None], shared_v[:, :, None]))
    for number, block in enumerate(layout.blocks):
        # (B, heads, prompts, length, d_head) each
        q, k, v = blocks[number].permute(3, 0, 4, 1, 2, 5)
        if at_end:
            q = end_queries[number].transpose(1, 2)[..., None, :]  # (B, heads, prompts, 1, d_head)
        outputs.append(attend(block, q, k, v, (shared_k, shared_v), at_end))
    return F.linear(torch.cat(outputs, dim=2).transpose(1, 2).flatten(2), *layer.out)


def attend(
    block: Block, q: Tensor, k: Tensor, v: Tensor, shared: tuple[Tensor, Tensor] | None = None,
    at_end: bool = False,
) -> Tensor:
    """Computes attention of each prompt's queries to the shared tokens and, causally, to its own.

    Args:
        block: The prompts.
        q: Queries (B, heads, prompts, length, d), or those of the ends (B, heads, prompts, 1, d).
        k: Keys of the prompts' own tokens, (B, heads, prompts, length, d).
        v: Values of the prompts' own tokens, of the same shape.
        shared: Keys and values of the shared tokens, (B, heads, shared, d) each; None = there are
            none.
        at_end: Whether the queries are those of the ends.

    Returns:
        The outputs, (B, heads, prompts · queries, d).
    """
    # Fused attention saves a GPU memory and launches. It is used where no gradient is needed: it
    # cannot be differentiated for many gradients at once.
    if is_gpu(q.device) and not torch.is_grad_enabled():
        return attend_fused(block, q, k, v, shared, at_end)
    prompts = q.shape[2]
    queries = q.shape[3]
    length = k.shape[3]
    q = q * q.shape[-1] ** -0.5
    scores = q @ k.mT
    # The last token of a prompt may see all others, but not the padding behind it.
    hidden = block.padding if at_end else block.future
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if shared is None:
        return (scores.softmax(-1).to(v.dtype) @ v).flatten(2, 3)
    shared_k, shared_v = shared
    # All prompts have the same shared keys and values, so these are not copied for each prompt: the
    # scores are computed apart, then one softmax runs over both.
    shared_scores = (q.flatten(2, 3) @ shared_k.mT).unflatten(2, (prompts, queries))
    weights = torch.cat([shared_scores, scores], dim=-1).softmax(-1).to(v.dtype)
    shared_weights, own_weights = weights.split([shared_k.shape[2], length], dim=-1)
    return (own_weights @ v).flatten(2, 3) + shared_weights.flatten(2, 3) @ shared_v


def attend_fused(
    block: Block, q: Tensor, k: Tensor, v: Tensor, shared: tuple[Tensor, Tensor] | None,
    at_end: bool,
) -> Tensor:
    """Computes the same as `attend` by torch's fused attention.

    Each prompt gets a copy of the shared keys and values. The fused kernels take four dimensions,
    so episodes and prompts become one.

    Args:
        block: The prompts.
        q: Queries; shapes of all arguments are those of `attend`.
        k: Keys of the prompts' own tokens.
        v: Values of the prompts' own tokens.
        shared: Keys and values of the shared tokens; None = there are none.
        at_end: Whether the queries are those of the ends.
    """
    batch = q.shape[0]
    prompts = q.shape[2]
    q = q.transpose(1, 2).flatten(0, 1)  # (B · prompts, heads, queries, d)
    k = k.transpose(1, 2)
    v = v.transpose(1, 2)
    if shared is not None:
        shared_k, shared_v = shared
        k = torch.cat([shared_k[:, None].expand(-1, prompts, -1, -1, -1), k], dim=3)
        v = torch.cat([shared_v[:, None].expand(-1, prompts, -1, -1, -1), v], dim=3)
    mask = block.visible
    if at_end:
        mask = block.visible_at_end.repeat(batch, 1, 1, 1)
    out = F.scaled_dot_product_attention(q, k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask)
    return out.unflatten(0, (batch, prompts)).transpose(1, 2).flatten(2, 3)
