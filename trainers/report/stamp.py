"""Whether a report stands as it would be written again: a hash of all that it is made from, kept beside it."""
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from ...datasets.utils.files import read_json, write_json

PACKAGE = Path(__file__).resolve().parents[2]
CODE = (".py", ".html", ".css", ".js", ".json")
LIBRARIES = ("matplotlib", "numpy", "pillow", "jinja2")  # that draw and compute
RUN_FILES = ("results.json", "config.yaml", "predictions.npz")
STAMP, PAGE = "made_from.json", "report.html"


def made_from(runs: Sequence[Path]) -> str:
    """A hash of the runs' files, of the code that reads and draws them, and of the versions of its libraries."""
    code = (path for room in ("datasets", "trainers", "tools") for path in (PACKAGE / room).rglob("*"))
    files = [folder / name for folder in runs for name in RUN_FILES]
    files += sorted(path for path in code if path.suffix in CODE)
    digest = hashlib.sha256(repr([metadata.version(name) for name in LIBRARIES]).encode())
    for path in files:
        digest.update(f"\0{path}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def told_before(out: Path, made: str) -> list[str] | None:
    """The sentences that came with the report in `out`, if it was made from just this and is still there."""
    stamp = read_json(out / STAMP) if (out / PAGE).is_file() else None
    if not isinstance(stamp, dict) or stamp.get("made_from") != made:
        return None
    return stamp.get("sentences")


def forget(out: Path) -> None:
    """To be called before a report is written anew, so that one half written never counts as finished."""
    (out / STAMP).unlink(missing_ok=True)


def remember(out: Path, made: str, sentences: Sequence[str]) -> None:
    write_json(out / STAMP, {"made_from": made, "sentences": list(sentences)})
