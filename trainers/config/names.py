"""Short names: of files with a hash of their content, of backbones, and as parts of a path."""
from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from ...datasets.utils.files import read_regular

MAX_LENGTH = 100  # characters of a part of a run folder's path
SHOTS = re.compile(r"(.+) (\d+ shots?)")  # the label of a learnt prompt, such as `CoOp 2 shots`


def short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:8]


def path_safe(text: str) -> str:
    """`text` as a part of a path.

    A long one is cut and ends with a hash of the whole, because runs may differ in the rest.
    """
    safe = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
    if len(safe) <= MAX_LENGTH:
        return safe
    start = safe[: MAX_LENGTH - 9].rstrip("-.")
    return f"{start}-{short_hash(text.encode())}"


def file_label(name: str) -> str:
    """The short name of a prompt, a list or descriptions, with a hash of the file's content.

    CoOp names every prompt prompt_learner/model.pth.tar-<epoch>, so the folder above is the name.
    A file that cannot be read has a hash of its path. An embedded prompt is called by its name.
    """
    path = Path(name)
    content = b""
    with suppress(OSError, ValueError):
        content = read_regular(path)
    if not content and path.name == name:
        return name
    label = path.name.split(".")[0]
    if path.parent.name == "prompt_learner" and path.parent.parent.name:
        label = path.parent.parent.name
    return f"{label}-{short_hash(content or name.encode())}"


def backbone_name(name: str) -> str:
    """A backbone's short name.

    Of a file or folder it is the last name, after the family and the model if they are given.
    """
    family, colon, rest = name.partition(":")
    if not colon:
        return Path(name).stem if Path(name).suffix else name
    model, _, file = rest.partition("@")
    if Path(model).is_dir():
        model = Path(model).name
    parts = [family, model]
    if file:
        parts.append(Path(file).stem)
    return "-".join(parts)


def untuned_words(prompt: str) -> str:
    """What a learnt prompt without tuning is called: `CoOp, 2 shots, untuned`."""
    shots = SHOTS.fullmatch(prompt)
    if shots is not None:
        return f"{shots[1]}, {shots[2]}, untuned"
    return f"{prompt or 'CoOp prompt'}, untuned"
