"""The frame of every command: one line for what a user can mend, an exit status, and log lines on the terminal."""
from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

from tqdm import tqdm

from .errors import UserError, explaining_faults

LOGGER = logging.getLogger("promptcal")


class AboveTheBar(logging.Handler):
    """Writes lines above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record))


def log_to_terminal() -> None:
    """Once a process, however many commands it runs."""
    if any(isinstance(handler, AboveTheBar) for handler in LOGGER.handlers):
        return
    handler = AboveTheBar()
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)


def run_tool(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status of `main`: 2 and one line for what a user can mend, 130 for Ctrl-C and 143 for
    SIGTERM, after everything that was open has been closed."""
    signal.signal(signal.SIGTERM, terminate)
    threading.excepthook = report_thread
    try:
        with explaining_faults():
            status = main() or 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        print("interrupted; what was finished is kept", file=sys.stderr)
        status = 130
    except Terminated:
        print("terminated; what was finished is kept", file=sys.stderr)
        status = 143
    raise SystemExit(status)


class Terminated(BaseException):
    """SIGTERM, as an exception, so that files are closed and locks released on the way out."""


def terminate(*_: object, owner: int = os.getpid()) -> None:
    if os.getpid() != owner:
        os._exit(143)  # a worker process, which inherited this handler
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # workers end too, which torch would report amid the closing
    raise Terminated


def report_thread(failure: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread leaves a full disk to the thread that writes through it, which reports it in one line."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)
