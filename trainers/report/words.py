"""What runs, rows and columns are called, and the notes below tables. Everything reads records."""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..config.settings import SHOTS, setting_words, untuned_words
from ..registry import method_info
from ..runs.record import WORDS, Difference, RunRecord, value_label

PROMPT = "model.prompt.protocol"
# Characters that change the direction of writing, by which a name could look like another one.
REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
LONGEST = 40  # characters of a value in a label
PARTS = re.compile(r"[^\s/]+[\s/]*")  # words, and folders of a path, with what follows them
MANY = 6  # things that a note names before it says how many more there are

# Fields of a record that a row's label states where nothing else tells two rows apart.
FIELD_WORDS: Mapping[str, str] = {
    "method.source": "code {}",
    "numerics.engine": "engine {}",
    "numerics.precision": "{}",
    "numerics.tf32": "TF32 {}",
    "numerics.device_type": "on {}",
    "numerics.jacobian": "Jacobian {}",
    "views.pipeline": "views {}",
    "model.prompt.protocol": "prompt {}",
    "model.prompt.hash": "prompt {}",
    "model.prompt.words": "words {}",
    "model.prompt.kind": "prompt {}",
    "model.prompt.learnt_on": "learnt on {}",
    "model.weights": "weights {}",
    "data.listing": "order of images {}",
    "data.images": "images {}",
    "data.split": "split {}",
    "method.training.images": "training images {}",
    "numerics.part": "parts of {} images",
    "numerics.episodes": "{} images at once",
}
# Fields that hold the value of a setting, which has its own words.
STATE_SETTINGS = ("views.count", "views.augmix", "views.pixels.mean", "views.pixels.std",
                  "method.stream.order", "method.stream.correlation", "method.stream.reset",
                  "model.prompt.form", "model.prompt.position", "model.prompt.ensemble")
NEVER_NAMED = ("seed", "data.n", "data.dataset", "data.subset")


def method_name(record: RunRecord) -> str:
    """The method, or what takes its place in a run without adaptation."""
    if is_untuned_prompt(record):
        return untuned_words(prompt_words(record))
    return str(record.names.get("method") or method_info(str(record.method["trainer"])).label)


def is_untuned_prompt(record: RunRecord) -> bool:
    """Whether a run tests a learnt prompt without tuning, which is not zero-shot CLIP."""
    return starts_from_prompt(record) and method_info(str(record.method["trainer"])).zero_shot


def starts_from_prompt(record: RunRecord) -> bool:
    """Whether a run starts from a learnt prompt."""
    return record.get("model.prompt.kind") == "learnt"


def backbone_words(record: RunRecord) -> str:
    """The backbone as tables name it."""
    return str(record.names.get("backbone") or record.model.get("backbone"))


def dataset_words(record: RunRecord) -> str:
    """The data set as tables name it, with the corruption of its images."""
    name = record.dataset_name
    corruption = str(record.data.get("corruption") or "").replace("_", " ")
    if corruption and corruption not in name.replace("_", " "):
        name = f"{name} {corruption} {record.data.get('severity')}"
    return name


def corruption_of(record: RunRecord) -> tuple[str, object]:
    """The corruption of a run's images and its severity; ("", None) if there is none."""
    corruption = str(record.data.get("corruption") or "")
    if not corruption:
        return "", None
    return corruption, record.data.get("severity")


def column_words(record: RunRecord) -> str:
    """The data set, and which part of it was used. The number of images is stated elsewhere."""
    if record.part_words:
        return f"{dataset_words(record)} ({', '.join(record.part_words)})"
    return dataset_words(record)


def prompt_words(record: RunRecord) -> str:
    """What a learnt prompt adds to a label, such as `CoOp 2 shots`; "" for a hand-written one."""
    if not starts_from_prompt(record):
        return ""
    name = record.names.get("prompt")
    if name:
        return str(name)
    protocol = str(record.get(PROMPT) or "")
    if SHOTS.fullmatch(protocol):
        return protocol
    return f"prompt {protocol}".strip()


