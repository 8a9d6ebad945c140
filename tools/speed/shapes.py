"""What the benchmark runs on: CLIPs of the real shapes with random weights, and class names of realistic length."""
from __future__ import annotations

from dataclasses import astuple, dataclass
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...trainers.vlm.openai_clip import CLIP, tokenizer


@dataclass(frozen=True)
class Shape:
    """CLIP's own arguments, in its order."""

    embed_dim: int
    image_resolution: int
    vision_layers: int
    vision_width: int
    vision_patch_size: int
    context_length: int
    vocab_size: int
    transformer_width: int
    transformer_heads: int
    transformer_layers: int


SHAPES = {
    "ViT-B/16": Shape(512, 224, 12, 768, 16, 77, 49408, 512, 8, 12),
    "ViT-L/14": Shape(768, 224, 24, 1024, 14, 77, 49408, 768, 12, 12),
    "tiny": Shape(32, 32, 2, 64, 16, 77, 49408, 64, 1, 2),  # to try the benchmark itself
}

# How many of ImageNet's 1000 names have 1, 2, 3, ... tokens; a full stop and the end token follow each.
NAME_TOKENS = (246, 508, 155, 49, 24, 9, 7, 1, 0, 0, 1)


def random_clip(backbone: str, device: str = "cpu") -> CLIP:
    """On the device `meta` it has shapes only: for counting operations."""
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        return CLIP(*astuple(SHAPES[backbone])).eval().requires_grad_(False)


def class_names(count: int) -> list[str]:
    """Names whose lengths are spread as ImageNet's are, from words that are one token each."""
    words = [word.removesuffix("</w>") for word in tokenizer.encoder if word.endswith("</w>")]
    words = [word for word in words if word.isascii() and word.isalpha() and len(word) > 3]
    up_to = np.array(list(accumulate(NAME_TOKENS))) / sum(NAME_TOKENS)
    lengths = 1 + np.searchsorted(up_to, (np.arange(count) + 0.5) / count)
    ends = np.cumsum(lengths)
    return [" ".join(words[(end - length + n) % len(words)] for n in range(length))
            for length, end in zip(lengths, ends, strict=True)]


def random_features(*shape: int) -> Tensor:
    """Unit features, as the image tower gives them."""
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), dim=-1)
