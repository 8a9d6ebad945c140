"""Models of open_clip: LAION, DataComp, MetaCLIP, DFN, EVA, SigLIP, CoCa, BiomedCLIP and others."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...datasets.utils.errors import ConfigError
from ...datasets.views.pixels import Pixels
from .backbone import Backbone
from .generic_tower import GenericText
from .open_clip_source import explained, find_source, library, local_file, refuse_code, weights_hash
from .prompts import Tokenizer
from .text_tower import GELU, QUICK_GELU, TANH_GELU, TextWeights, affine, openai_layer

__all__ = ["OpenClipBackbone", "load", "weights_hash"]


class OpenClipBackbone(Backbone):
    """Image features by the library's own module. Text features by the packed tower where the library's is causal and
    made of plain layers, which its module shows; otherwise by the library's module."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        self.name, self.module = name, model
        self.tokenizer = our_tokenizer(tokenizer)
        self.context_length = tokenizer.context_length
        text = self.text_module = getattr(model, "text", model)  # `CLIP` is its own text tower
        self.embedding = text.transformer.get_input_embeddings() if is_hugging_face(text) else text.token_embedding
        self.pixels = pixels_of(model.visual.preprocess_cfg)
        positions = getattr(model.visual, "positional_embedding", None)
        # The hidden layer of an MLP, or convolutions at half the size.
        self.activations = 16 * self.pixels.size**2 if positions is None else 4 * positions.numel()
        self.packed = is_plain(text, self.tokenizer, tokenizer)
        self.features = text.output_dim if hasattr(text, "output_dim") else model.text_projection.shape[-1]

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        return self.module.encode_image(pixels)

    @cached_property
    def text(self) -> TextWeights | GenericText:  # type: ignore[override]
        """Bidirectional towers and CoCa's attend to the padding or are read after it; BERT's mask it."""
        text = self.text_module
        if self.packed:
            return text_weights(text, self.tokenizer)
        masked = is_hugging_face(text) and self.tokenizer.pad == text.config.pad_token_id
        if is_hugging_face(text):
            layers, heads = text.transformer.config.num_hidden_layers, text.transformer.config.num_attention_heads
        else:
            layers, heads = len(text.transformer.resblocks), text.transformer.resblocks[0].attn.num_heads
        return GenericText(
            self.module.encode_text, self.embedding, self.tokenizer, self.context_length, keep_padding=not masked,
            layers=layers, heads=heads,
        )


def is_hugging_face(text: Any) -> bool:
    """Whether a text tower is one of transformers' models inside open_clip."""
    return hasattr(text.transformer, "get_input_embeddings")


def is_plain(text: Any, ours: Tokenizer, tokenizer: Any) -> bool:
    """Whether the packed tower computes the same: causal layers of OpenAI's kind, read at the one end token."""
    if is_hugging_face(text) or text.attn_mask is None or getattr(text, "cls_emb", None) is not None:
        return False
    pool = getattr(text, "pool_type", None) or text.text_pool_type
    eos = text.eos_id if hasattr(text, "eos_id") else text.text_eos_id
    largest = getattr(tokenizer, "vocab_size", 0) - 1  # argmax reads the largest id
    at_end = len(ours.end) == 1 and ((pool == "argmax" and ours.end[0] == largest) or (
        pool == "eos" and ours.end[0] == eos and eos not in ours.start))
    return at_end and text.text_projection is not None and all(map(is_plain_layer, text.transformer.resblocks))


def is_plain_layer(block: Any) -> bool:
    """A pre-norm layer with one attention, one MLP and nothing between."""
    parts = dict(block.named_children())
    scaled = any(not isinstance(parts.pop(name, nn.Identity()), nn.Identity) for name in ("ls_1", "ls_2"))
    return (
        not scaled and parts.keys() == {"ln_1", "attn", "ln_2", "mlp"} and type(block.attn) is nn.MultiheadAttention
        and list(dict(block.mlp.named_children())) == ["c_fc", "gelu", "c_proj"] and activation_of(block) != ""
    )


def activation_of(block: Any) -> str:
    """The name of a layer's activation; "" if the packed tower does not have it."""
    layer = block.mlp.gelu
    if type(layer).__name__ == "QuickGELU":
        return QUICK_GELU
    return {"none": GELU, "tanh": TANH_GELU}[layer.approximate] if type(layer) is nn.GELU else ""


def text_weights(text: Any, tokenizer: Tokenizer) -> TextWeights:
    blocks, projection = text.transformer.resblocks, text.text_projection
    linear = isinstance(projection, nn.Linear)
    return TextWeights(
        embedding=text.token_embedding, positions=text.positional_embedding, layers=tuple(map(openai_layer, blocks)),
        heads=blocks[0].attn.num_heads, activation=activation_of(blocks[0]), eps=text.ln_final.eps,
        final_norm=affine(text.ln_final), start=tokenizer.start,
        projection=(projection.weight.T, projection.bias) if linear else (projection, None),
    )


def our_tokenizer(tokenizer: Any) -> Tokenizer:
    """open_clip's tokenizers, its own one and those of transformers, each with its way of cleaning a text."""
    (row,) = tokenizer(["a"]).tolist()
    pad = row[-1]
    while row[-1:] == [pad]:
        row.pop()
    if hasattr(tokenizer, "encode"):
        return Tokenizer.around(tokenizer.encode, row, pad, tokenizer.all_special_ids)
    inner = tokenizer.tokenizer

    def encode(text: str) -> list[int]:
        return list(inner(tokenizer.clean_fn(text), add_special_tokens=False).input_ids)

    return Tokenizer.around(encode, row, pad, [i for i in inner.all_special_ids if i != inner.unk_token_id])


def pixels_of(config: dict[str, Any]) -> Pixels:
    """From the preprocessing that open_clip stores with every model."""
    size = config["size"]
    width, height = size if isinstance(size, Sequence) else (size, size)
    if width != height:
        raise ConfigError(f"this backbone takes images of {width} x {height} pixels: only squares are supported")
    return Pixels(width, config["mean"], config["std"], config["resize_mode"], config["interpolation"])


def load(name: str, device: torch.device, activation: str, head_width: int) -> OpenClipBackbone:
    if head_width:
        raise ConfigError("MODEL.HEAD_WIDTH is for files of unknown origin: open_clip knows its models' heads")
    source = find_source(name, activation)
    with explained(name):
        refuse_code(source.model)
        model = library().create_model(
            source.model, str(local_file(source)), force_quick_gelu=source.quick_gelu, require_pretrained=True,
            force_preprocess_cfg=dict(source.pixels),
        )
        tokenizer = library().get_tokenizer(source.model)
        return OpenClipBackbone(model.eval().requires_grad_(False).to(device), tokenizer, f"open_clip:{name}")
