"""One process at a time on one machine, for work that shares files."""
from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

logger = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Holds the lock file at `path`, which is gone afterwards; waits while another process holds it, and says so.

    By hand because `filelock` leaves its file behind, in a data root that should look as it did. The system frees the
    lock of a process that dies. A file system without locks goes on without: whoever uses this must not need it to
    keep files whole.
    """
    file = take(path, work)
    try:
        yield
    finally:
        with suppress(OSError):  # first the name, so that nobody finds a file whose lock is about to end
            path.unlink()
        os.close(file)


def take(path: Path, work: str) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process %s; waiting for it", work)
            with freeing(file):
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("%s: no locks here (%s): do not let two processes work at once", path, error.strerror)
            return file
        if os.fstat(file).st_nlink:  # else the one waited for has removed this file, and a third may have a new one
            return file
        os.close(file)


@contextmanager
def freeing(file: int) -> Iterator[None]:
    """Closes the file if waiting is interrupted."""
    try:
        yield
    except BaseException:
        os.close(file)
        raise
