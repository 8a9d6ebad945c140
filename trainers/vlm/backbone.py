"""Declares the interface of a CLIP, `Backbone`.

Each library has a module that implements it; all but OpenAI's are optional.
"""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from importlib import import_module
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor, nn

from ...datasets.utils.errors import ConfigError, DataError, UserError, WeightsError, one_line
from ...datasets.views.geometry import Pixels
from .generic_tower import GenericText
from .prompts import Tokenizer, clean_name
from .text_tower import TextWeights


class Backbone(ABC):
    """An image tower and a text tower that share a feature space: frozen, in fp32, on one device.
    """

    name: str  # the name given to `load_clip`; "" if the model itself was given
    module: Any  # the library's own model
    tokenizer: Tokenizer
    context_length: int  # tokens of a prompt, control tokens included
    embedding: nn.Embedding
    pixels: Pixels  # the image tower's input
    features: int  # d, numbers of a feature
    # Numbers in the image tower's largest activation of one view, which sets how many run together
    activations: int

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.logit_scale.device

    @property
    def logit_scale(self) -> Tensor:
        """The logarithm of the factor on cosines.

        A bias on all logits, as SigLIP has, cancels in softmax.
        """
        return self.module.logit_scale.reshape(())

    @property
    def width(self) -> int:
        """Numbers in a token's embedding, and so in a context vector."""
        return self.embedding.weight.shape[1]

    @property
    def architecture(self) -> str:
        """Kind of network of the image tower: resnet or transformer."""
        for module in self.module.modules():
            if "ResNet" in type(module).__name__:
                return "resnet"
        return "transformer"

    def embed(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Token embeddings (K, length, width) of rows of equal length."""
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        return self.embedding(ids).detach().float()

    @abstractmethod
    def encode_pixels(self, pixels: Tensor) -> Tensor:
        """Encodes images.

        Args:
            pixels: Normalised pixels, (N, 3, size, size).

        Returns:
            Image features, not scaled to length 1, (N, d).
        """

    @property
    @abstractmethod
    def text(self) -> TextWeights | GenericText:
        """The weights of a causal text tower of plain layers, which can run packed; otherwise the
        library's module.
        """

    def with_pixels(self, mean: Sequence[float], std: Sequence[float]) -> Self:
        """Returns the same model with another mean and standard deviation of pixels.

        Args:
            mean: Means of red, green and blue, for pixels from 0 to 1; empty = the model's own.
            std: Standard deviations of red, green and blue; empty = the model's own.
        """
        other = copy(self)
        pixels = self.pixels
        other.pixels = Pixels.checked(
            pixels.size, mean or pixels.mean, std or pixels.std, pixels.resize,
            pixels.interpolation)
        return other

    def without_cache(self) -> Self:
        """Returns the same model without cached tensors, because its weights may have changed."""
        other = copy(self)
        other.__dict__.pop("text", None)  # a cached property of some libraries' backbones
        return other

    def with_copied_weights(self) -> Self:
        """Returns a copy whose weights stay as they are when those of this model change."""
        return deepcopy(self.without_cache())


def initial_context(backbone: Backbone, ctx_init: str) -> Tensor:
    """Returns the token embeddings of the context's words, which the methods tune.

    Args:
        backbone: The model.
        ctx_init: The words, such as "a photo of a".

    Returns:
        The context, (n_ctx, width).
    """
    tokens = backbone.tokenizer.beginning(clean_name(ctx_init))
    if not tokens:
        raise ConfigError(
            f"PROMPT.CTX_INIT {ctx_init!r} has no words: the context needs at least one token")
    return backbone.embed([tokens])[0]


def check_lengths(
    names: Sequence[str], tokens: Sequence[Sequence[int]], n_ctx: int, backbone: Backbone,
) -> None:
    """Refuses prompts that are longer than the model's context length.

    Args:
        names: Names of the classes, for the message.
        tokens: Tokens after the context, for each class.
        n_ctx: Number of tokens of the context.
        backbone: The model.
    """
    for label, (name, name_tokens) in enumerate(zip(names, tokens, strict=True)):
        length = len(backbone.tokenizer.start) + n_ctx + len(name_tokens)
        if length > backbone.context_length:
            raise DataError(
                f"the prompt of class {label} ({name!r}) has {length} tokens, but the model takes "
                f"{backbone.context_length}: shorten the name or the context ({n_ctx} tokens)")


def import_library(name: str, extra: str) -> ModuleType:
    """Imports an optional library, or says how to install it.

    Args:
        name: Name of the module.
        extra: The extra of this package that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise WeightsError(
            f"this backbone needs {name}: pip install -e '.[{extra}]' in promptcal's folder"
        ) from error


@contextmanager
def library_errors(problem: str, remedy: str) -> Iterator[None]:
    """Turns any error of a library into one line with the remedy.

    A library fails in many ways: no network, damaged files, shapes that do not fit.

    Args:
        problem: Words for what failed, such as "open_clip cannot load X".
        remedy: Words for what the user can do.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        lines = (str(error).strip() or type(error).__name__).splitlines()
        raise WeightsError(f"{problem} ({one_line(lines[0], 300)}): {remedy}") from error
