"""Each run's log.txt."""
from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler, WatchedFileHandler
from pathlib import Path

from ...datasets.utils.cli import LOGGER
from ...datasets.utils.errors import UserError
from ...datasets.utils.files import writing


class RunLog(WatchedFileHandler):
    """Ignores write errors: a full disk or a removed folder is reported when results are written."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def early_lines() -> Iterator[list[logging.LogRecord]]:
    """Collects log lines while a run has no folder yet."""
    handler = MemoryHandler(capacity=10_000, flushLevel=logging.CRITICAL + 1)
    LOGGER.addHandler(handler)
    try:
        yield handler.buffer
    finally:
        LOGGER.removeHandler(handler)


@contextmanager
def log_to_file(path: Path, early: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Writes log lines to `path` too, those that came `early` first. A resumed run appends."""
    if path.is_fifo():  # opening it would wait for a reader
        raise UserError(f"cannot write {path}: it is a pipe")
    with writing(path):
        handler = RunLog(path, encoding="utf-8", errors="surrogateescape")  # file names may be in any encoding
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    for record in early:
        handler.handle(record)
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        with suppress(OSError):
            handler.close()