def text_words(record: RunRecord) -> str:
    """What the text features of a run were made from, for a caption."""
    prompt = record.model["prompt"]
    name = str(record.names.get("prompt") or "")
    if prompt.get("kind") == "words":
        return f"“{prompt.get('words')} [class].”"
    return name or str(prompt.get("words") or prompt.get("kind"))


def changed_words(record: RunRecord, without: Iterable[str] = ()) -> list[str]:
    """The settings of a run that are not defaults, in words; a learnt prompt is none of them."""
    hidden = set(without)
    words = []
    for key, (_, value) in record.changed.items():
        if key not in hidden:
            words.append(setting_words(key, value_label(value)))
    return words


def difference_words(difference: Difference, second: bool) -> list[str]:
    """What makes a row another one than a row with the same label, in words.

    Args:
        difference: Difference of two records.
        second: Whether to describe the second of them, otherwise the first.

    Returns:
        Words for each field that differs, such as `fp16`, `no AugMix` or `code 1a2b3c4d`.
    """
    words = []
    for path, values in difference.items():
        if path in NEVER_NAMED:
            continue
        value, other = (values[1], values[0]) if second else values
        text = short_value(value)
        if text == short_value(other):
            text = differing_part(str(value), str(other))
        if path in FIELD_WORDS:
            words.append(FIELD_WORDS[path].format(text))
        elif path in STATE_SETTINGS and value is not None:
            words.append(setting_words(WORDS[path], value))
        elif path in WORDS:
            words.append(f"{WORDS[path]} {text}")
        else:
            words.append(setting_words(path, value_label(value)))
    return words


def differing_part(text: str, other: str) -> str:
    """The end of a long text or path, from the first word or folder in which it differs from
    another; at least its last word.

    Args:
        text: The text to shorten.
        other: The text that it is told apart from.
    """
    words = PARTS.findall(text)
    other_words = PARTS.findall(other)
    start = 0
    for word, other_word in zip(words[:-1], other_words, strict=False):
        if word.rstrip(" /") != other_word.rstrip(" /"):
            break
        start += 1
    return f"… {''.join(words[start:])}"[:LONGEST]


def short_value(value: Any) -> str:
    """A value of a record in a label; hashes are cut."""
    if isinstance(value, Mapping):
        if value.get("plugin"):
            return str(value["plugin"])[:8]
        parts = [short_value(part) for part in value.values() if part not in (None, "")]
        return " ".join(parts)
    if value is None or value == "":
        return "not recorded"
    if isinstance(value, bool):
        return "on" if value else "off"
    text = str(value)
    if len(text) >= 16 and all(letter in "0123456789abcdef" for letter in text):
        return text[:8]
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def listed(words: Sequence[str], most: int = MANY) -> str:
    """A list for a note, such as `a, b and 3 more`.

    Args:
        most: How many are named; the others are counted.
    """
    # Labels such as `SoC, λ 10` have commas of their own.
    separator = ", "
    if any(", " in word for word in words):
        separator = "; "
    listing = separator.join(words[:most])
    if len(words) > most:
        listing += f" and {len(words) - most} more"
    return listing


def joined_with_and(words: Sequence[str]) -> str:
    """Words as `a, b and c`."""
    return joined(words, "and")


def joined_with_or(words: Sequence[str]) -> str:
    """Words as `a, b or c`."""
    return joined(words, "or")


def joined(words: Sequence[str], last: str) -> str:
    """Words with commas, and a conjunction before the last one.

    Args:
        last: The conjunction, such as `and`.
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def images_fact(counts: Mapping[str, Sequence[int]]) -> str:
    """The words on test images for a caption, without a full stop.

    Args:
        counts: Numbers of images, by label of the column.
    """
    words = []
    for label, numbers in counts.items():
        words.append(f"{label} {joined_with_and([f'{number:,}' for number in numbers])}")
    return f"Test images: {', '.join(words)}"


def plain_text(text: object) -> str:
    """A text without control characters, for a terminal: escapes in it have no effect."""
    letters = []
    for letter in str(text):
        is_control = unicodedata.category(letter) in ("Cc", "Cs") or letter in REORDERING
        if is_control and letter not in "\n\t":
            letters.append("?")
        else:
            letters.append(letter)
    return "".join(letters)
