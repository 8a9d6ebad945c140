"""Names that come out of files: whether they stay in their folder, and whether they can be written anywhere."""
from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath, PureWindowsPath


def leads_out(path: str) -> bool:
    """Whether a path of a list or an archive may lead out of the folder that it is meant for, on any system."""
    if ".." not in path and ":" not in path and path[:1] not in ("/", "\\"):
        return False  # at once: there may be a million of them
    windows = PureWindowsPath(path)
    return bool(PurePosixPath(path).is_absolute() or windows.drive or windows.root or ".." in windows.parts)


def is_writable(text: str) -> bool:
    """Whether a name can stand in any file, page or terminal: valid Unicode, no control characters."""
    return text.isprintable() or not any(unicodedata.category(letter) in ("Cc", "Cs") for letter in text)
