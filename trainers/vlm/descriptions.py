"""Reads descriptions of classes, such as CuPL's or DCLIP's, from a JSON file.

The file has the form {class name: [text, ...]}. Texts are sentences (CuPL) or phrases (DCLIP).
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
from .prompts import clean_name

# Forms of descriptions
AUTO = "auto"
SENTENCES = "sentences"
PHRASES = "phrases"
LARGEST_FILE = 1 << 26  # bytes, ten times the largest public file
MOST_TEXTS = 1000  # texts per class
SHAPE = 'it must be {"class name": ["text", ...], ...} in JSON'
# The first word of a phrase decides what comes before it; otherwise "which has".
AFTER_WHICH_IS = {"a", "an", "the", "used", "made", "found"}
AFTER_WHICH = {
    "is", "are", "has", "have", "may", "can", "often", "usually", "typically", "sometimes",
}


@dataclass(frozen=True)
class Descriptions:
    """The texts of each class, in the order of the classes."""

    file: str  # path as it was given
    digest: str  # hash of the file's content
    form: str  # SENTENCES or PHRASES
    texts: Sequence[Sequence[str]]  # texts of each class, as sentences


def read_descriptions(file: str, classnames: Sequence[str], form: str = AUTO) -> Descriptions:
    """Reads the descriptions of these classes; the file may have more.

    Its names match with `_` for spaces and, where no name matches exactly, in any case. Phrases
    become sentences that begin with the class name.

    Args:
        file: The path of the file.
        classnames: The classes in their order.
        form: SENTENCES, PHRASES, or AUTO: sentences if half of the texts or more look like it.

    Raises:
        DataError: If the file cannot be read, or a class has no texts.
    """
    content = _content(file)
    texts_by_name = _parse(content, file)
    listed = _texts_of_classes(texts_by_name, classnames, file)
    if form == AUTO:
        form = _form_of(listed, classnames)
    if form == PHRASES:
        sentences = []
        for name, texts in zip(classnames, listed, strict=True):
            of_class = [from_phrase(clean_name(name), text) for text in texts]
            if not of_class:  # a class without phrases is its name, as in DCLIP
                of_class = [clean_name(name)]
            sentences.append(of_class)
        listed = sentences
    else:
        empty = [name for name, texts in zip(classnames, listed, strict=True) if not texts]
        if empty:
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has an empty list for {first_five(empty)}: add a "
                "sentence"
            )
    return Descriptions(file, hashlib.sha256(content).hexdigest()[:16], form, listed)


def _texts_of_classes(
    texts_by_name: dict[str, list[str]], classnames: Sequence[str], file: str,
) -> list[list[str]]:
    """Returns the texts of each class. Refuses a file in which a class is missing."""
    names = {clean_name(name): name for name in texts_by_name}
    folded_names = {name.casefold(): key for name, key in names.items()}
    listed = []
    missing = []
    for classname in classnames:
        cleaned = clean_name(classname)
        key = names.get(cleaned, folded_names.get(cleaned.casefold()))
        if key is None:
            missing.append(classname)
        else:
            listed.append(texts_by_name[key])
    if missing:
        raise DataError(
            f"{file} (PROMPT.DESCRIPTIONS) has no texts for {len(missing)} of {len(classnames)} "
            f"classes: {first_five(missing)}; it has {len(texts_by_name)} names, such as "
            f"{first_five(list(texts_by_name)[:3])}"
        )
    return listed


def _form_of(listed: Sequence[Sequence[str]], classnames: Sequence[str]) -> str:
    """Returns SENTENCES if half of the texts or more are sentences, otherwise PHRASES."""
    total = 0
    sentences = 0
    for name, texts in zip(classnames, listed, strict=True):
        for text in texts:
            total += 1
            sentences += is_sentence(text, clean_name(name))
    if total > 0 and 2 * sentences >= total:
        return SENTENCES
    return PHRASES


def is_sentence(text: str, name: str) -> bool:
    """Whether a text is a sentence, not a phrase.

    A sentence names the class, or begins with a capital letter and ends with a full stop.

    Args:
        text: A description.
        name: Name of the class that it describes.
    """
    names_class = name.casefold() in text.casefold()
    return names_class or (text[0].isupper() and text.endswith((".", "!", "?")))


def from_phrase(name: str, phrase: str) -> str:
    """Makes a sentence of a phrase, as DCLIP does: `name, which has long legs.`

    The link is chosen by whole words. DCLIP's own code writes "which is" before any word that
    begins with an a.

    Args:
        name: Name of the class.
        phrase: A description without a verb, such as `long legs`.

    Example:
        >>> from_phrase("heron", "long legs"), from_phrase("heron", "often wades")
        ('heron, which has long legs.', 'heron, which often wades.')
    """
    first = phrase.split()[0].casefold()
    if first in AFTER_WHICH_IS:
        link = "which is"
    elif first in AFTER_WHICH:
        link = "which"
    else:
        link = "which has"
    return f"{name}, {link} {phrase.rstrip('.')}."


def _content(file: str) -> bytes:
    """The bytes of the file."""
    try:
        return read_regular(Path(file), LARGEST_FILE)
    except OSError as error:
        raise DataError(
            f"cannot read {file} (PROMPT.DESCRIPTIONS): {error.strerror}; {SHAPE}"
        ) from error


def _parse(content: bytes, file: str) -> dict[str, list[str]]:
    """Parses the file's content: each text on one line; texts without a word are left out."""
    def without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # json would take the last of two equal names without a word.
        counts = Counter(clean_name(name) for name, _ in pairs)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has these names twice: {first_five(repeated)}"
            )
        return dict(pairs)

    try:
        texts_by_name = json.loads(content.decode("utf-8-sig"), object_pairs_hook=without_repeats)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{file} (PROMPT.DESCRIPTIONS) is not JSON ({one_line(error, 200)}): {SHAPE}"
        ) from error
    if not isinstance(texts_by_name, dict):
        raise DataError(f"{file} (PROMPT.DESCRIPTIONS) holds no names: {SHAPE}")
    for name, texts in texts_by_name.items():
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has no list of texts for {name!r}: {SHAPE}"
            )
        if len(texts) > MOST_TEXTS:
            raise DataError(
                f"{file} (PROMPT.DESCRIPTIONS) has {len(texts)} texts for {name!r}: at most "
                f"{MOST_TEXTS}"
            )
        lines = []
        for text in texts:
            line = " ".join(text.split())
            if not is_printable(line):
                raise DataError(
                    f"{file} (PROMPT.DESCRIPTIONS) has control characters or broken Unicode in a "
                    f"text of {name!r}: {line!r:.80}"
                )
            if line:
                lines.append(line)
        texts_by_name[name] = lines
    return texts_by_name
