"""A file lock: one process at a time on one machine."""
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
    """Holds the lock file `path` and removes it afterwards; waits, with a message, while another process holds it.

    The package `filelock` leaves its file behind, here in the data root. The system releases the lock of a process
    that dies. On a file system without locks the work continues without: callers must not rely on the lock to keep
    files intact.
    """
    file = take(path, work)
    try:
        yield
    finally:
        with suppress(OSError):  # unlink before closing: another process must not find a file that is being released
            path.unlink()
        os.close(file)


def take(path: Path, work: str) -> int:
    """The descriptor of the locked file."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.info("another process %s; waiting for it", work)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("%s: no locks here (%s): do not let two processes work at once", path, error.strerror)
            return file
        except BaseException:  # waiting was interrupted
            os.close(file)
            raise
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # the previous owner has removed this file: another process may hold a new one
