"""Each run's log.txt."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...datasets.utils.cli import LOGGER


class RunLog(logging.FileHandler):
    """A disk that is full is told by what matters more than a line of the log."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Adds `path` to where lines go, for a while; a continued run appends."""
    handler = RunLog(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)
        with suppress(OSError):
            handler.close()
