"""From words to tokens: the shared context before the class name, and each class's own tokens after it."""
from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, tensor

from ...datasets.utils.errors import ConfigError, DataError
from .openai_clip import CLIP, tokenizer

START = tokenizer.encoder["<|startoftext|>"]
END = tokenizer.encoder["<|endoftext|>"]


def words(text: str) -> str:
    """Underscores become spaces, as in CoOp and TPT."""
    return " ".join(text.replace("_", " ").split())


def context_tokens(ctx_init: str) -> list[int]:
    tokens = tokenizer.encode(words(ctx_init))
    if not tokens:
        raise ConfigError(f"PROMPT.CTX_INIT {ctx_init!r} has no words: the context needs at least one token")
    return tokens


def initial_context(model: CLIP, ctx_init: str) -> Tensor:
    """The token embeddings of the context's words: what the methods tune. (n_ctx, width)"""
    tokens = tensor(context_tokens(ctx_init), device=model.token_embedding.weight.device)
    return model.token_embedding(tokens).detach().float()


def class_tokens(classnames: Sequence[str]) -> list[list[int]]:
    """For each class the tokens after the context: its name, always a full stop, the end token."""
    if not classnames:
        raise DataError("no class names: a data set needs at least one class")
    for label, name in enumerate(classnames):
        if not words(name):
            raise DataError(f"class {label} has an empty name ({name!r}): every class needs at least one word")
    return [[*tokenizer.encode(f"{words(name)}."), END] for name in classnames]


def check_lengths(
    classnames: Sequence[str], tokens: Sequence[Sequence[int]], n_ctx: int, context_length: int,
) -> None:
    """Refuses prompts that the model cannot take whole."""
    for label, (name, own) in enumerate(zip(classnames, tokens, strict=True)):
        length = 1 + n_ctx + len(own)
        if length > context_length:
            raise DataError(
                f"the prompt of class {label} ({name!r}) has {length} tokens, but the model takes {context_length}: "
                f"shorten the name or the context ({n_ctx} tokens)"
            )
