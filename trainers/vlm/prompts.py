"""Turns words into tokens: tokenizers, each class's tokens, and the order of a prompt's tokens.

Towers lay out a prompt as `[start][context][name][.][end]`, which shares its beginning with all
other classes. CoOp's CLASS_TOKEN_POSITION also allows the name in the middle of the context or in
front of it; then the tokens of each class's prompt are put into another order.
"""
from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...datasets.utils.errors import DataError, WeightsError, first_five

logger = logging.getLogger(__name__)

ANCHOR = "a"  # a word in every vocabulary, to find the control tokens around it
# Positions of the class name
END = "end"
MIDDLE = "middle"
FRONT = "front"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer in our form.

    A prompt is `start`, the words' tokens, `end`; the rest of the model's length is `pad`.
    """

    encode: Callable[[str], list[int]]  # the tokens of a text, without control tokens
    start: tuple[int, ...]
    end: tuple[int, ...]
    pad: int
    control: frozenset[int]  # tokens that are not words

    @classmethod
    def around(
        cls, encode: Callable[[str], list[int]], row: Sequence[int], pad: int,
        control: Sequence[int] = (),
    ) -> Tokenizer:
        """Wraps a tokenizer of a library. Start and end tokens are found in a row of tokens.

        Args:
            encode: A function that returns the tokens of a text, without control tokens.
            row: The library's own tokens of the text ANCHOR, control tokens included.
            pad: The token of the padding.
            control: Other control tokens.
        """
        row = list(row)
        word = encode(ANCHOR)
        positions = [i for i in range(len(row)) if row[i : i + len(word)] == word]
        if not word or not positions:
            raise WeightsError(
                f"this tokenizer is not supported: it makes {row} of '{ANCHOR}', whose token is "
                f"{word}"
            )
        start = tuple(row[: positions[0]])
        end = tuple(row[positions[0] + len(word) :])
        return cls(encode, start, end, pad, frozenset({*start, *end, *control} - {*word}))

    def beginning(self, text: str) -> list[int]:
        """Returns the tokens of a text at the beginning of a prompt.

        A text with a control token is refused: it would end the prompt there, or hide the rest.
        """
        tokens = self.encode(text)
        if self.control & set(tokens):
            raise DataError(
                f"{text!r} holds a control token of the tokenizer, not words: rename it")
        return tokens

    def following(self, text: str) -> list[int]:
        """Returns the tokens of a text after other words.

        They may differ from those at the beginning: some tokenizers mark the space before a word.
        """
        # The text is encoded after a word, whose tokens are then cut off.
        before = self.encode(ANCHOR)
        both = self.beginning(f"{ANCHOR} {text}")
        if both[: len(before)] != before:
            raise DataError(f"this tokenizer joins '{text}' to the word before it: rename it")
        return both[len(before) :]


def clean_name(text: str) -> str:
    """Underscores become spaces, as in CoOp and TPT."""
    return " ".join(text.replace("_", " ").split())


def class_tokens(classnames: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Returns the tokens after the context, for each class: its name, a full stop, the end token.

    Args:
        classnames: Names of the K classes.
        tokenizer: The tokenizer of the model.
    """
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
        classnames: Names of the K classes.
        tokens: Tokens of each name, or of each class's texts.
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


@dataclass(frozen=True)
class ClassTokenPosition:
    """The order of the tokens of each class's prompt, for a name in the middle or in front."""

    name: str
    lengths: tuple[int, ...]  # tokens of each class's name, the full stop not counted

    @classmethod
    def find(
        cls, name: str, classnames: Sequence[str], tokenizer: Tokenizer,
    ) -> ClassTokenPosition | None:
        """Returns the order for a position of the class names.

        Args:
            name: The position: END, MIDDLE or FRONT.
            classnames: Names of the K classes.
            tokenizer: The tokenizer of the model.

        Returns:
            None for the end, which is the towers' own order.
        """
        if name == END:
            return None
        lengths = [len(tokenizer.following(clean_name(classname))) for classname in classnames]
        return cls(name, tuple(lengths))

    def of_classes(self, classes: Sequence[int]) -> ClassTokenPosition:
        """Returns the same order for some of the classes."""
        return ClassTokenPosition(self.name, tuple(self.lengths[k] for k in classes))

    def order(self, start: int, n_ctx: int, length: int) -> Tensor:
        """Returns which token of `[start][context][name][rest]` is at each position of a prompt.

        Args:
            start: Number of start tokens.
            n_ctx: Number of context tokens.
            length: Number of tokens of a prompt.

        Returns:
            Positions in the towers' own order, (K, length).
        """
        before_name = 0  # context tokens before the name
        if self.name == MIDDLE:
            before_name = n_ctx // 2
        cut = start + before_name
        end_of_context = start + n_ctx
        rows = []
        for name_length in self.lengths:
            end_of_name = end_of_context + name_length
            rows.append([
                *range(cut),  # start, and context before the name
                *range(end_of_context, end_of_name),  # the name
                *range(cut, end_of_context),  # the other context tokens
                *range(end_of_name, length),  # full stop, end and padding
            ])
        return torch.tensor(rows)


def reorder_tokens(tokens: Tensor, order: Tensor) -> Tensor:
    """Puts the tokens of each class's prompt into another order.

    Args:
        tokens: Embeddings (..., K, length, width), or ids (K, length).
        order: Positions (K, length), as `ClassTokenPosition.order` returns them.
    """
    order = order.to(tokens.device)
    rows = torch.arange(len(order), device=tokens.device)[:, None]
    if tokens.dim() == 2:
        return tokens[rows, order]
    return tokens[..., rows, order, :]
