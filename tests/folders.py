"""What lies in a folder, and Ctrl-C while it is written."""
from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

# Of a finished run.
RUN_FILES = ["config.yaml", "log.txt", "predictions.npz", "record.json", "results.json", "tensorboard"]


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


@contextmanager
def interrupted_at(name: str, count: int) -> Iterator[None]:
    """Ctrl-C at the end of the `count`-th time that a file of this name, such as `parts/*.npz`, is written.

    Every file of a run is written under another name and then renamed.
    """
    replace = os.replace
    written = 0

    def rename(source: Path, target: Path) -> None:
        nonlocal written
        replace(source, target)
        written += Path(target).match(name)
        if Path(target).match(name) and written == count:
            raise KeyboardInterrupt

    with mock.patch.object(os, "replace", rename):
        yield
