"""From words to tokens: the shared context before the class name, and each class's own tokens after it."""
from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from torch import Tensor

from ...datasets.utils.errors import ConfigError, DataError, first_five
from .backbone import Backbone
from .class_token_position import END, Placement
from .tokens import Tokenizer

logger = logging.getLogger(__name__)


def words(text: str) -> str:
    """Underscores become spaces, as in CoOp and TPT."""
    return " ".join(text.replace("_", " ").split())


def context_tokens(ctx_init: str, tokenizer: Tokenizer) -> list[int]:
    tokens = tokenizer.beginning(words(ctx_init))
    if not tokens:
        raise ConfigError(f"PROMPT.CTX_INIT {ctx_init!r} has no words: the context needs at least one token")
    return tokens


def initial_context(backbone: Backbone, ctx_init: str) -> Tensor:
    """The token embeddings of the context's words: what the methods tune. (n_ctx, width)"""
    return backbone.embed([context_tokens(ctx_init, backbone.tokenizer)])[0]


def class_tokens(classnames: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """For each class the tokens after the context: its name, always a full stop, the end token."""
    if not classnames:
        raise DataError("no class names: a data set needs at least one class")
    for label, name in enumerate(classnames):
        if not words(name):
            raise DataError(f"class {label} has an empty name ({name!r}): every class needs at least one word")
    return [[*tokenizer.following(f"{words(name)}."), *tokenizer.end] for name in classnames]


def warn_of_classes(classnames: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
    """Says what makes a prediction say nothing: a single class, and names that are the same to the text tower."""
    if len(classnames) == 1:
        logger.warning("there is one class only, '%s': every image is that, with confidence 1", classnames[0])
    alike = defaultdict(list)
    for name, own in zip(classnames, tokens, strict=True):
        alike[tuple(own)].append(f"'{name}'")
    shared = [" = ".join(names) for names in alike.values() if len(names) > 1]
    if shared:
        logger.warning("no prompt can tell these classes apart, because their names are the same to the model: %s",
                       first_five(shared))


def find_placement(position: str, classnames: Sequence[str], tokenizer: Tokenizer) -> Placement | None:
    """Where the class names stand; None for the end, where towers have them."""
    if position == END:
        return None
    return Placement(position, tuple(len(tokenizer.following(words(name))) for name in classnames))


def check_lengths(
    classnames: Sequence[str], tokens: Sequence[Sequence[int]], n_ctx: int, backbone: Backbone,
) -> None:
    """Refuses prompts that the model cannot take whole."""
    most = backbone.context_length
    for label, (name, own) in enumerate(zip(classnames, tokens, strict=True)):
        length = len(backbone.tokenizer.start) + n_ctx + len(own)
        if length > most:
            raise DataError(
                f"the prompt of class {label} ({name!r}) has {length} tokens, but the model takes {most}: "
                f"shorten the name or the context ({n_ctx} tokens)"
            )
