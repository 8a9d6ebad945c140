"""Errors that a user can mend: the command-line tools print them as one line and exit with status 2."""
from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn


class UserError(ValueError):
    """Bad input. The message is one line that says what is wrong and what to do about it."""


class ConfigError(UserError):
    """A setting that does not exist or has a value that cannot work."""


class UnknownNameError(ConfigError):
    """A trainer, data set or other registered name that nobody registered."""


class DataError(UserError):
    """A data set that is missing, incomplete or inconsistent."""


class WeightsError(UserError):
    """A weight file or prompt checkpoint that is missing, damaged or does not fit."""


def first_five(items: Sequence[object]) -> str:
    """The first five of many bad things, and how many more there are, for a message that stays readable."""
    shown = ", ".join(str(item) for item in items[:5])
    return shown if len(items) <= 5 else f"{shown} and {len(items) - 5} more"


@contextmanager
def reading() -> Iterator[None]:
    """Around what reads a data root, or as a decorator: what the system refuses (permissions, a disk that is gone)
    becomes one line like any other fault of the data."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {error.filename or 'the data'}: {error.strerror or error}") from error


def out_of_memory(error: BaseException) -> bool:
    """Python, numpy, CUDA, its libraries and torch's CPU allocator each have a way of their own to say it."""
    signs = ("out of memory", "DefaultCPUAllocator", "ALLOC_FAILED")
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or any(
        sign in str(error) for sign in signs)


@contextmanager
def explaining_faults() -> Iterator[None]:
    """What torch raises when the machine, not the program, has failed, as a line with the remedy."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            raise UserError("out of memory; what was finished is kept: use fewer TTA.EPISODES and "
                            "DATALOADER.NUM_WORKERS, TTA.JACOBIAN off, or DEVICE cpu") from error
        # Not "in DataLoader worker process 0", which is where an error of the program's was caught.
        if "DataLoader worker (pid" in str(error) or "items of ancillary data" in str(error):
            raise UserError("a process that makes views was killed, usually for want of memory; what was finished is "
                            "kept: use fewer DATALOADER.NUM_WORKERS, or give /dev/shm more space") from error
        raise


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
