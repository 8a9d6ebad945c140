"""From words to tokens: the context and each class's own tokens."""
from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence

from torch import Tensor

from ...datasets.utils.errors import ConfigError, DataError, first_five
from .backbone import Backbone
from .tokenizer import Tokenizer, clean_name

logger = logging.getLogger(__name__)


def initial_context(backbone: Backbone, ctx_init: str) -> Tensor:
    """The token embeddings of the context's words, which the methods tune.

    Args:
        backbone: The model.
        ctx_init: The words.

    Returns:
        (n_ctx, width).
    """
    tokens = backbone.tokenizer.beginning(clean_name(ctx_init))
    if not tokens:
        raise ConfigError(
            f"PROMPT.CTX_INIT {ctx_init!r} has no words: the context needs at least one token")
    return backbone.embed([tokens])[0]


def class_tokens(classnames: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """For each class the tokens after the context: its name, a full stop, the end token."""
    if not classnames:
        raise DataError("no class names: a data set needs at least one class")
    tokens = []
    for label, name in enumerate(classnames):
        words = clean_name(name)
        if not words:
            raise DataError(
                f"class {label} has an empty name ({name!r}): every class needs at least one word")
        tokens.append([*tokenizer.following(f"{words}."), *tokenizer.end])
    return tokens


def warn_of_classes(classnames: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
    """Warns of a single class, and of names that have the same tokens.

    Args:
        classnames: K names.
        tokens: Of each name, or of each class's texts.
    """
    if len(classnames) == 1:
        logger.warning("there is only one class, '%s': every image gets it, with confidence 1",
                       classnames[0])
    groups = defaultdict(list)
    for name, name_tokens in zip(classnames, tokens, strict=True):
        groups[tuple(name_tokens)].append(f"'{name}'")
    equal = [" = ".join(names) for names in groups.values() if len(names) > 1]
    if equal:
        logger.warning(
            "no prompt can distinguish these classes, because their names (or texts) are "
            "the same to the model: %s",
            first_five(equal),
        )


def check_lengths(
    names: Sequence[str], tokens: Sequence[Sequence[int]], n_ctx: int, backbone: Backbone,
) -> None:
    """Refuses prompts that are longer than the model's context length.

    Args:
        names: Of the classes, for the message.
        tokens: For each class the tokens after the context.
        n_ctx: Tokens of the context.
        backbone: The model.
    """
    for label, (name, name_tokens) in enumerate(zip(names, tokens, strict=True)):
        length = len(backbone.tokenizer.start) + n_ctx + len(name_tokens)
        if length > backbone.context_length:
            raise DataError(
                f"the prompt of class {label} ({name!r}) has {length} tokens, but the model takes "
                f"{backbone.context_length}: shorten the name or the context ({n_ctx} tokens)")
