"""Errors that a user can mend: the command-line tools print them as one line and exit with status 2."""
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
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


def run_tool(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status of `main`: 2 and one line for what a user can mend, 130 for Ctrl-C and 143 for
    SIGTERM, after everything that was open has been closed."""
    signal.signal(signal.SIGTERM, terminate)
    try:
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
    raise Terminated
