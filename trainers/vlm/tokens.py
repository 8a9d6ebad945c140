"""Words as a backbone's tokenizer cuts them, and the control tokens that it puts around and behind them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...datasets.utils.errors import DataError, WeightsError

ANCHOR = "a"  # a word that every tokenizer knows, to see what surrounds it


@dataclass(frozen=True)
class Tokenizer:
    """A prompt is `start`, the words' tokens, `end`; what is left of the model's length is filled with `pad`."""

    encode: Callable[[str], list[int]]  # the tokens of a text's words alone
    start: tuple[int, ...]
    end: tuple[int, ...]
    pad: int
    control: frozenset[int]  # tokens that stand for no word

    @classmethod
    def around(
        cls, encode: Callable[[str], list[int]], row: Sequence[int], pad: int, control: Sequence[int] = (),
    ) -> Tokenizer:
        """Learns start and end from `row`, what a library's own tokenizer makes of the word "a"; `control` are its
        other tokens that stand for no word."""
        row, word = list(row), encode(ANCHOR)
        place = next((i for i in range(len(row)) if row[i : i + len(word)] == word), None)
        if not word or place is None:
            raise WeightsError(f"this tokenizer is not understood: it makes {row} of '{ANCHOR}', whose token is {word}")
        start, end = tuple(row[:place]), tuple(row[place + len(word) :])
        return cls(encode, start, end, pad, frozenset({*start, *end, *control} - {*word}))

    def beginning(self, text: str) -> list[int]:
        """The tokens of a text at the beginning of a prompt."""
        return self.checked(text, self.encode(text))

    def following(self, text: str) -> list[int]:
        """The tokens of a text after other words, where some tokenizers mark the space before it."""
        before, whole = self.encode(ANCHOR), self.encode(f"{ANCHOR} {text}")
        if whole[: len(before)] != before:
            raise DataError(f"this tokenizer joins '{text}' to the word before it: rename it")
        return self.checked(text, whole[len(before) :])

    def checked(self, text: str, tokens: list[int]) -> list[int]:
        """A control token inside a prompt would end it, or hide the rest."""
        if self.control & set(tokens):
            raise DataError(f"{text!r} holds a control token of the tokenizer, not words: rename it")
        return tokens
