"""Each run's log.txt."""
from __future__ import annotations

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path

from ...datasets.utils.cli import LOGGER
from ...datasets.utils.files import writing


class RunLog(WatchedFileHandler):
    """A disk that is full, or a folder that somebody removes, is told by what matters more than a line of the log."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        pass


class Early(logging.Handler):
    """Keeps lines until there is a file for them."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def early_lines() -> Iterator[list[logging.LogRecord]]:
    """What is said while this lasts, for the log of a run whose folder is not known yet."""
    handler = Early()
    LOGGER.addHandler(handler)
    try:
        yield handler.records
    finally:
        LOGGER.removeHandler(handler)


@contextmanager
def log_to_file(path: Path, early: Sequence[logging.LogRecord] = ()) -> Iterator[None]:
    """Adds `path` to where lines go, for a while, those that came too `early` first; a continued run appends."""
    with writing(path):
        if path.is_fifo():  # which would be waited for
            raise OSError(errno.EINVAL, "Not a regular file")
        handler = RunLog(path, encoding="utf-8", errors="surrogateescape")  # file names may be of any alphabet
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
