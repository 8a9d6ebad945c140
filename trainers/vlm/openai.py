"""OpenAI's CLIP, and files of other projects that have its shape."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from ...datasets.views.pixels import Pixels
from .backbone import Backbone
from .checkpoints import sha256
from .openai_clip import CLIP, WEIGHT_URLS, clip, tokenizer
from .openai_weights import BACKBONES, DEFAULT_HEAD_WIDTH, expected_sha256, read_clip, weights_file
from .prompts import Tokenizer
from .text_tower import GELU, QUICK_GELU, TextWeights, affine, openai_layer

START, END = tokenizer.encoder["<|startoftext|>"], tokenizer.encoder["<|endoftext|>"]
TOKENIZER = Tokenizer(tokenizer.encode, (START,), (END,), 0, frozenset({START, END}))


class OpenAIBackbone(Backbone):
    """Wraps OpenAI's own module, which `load_clip` returns."""

    def __init__(self, model: CLIP, name: str = "") -> None:
        visual = model.visual
        self.name, self.module, self.tokenizer = name, model, TOKENIZER
        self.context_length, self.embedding = model.context_length, model.token_embedding
        self.pixels = Pixels(visual.input_resolution)
        self.features = model.text_projection.shape[1]
        if isinstance(visual, clip.model.VisionTransformer):
            self.activations = 4 * visual.positional_embedding.numel()  # the hidden layer of an MLP
        else:  # before the stem's pooling
            self.activations = visual.conv3.out_channels * (visual.input_resolution // 2) ** 2

    @property
    def text(self) -> TextWeights:
        """The module's own tensors. Its activation is OpenAI's unless MODEL.ACTIVATION has replaced it."""
        model, blocks = self.module, self.module.transformer.resblocks
        return TextWeights(
            embedding=model.token_embedding, positions=model.positional_embedding,
            layers=tuple(map(openai_layer, blocks)), heads=blocks[0].attn.num_heads,
            activation=GELU if isinstance(blocks[0].mlp.gelu, nn.GELU) else QUICK_GELU, eps=model.ln_final.eps,
            final_norm=affine(model.ln_final), projection=(model.text_projection, None), start=TOKENIZER.start,
        )

    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """A vision transformer is read at its class token, so the last layer is computed for that token only."""
        visual = self.module.visual
        if not isinstance(visual, clip.model.VisionTransformer):
            return self.module.encode_image(pixels)
        patches = visual.conv1(pixels).flatten(2).mT  # (N, patches, width)
        first = visual.class_embedding.expand(len(patches), 1, -1)
        x = torch.cat([first, patches], dim=1) + visual.positional_embedding
        x = visual.ln_pre(x).transpose(0, 1)  # (tokens, N, width), as the layers take it
        *layers, last = visual.transformer.resblocks
        for layer in layers:
            x = layer(x)
        attended = last.ln_1(x)
        first = x[:1] + last.attn(attended[:1], attended, attended, need_weights=False)[0]
        first = first + last.mlp(last.ln_2(first))
        return visual.ln_post(first[0]) @ visual.proj


def load(name: str, device: torch.device, activation: str, head_width: int) -> OpenAIBackbone:
    return OpenAIBackbone(read_clip(name, activation, head_width).to(device), name)


def weights_hash(name: str, activation: str, head_width: int) -> str:
    """The file's SHA-256, and the settings that change how it is read. Downloads are verified, so their address has
    it."""
    if name in BACKBONES:
        return expected_sha256(WEIGHT_URLS[name])[:16]
    changes = [activation] if activation == GELU else []
    changes += [f"heads{head_width}"] if head_width not in (0, DEFAULT_HEAD_WIDTH) else []
    return "-".join([sha256(weights_file(name))[:16], *changes])
