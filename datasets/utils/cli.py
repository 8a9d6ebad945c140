"""The frame of every command: one line for what a user can mend, an exit status, and log lines on the terminal."""
from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TextIO

from tqdm import tqdm

from .errors import UserError, explaining_faults

LOGGER = logging.getLogger("promptcal")
FIRST = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun started, or alone
OTHERS_WAIT = 30.0  # seconds in which torchrun ends the other processes once the first has told their common mistake


class AboveTheBar(logging.Handler):
    """Writes lines above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record))


def log_to_terminal() -> None:
    """Once a process, however many commands it runs, and in the first of several processes, which speaks for all."""
    LOGGER.setLevel(logging.INFO)  # in all of them: each run has its own log
    if not FIRST or any(isinstance(handler, AboveTheBar) for handler in LOGGER.handlers):
        return
    handler = AboveTheBar()
    handler.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.addHandler(handler)


def run_tool(main: Callable[[], int | None]) -> NoReturn:
    """Ends the process with the status of `main`; see `outcome`."""
    speak_utf8()
    keep_streams_open()
    signal.signal(signal.SIGTERM, terminate)
    threading.excepthook = report_thread
    output = sys.stdout = Output(sys.stdout)
    sys.stderr = Output(sys.stderr)
    status = outcome(main)
    sys.stdout.flush()  # which Dassl replaces by one of its own
    output.flush()
    lost = output.lost
    if lost and not isinstance(lost, BrokenPipeError):  # a reader like `head` has seen what it wanted
        print(f"error: cannot write the output: {lost.strerror}; what was finished is kept", file=sys.stderr)
        status = status or 2
    raise SystemExit(status)


def outcome(main: Callable[[], int | None]) -> int:
    """Runs `main` and returns its status: 2 and one line for what a user can mend, 130 for Ctrl-C and 143 for SIGTERM,
    after everything that was open has been closed."""
    try:
        with explaining_faults():
            return main() or 0
    except UserError as error:
        if FIRST or not ended_by_torchrun():
            print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        tell_first("; ".join(["interrupted", *getattr(stopped, "__notes__", ())]))
        return 130
    except Terminated as stopped:
        tell_first("; ".join(["terminated", *getattr(stopped, "__notes__", ())]))
        return 143


def resumable(main: Callable[..., int | None]) -> Callable[..., int | None]:
    """Of a command that goes on where it was interrupted: then it says so."""

    @wraps(main)
    def run(*given: object) -> int | None:
        try:
            return main(*given)
        except (KeyboardInterrupt, Terminated) as stopped:
            stopped.add_note("what was finished is kept: the same command continues")
            raise

    return run


def tell_first(line: str) -> None:
    if FIRST:
        print(line, file=sys.stderr)


def ended_by_torchrun() -> bool:
    """Whether the first process has met the same mistake, has told it, and torchrun ends the others for it. Torchrun
    then reports the failure once more in its own words, which a process that fails cannot prevent."""
    try:
        time.sleep(OTHERS_WAIT)
    except (Terminated, KeyboardInterrupt):
        return True
    return False


class Output:
    """Standard output or error that may be full, or a pipe whose reader has gone: what follows is dropped, because the
    work matters more than its log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.lost: OSError | None = None
        stream.reconfigure(errors="backslashreplace")  # names that the terminal's alphabet lacks

    def write(self, text: str) -> int:
        try:
            return self.stream.write(text)
        except OSError as error:
            self.give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.stream.flush()
        except OSError as error:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """What is still in buffers goes nowhere, so that no later flush, at exit for one, fails again."""
        self.lost = self.lost or error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def speak_utf8() -> None:
    """In a locale that knows no more than ASCII, Python takes a path like `é` for bytes without meaning, which
    TensorBoard for one cannot write: begins again with UTF-8, which all files here are in."""
    if sys.getfilesystemencoding().lower() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


def keep_streams_open() -> None:
    """Of a command that was started with one of them closed (`2>&-`): the next file to be opened would take its place,
    and receive what is printed."""
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


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


def tool(name: str) -> str:
    """How to call a tool in a remedy: as the one command where that was typed, or where there is no folder `tools`."""
    if sys.argv[0].startswith("promptcal ") or not (Path(__file__).resolve().parents[2] / "setup.py").is_file():
        return f"promptcal {name}"
    return f"python tools/{name.replace('-', '_')}.py"


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
