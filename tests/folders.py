"""What lies in a folder."""
from __future__ import annotations

import json
from pathlib import Path

# Of a finished run.
RUN_FILES = [
    "config.yaml", "log.txt", "predictions.npz", "record.json", "results.json", "tensorboard",
]


def names(folder: Path) -> list[str]:
    """The names of files and folders in it, in order."""
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    """All files below it, by their paths in it."""
    files = {}
    for path in folder.rglob("*"):
        if path.is_file():
            files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return files


def results_of(run: Path) -> dict:
    """The content of results.json."""
    return json.loads((run / "results.json").read_text(encoding="utf-8"))
