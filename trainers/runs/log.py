"""Where log lines go: the terminal, and each run's log.txt."""
from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

LOGGER = logging.getLogger("promptcal")


class AboveTheBar(logging.Handler):
    """Writes lines above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record))


def log_to_terminal() -> None:
    handler = AboveTheBar()
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)


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
