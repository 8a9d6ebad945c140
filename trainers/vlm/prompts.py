"""From words to tokens: the context, each class's own tokens, and their order.

Towers lay out a prompt as `[start][context][name][.][end]`, which shares its beginning with all other classes. CoOp's
CLASS_TOKEN_POSITION also allows the name in the middle of the context or in front of it; then the tokens of each
class's prompt are put into another order.
"""
from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...datasets.utils.errors import ConfigError, DataError, WeightsError, first_five

if TYPE_CHECKING:
    from .backbone import Backbone

logger = logging.getLogger(__name__)

ANCHOR = "a"  # a word in every vocabulary, to find the control tokens around it
END, MIDDLE, FRONT = "end", "middle", "front"  # positions of the class name


@dataclass(frozen=True)
class Tokenizer:
    """A prompt is `start`, the words' tokens, `end`; the rest of the model's context length is filled with `pad`."""

    encode: Callable[[str], list[int]]  # the tokens of a text, without control tokens
    start: tuple[int, ...]
    end: tuple[int, ...]
    pad: int
    control: frozenset[int]  # tokens that are not words
    decode: Callable[[int], str] | None = None  # the text of one token, to read learnt prompts; None = not known

    @classmethod
    def around(
        cls, encode: Callable[[str], list[int]], row: Sequence[int], pad: int, control: Sequence[int] = (),
        decode: Callable[[int], str] | None = None,
    ) -> Tokenizer:
        """Finds start and end in `row`, the library's own tokens of the text "a"; `control` are its other control
        tokens."""
        row, word = list(row), encode(ANCHOR)
        first = next((i for i in range(len(row)) if row[i : i + len(word)] == word), None)
        if not word or first is None:
            raise WeightsError(f"this tokenizer is not supported: it makes {row} of '{ANCHOR}', whose token is {word}")
        start, end = tuple(row[:first]), tuple(row[first + len(word) :])
        return cls(encode, start, end, pad, frozenset({*start, *end, *control} - {*word}), decode)

    def beginning(self, text: str) -> list[int]:
        """The tokens of a text at the beginning of a prompt. A control token inside it would end it, or hide the
        rest."""
        tokens = self.encode(text)
        if self.control & set(tokens):
            raise DataError(f"{text!r} holds a control token of the tokenizer, not words: rename it")
        return tokens

    def following(self, text: str) -> list[int]:
        """The tokens of a text after other words, where some tokenizers mark the space before it."""
        before, both = self.encode(ANCHOR), self.beginning(f"{ANCHOR} {text}")
        if both[: len(before)] != before:
            raise DataError(f"this tokenizer joins '{text}' to the word before it: rename it")
        return both[len(before) :]


def words(text: str) -> str:
    """Underscores become spaces, as in CoOp and TPT."""
    return " ".join(text.replace("_", " ").split())


def initial_context(backbone: Backbone, ctx_init: str) -> Tensor:
    """The token embeddings (n_ctx, width) of the context's words, which the methods tune."""
    tokens = backbone.tokenizer.beginning(words(ctx_init))
    if not tokens:
        raise ConfigError(f"PROMPT.CTX_INIT {ctx_init!r} has no words: the context needs at least one token")
    return backbone.embed([tokens])[0]


def class_tokens(classnames: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """For each class the tokens after the context: its name, a full stop, the end token."""
    if not classnames:
        raise DataError("no class names: a data set needs at least one class")
    for label, name in enumerate(classnames):
        if not words(name):
            raise DataError(f"class {label} has an empty name ({name!r}): every class needs at least one word")
    return [[*tokenizer.following(f"{words(name)}."), *tokenizer.end] for name in classnames]


def warn_of_classes(classnames: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
    """Warns of a single class, and of names that have the same tokens."""
    if len(classnames) == 1:
        logger.warning("there is only one class, '%s': every image gets it, with confidence 1", classnames[0])
    groups = defaultdict(list)
    for name, own in zip(classnames, tokens, strict=True):
        groups[tuple(own)].append(f"'{name}'")
    equal = [" = ".join(names) for names in groups.values() if len(names) > 1]
    if equal:
        logger.warning("no prompt can distinguish these classes, because their names (or texts) are the same to the "
                       "model: %s", first_five(equal))


def check_lengths(names: Sequence[str], tokens: Sequence[Sequence[int]], n_ctx: int, backbone: Backbone) -> None:
    """Refuses prompts that are longer than the model's context length."""
    for label, (name, own) in enumerate(zip(names, tokens, strict=True)):
        length = len(backbone.tokenizer.start) + n_ctx + len(own)
        if length > backbone.context_length:
            raise DataError(f"the prompt of class {label} ({name!r}) has {length} tokens, but the model takes "
                            f"{backbone.context_length}: shorten the name or the context ({n_ctx} tokens)")


@dataclass(frozen=True)
class ClassTokenPosition:
    """The order of the tokens of each class's prompt, for a name in the middle or in front."""

    name: str
    lengths: tuple[int, ...]  # tokens of each class's name, the full stop not counted

    @classmethod
    def find(cls, name: str, classnames: Sequence[str], tokenizer: Tokenizer) -> ClassTokenPosition | None:
        """None for the end, which is the towers' own order."""
        if name == END:
            return None
        return cls(name, tuple(len(tokenizer.following(words(classname))) for classname in classnames))

    def of_classes(self, classes: Sequence[int]) -> ClassTokenPosition:
        """The same for some of the classes."""
        return ClassTokenPosition(self.name, tuple(self.lengths[k] for k in classes))

    def order(self, start: int, n_ctx: int, length: int) -> Tensor:
        """(K, length): which token of `[start][context][name][rest]` is at each position of a class's prompt."""
        before = n_ctx // 2 if self.name == MIDDLE else 0  # context tokens before the name
        cut, own = start + before, start + n_ctx
        return torch.tensor([[*range(cut), *range(own, own + name), *range(cut, own), *range(own + name, length)]
                             for name in self.lengths])


def reorder_tokens(tokens: Tensor, order: Tensor) -> Tensor:
    """Embeddings (..., K, length, width), or ids (K, length), each class's in its order."""
    order = order.to(tokens.device)
    rows = torch.arange(len(order), device=tokens.device)[:, None]
    return tokens[rows, order] if tokens.dim() == 2 else tokens[..., rows, order, :]
