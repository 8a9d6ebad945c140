"""Descriptions of classes from a file {class name: [text, ...]}: CuPL's sentences or DCLIP's
phrases.
"""
from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...datasets.utils.errors import DataError, first_five, one_line
from ...datasets.utils.files import is_printable, read_regular
from .tokenizer import clean_name

AUTO, SENTENCES, PHRASES = "auto", "sentences", "phrases"
# Bytes, and texts per class: ten times the largest public file
LARGEST_FILE, MOST_TEXTS = 1 << 26, 1000
SHAPE = 'it must be {"class name": ["text", ...], ...} in JSON'
# The first word of a phrase decides how it follows "which"; by default "which has".
ARTICLES = {"a", "an", "the", "used", "made", "found"}  # which is
# Which
VERBS = {"is", "are", "has", "have", "may", "can", "often", "usually", "typically", "sometimes"}


@dataclass(frozen=True)
class Descriptions:
    """The texts of each class, in the order of the classes."""

    file: str
    digest: str  # of the file
    form: str  # SENTENCES or PHRASES
    texts: Sequence[Sequence[str]]


def read_descriptions(file: str, classnames: Sequence[str], form: str = AUTO) -> Descriptions:
    """Reads the descriptions of these classes; the file may have more.

    Its names match with `_` for spaces and, where no name matches exactly, in any case. Phrases
    become sentences that begin with the class name.
    """
    content = _content(file)
    found = _parse(content, file)
    exact = {clean_name(name): name for name in found}
    folded = {name.casefold(): key for name, key in exact.items()}
    keys = [
        exact.get(clean_name(name), folded.get(clean_name(name).casefold())) for name in classnames
    ]
    if missing := [name for name, key in zip(classnames, keys, strict=True) if key is None]:
        raise DataError(
            f"{file} (PROMPT.DESCRIPTIONS) has no texts for {len(missing)} of {len(classnames)} "
            f"classes: {first_five(missing)}; it has {len(found)} names, such as "
            f"{first_five(list(found)[:3])}"
        )
    listed = [found[key] for key in keys if key is not None]
    if form == AUTO:
        judged = [
            is_sentence(text, clean_name(name))
            for name, texts in zip(classnames, listed, strict=True)
            for text in texts
        ]
        form = SENTENCES if 2 * sum(judged) >= len(judged) > 0 else PHRASES
    if form == PHRASES:  # a class without phrases is its name, as in DCLIP
        listed = [[from_phrase(clean_name(name), text) for text in texts] or [clean_name(name)]
                  for name, texts in zip(classnames, listed, strict=True)]
    elif empty := [name for name, texts in zip(classnames, listed, strict=True) if not texts]:
        raise DataError(
            f"{file} (PROMPT.DESCRIPTIONS) has an empty list for {first_five(empty)}: add a "
            "sentence"
        )
    return Descriptions(file, hashlib.sha256(content).hexdigest()[:16], form, listed)


def is_sentence(text: str, name: str) -> bool:
    """A sentence names the class, or begins with a capital letter and ends with a full stop; a
    phrase does neither.
    """
    return name.casefold() in text.casefold() or (
        text[0].isupper() and text.endswith((".", "!", "?"))
    )


def from_phrase(name: str, phrase: str) -> str:
    """DCLIP's form, `name, which has long legs.`, with the link chosen by whole words: DCLIP's own
    code writes "which is" before any word that begins with an a.
    """
    first = phrase.split()[0].casefold()
    link = "which is" if first in ARTICLES else "which" if first in VERBS else "which has"
    return f"{name}, {link} {phrase.rstrip('.')}."


def _content(file: str) -> bytes:
    try:
        return read_regular(Path(file), LARGEST_FILE)
    except OSError as error:
        raise DataError(
            f"cannot read {file} (PROMPT.DESCRIPTIONS): {error.strerror}; {SHAPE}"
        ) from error


def _parse(content: bytes, file: str) -> dict[str, list[str]]:
    """The file's content, each text on one line."""
    def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        counts = Counter(clean_name(name) for name, _ in pairs)
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has these names twice: {first_five(repeated)}"
            )
        return dict(pairs)

    try:
        found = json.loads(content.decode("utf-8-sig"), object_pairs_hook=without_repeats)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{file} (PROMPT.DESCRIPTIONS) is not JSON ({one_line(error, 200)}): {SHAPE}"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{file} (PROMPT.DESCRIPTIONS) holds no names: {SHAPE}")
    for name, texts in found.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has no list of texts for {name!r}: {SHAPE}"
            )
        if len(texts) > MOST_TEXTS:
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has {len(texts)} texts for {name!r}: at most "
                f"{MOST_TEXTS}"
            )
        found[name] = [line for text in texts if (line := " ".join(text.split()))]
        if bad := next((text for text in found[name] if not is_printable(text)), None):
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has control characters or broken Unicode in a text "
                f"of {name!r}: {bad!r:.80}"
            )
    return found
