"""What a causal text transformer is made of, whichever library built it: plain tensors, and four facts about them."""
from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

Affine = tuple[Tensor, Tensor | None]  # weight (out, in), or (width,) of a norm, and bias


@dataclass(frozen=True)
class Layer:
    """A pre-norm transformer layer."""

    norm_1: Affine
    qkv: Affine  # (3 · width, width): queries, keys and values in one matrix
    out: Affine
    norm_2: Affine
    widen: Affine
    narrow: Affine


@dataclass(frozen=True)
class TextWeights:
    """A causal text tower that is read at the last token of `end`.

    Where the layers attend otherwise, are read elsewhere or hold anything else, the tower is not of this kind and runs
    whole (see `whole_tower`).
    """

    embedding: nn.Module  # token ids -> (..., width)
    positions: Tensor  # (context_length, width)
    layers: tuple[Layer, ...]
    heads: int
    activation: str  # see `text_tower.ACTIVATIONS`
    eps: float  # of all norms
    final_norm: Affine
    projection: Affine  # (width, d), and a bias (d,) or None
    start: tuple[int, ...]


def affine(module: nn.Module) -> Affine:
    """Weight and bias of a linear layer or a norm."""
    return module.weight, module.bias


def openai_layer(block: nn.Module) -> Layer:
    """A layer under OpenAI's names, which open_clip has kept."""
    attention = block.attn
    return Layer(
        norm_1=affine(block.ln_1), qkv=(attention.in_proj_weight, attention.in_proj_bias),
        out=affine(attention.out_proj), norm_2=affine(block.ln_2),
        widen=affine(block.mlp.c_fc), narrow=affine(block.mlp.c_proj),
    )
