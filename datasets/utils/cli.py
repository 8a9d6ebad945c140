"""Runs a command: one line per user error, exit status, signals, streams, log lines on a terminal,
plugins.
"""
from __future__ import annotations

import argparse
import io
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

from .errors import ConfigError, UserError, explaining_faults, one_line

LOGGER = logging.getLogger("promptcal")
# Seconds in which torchrun ends the other processes after the first one has printed their common
# error.
WAIT = 30.0
PLUGINS = "PROMPTCAL_PLUGINS"  # variable with module names, separated by commas or colons
PLUGIN_GROUP = "promptcal.plugins"  # entry points of installed packages


def torchrun_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns torchrun's variables for a task of a SLURM step (`srun`) with several tasks.

    They are empty if there is one task, or if torchrun has set them. `sbatch` alone starts one
    process, whatever its --ntasks, so SLURM_STEP_* are read, which only srun sets.

    Args:
        env: The environment variables of the process.
    """
    tasks = int(env.get("SLURM_STEP_NUM_TASKS", 1))
    if "RANK" in env or tasks < 2:
        return {}
    master = "127.0.0.1"
    if env.get("SLURM_STEP_NUM_NODES") != "1":
        # node[03-07,12] -> node03
        first_hosts = re.split(r",(?![^\[]*\])", env["SLURM_STEP_NODELIST"])[0]
        master = re.sub(r"\[(\w+).*", r"\1", first_hosts)
    # Each step has a port of its own: several may run on one machine.
    port = 20000 + (7 * int(env["SLURM_JOB_ID"]) + int(env["SLURM_STEP_ID"])) % 20000
    return {
        "RANK": env["SLURM_PROCID"],
        "LOCAL_RANK": env["SLURM_LOCALID"],
        "WORLD_SIZE": str(tasks),
        "MASTER_ADDR": env.get("MASTER_ADDR", master),
        "MASTER_PORT": env.get("MASTER_PORT", str(port)),
    }


os.environ.update(torchrun_variables(os.environ))  # at import, before anything reads them
IS_MAIN = os.environ.get("RANK", "0") == "0"  # a command may remove the variables later


class TerminalHandler(logging.Handler):
    """Writes lines above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line."""
        tqdm.write(self.format(record))


def log_to_terminal() -> None:
    """Shows log lines in the main process, once however many commands it runs."""
    LOGGER.setLevel(logging.INFO)  # in every process: each run has its own log file
    if IS_MAIN and not any(isinstance(handler, TerminalHandler) for handler in LOGGER.handlers):
        LOGGER.addHandler(TerminalHandler())
    root = logging.getLogger()
    if not root.handlers:  # open_clip's `logging.info` would give it one that repeats our lines
        others = logging.StreamHandler()
        others.setLevel(logging.WARNING)
        others.addFilter(lambda record: not record.name.startswith(LOGGER.name))
        root.addHandler(others)


class ToolParser(argparse.ArgumentParser):
    """A parser that answers a wrong command line with one line, without the usage."""

    unknown_option_hint = ""  # what else an unknown option may be meant for

    def error(self, message: str) -> NoReturn:
        """Ends with status 2 and one line, which names the help."""
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        if unknown:
            similar = get_close_matches(unknown[1], self._option_string_actions, n=1, cutoff=0.8)
            hint = f" Did you mean '{similar[0]}'?" if similar else self.unknown_option_hint
            message = f"unknown option {unknown[1]}.{hint}"
        else:
            message += "."
        command = self.prog
        if command.endswith(".py"):
            command = f"python tools/{command}"
        self.exit(2, f"error: {message} See {command} --help.\n")


def tool_parser(doc: str | None) -> ToolParser:
    """A command's parser: its docstring as help text, and --plugin, whose value is for
    `load_plugins`."""
    parser = ToolParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plugin", action="append", default=[], metavar="MODULE",
                        help="module that registers own methods, data sets, metrics or backbones; "
                             "may be repeated")
    return parser


def load_plugins(names: Iterable[str] = ()) -> None:
    """Imports plugins: those called `names`, of the environment variable, of installed packages.

    The variable then has the names too, so that processes which are started from here import the
    same plugins.

    Args:
        names: Names of modules. A text may hold several, separated by commas, colons or spaces.
    """
    modules: dict[str, None] = {}  # each once, in order
    for text in (os.environ.get(PLUGINS, ""), *names):
        for name in re.split(r"[,:\s]+", text):
            if name:
                modules[name] = None
    if modules:
        os.environ[PLUGINS] = ",".join(modules)
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)  # as `python -m` does
    for name in modules:
        import_plugin(name, f"plugin '{name}'")
    for entry in entry_points(group=PLUGIN_GROUP):
        package = entry.dist.name if entry.dist else "a package"
        import_plugin(entry.module, f"plugin '{entry.module}' of the installed package {package}")


def import_plugin(name: str, what: str) -> None:
    """Imports a plugin; any error becomes one line with the place where it was raised.

    Args:
        name: Name of the module.
        what: The plugin in words, for the message.
    """
    if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
        raise ConfigError(f"{what} is not a module's name: write it as in Python's import, such as "
                          f"lab.hinge for lab/hinge.py")
    try:
        import_module(name)
    except (Exception, SystemExit) as error:
        absent = ""
        if isinstance(error, ModuleNotFoundError) and error.name:
            absent = error.name
        # Not something that the plugin imports, but itself or a package that holds it.
        if absent and f"{name}.".startswith(f"{absent}."):
            raise ConfigError(f"{what} is not found: there is no module '{absent}' in "
                              f"{Path.cwd()} or among the installed packages") from error
        if isinstance(error, UserError):
            raise ConfigError(f"{what}: {error}") from error
        where = ""
        if not isinstance(error, SyntaxError):  # which says where it is
            for frame in traceback.extract_tb(error.__traceback__):
                if "importlib" not in frame.filename:
                    where = f" ({frame.filename}, line {frame.lineno})"
        raise ConfigError(f"{what} cannot be imported: {type(error).__name__}: "
                          f"{one_line(error, 300)}{where}") from error


def run_tool(main: Callable[[], int | None]) -> NoReturn:
    """Runs `main`, and ends the process with its status; see `outcome`."""
    # Streams may have been closed (`2>&-`). The next file to be opened would get their number, and
    # receive what is printed.
    while os.open(os.devnull, os.O_RDWR) <= 2:
        pass
    for number in ending_signals():
        signal.signal(number, terminate)
    threading.excepthook = report_thread
    output = Output(1, "w", closefd=False)
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedWriter(file), errors="backslashreplace", line_buffering=True)
        for file in (output, Output(2, "w", closefd=False))
    )
    status = outcome(main)
    sys.stdout.flush()  # Dassl replaces it
    # `| head` causes a BrokenPipeError, which is no fault.
    if output.lost and not isinstance(output.lost, BrokenPipeError):
        reason = output.lost.strerror
        print(f"error: cannot write the output: {reason}; finished work is kept", file=sys.stderr)
        status = status or 2
    raise SystemExit(status)


def outcome(main: Callable[[], int | None]) -> int:
    """Runs `main` and returns its status.

    It is 2, after one line, for a user error, 130 for Ctrl-C, 143 for SIGTERM and SIGUSR1.
    """
    try:
        with explaining_faults():
            return main() or 0
    except UserError as error:
        if IS_MAIN or not ended_by_torchrun():
            print(f"error: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, Terminated) as stopped:
        word = "interrupted"
        status = 130
        if isinstance(stopped, Terminated):
            word = "terminated"
            status = 143
        if IS_MAIN:
            print("; ".join([word, *getattr(stopped, "__notes__", ())]), file=sys.stderr)
        return status


@contextmanager
def resumable() -> Iterator[None]:
    """Marks a command that can be resumed, as a decorator: if interrupted, the message says so."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stopped:
        stopped.add_note("finished work is kept: the same command continues")
        raise


def ended_by_torchrun() -> bool:
    """Whether torchrun ends this process within WAIT seconds.

    Then the main process has failed, probably with the same error, and has printed it.
    """
    try:
        time.sleep(WAIT)
    except (Terminated, KeyboardInterrupt):
        return True
    return False


class Output(io.FileIO):
    """Standard output or error, which drops text that cannot be written.

    That is so if a disk is full, or if the reader of a pipe has ended.
    """

    lost: OSError | None = None  # error of the first write that failed

    def write(self, data: Any) -> int:
        """Writes what can be written, and drops the rest."""
        if not self.lost:
            try:
                return super().write(data) or 0
            except OSError as error:
                self.lost = error
        return len(data)


class Terminated(BaseException):
    """SIGTERM or SIGUSR1 as an exception, so that files are closed and locks released."""


def ending_signals() -> list[signal.Signals]:
    """Returns the signals that end a command: SIGTERM, and SIGUSR1 where there is one.

    `sbatch --signal=USR1@60` sends SIGUSR1 before a job's time is up. Windows has none.
    """
    names = ("SIGTERM", "SIGUSR1")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def terminate(*_: object) -> NoReturn:
    """Handles a signal by raising Terminated."""
    raise Terminated


def report_thread(failure: threading.ExceptHookArgs) -> None:
    """Reports errors of threads, except OSErrors of TensorBoard's writer.

    The main thread reports a full disk in one line.
    """
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


def tool(name: str) -> str:
    """Returns a tool's command, for messages: `promptcal NAME`, or the script of a checkout.

    A script is named only if there is a checkout and the user did not type `promptcal`.
    """
    is_checkout = (Path(__file__).resolve().parents[2] / "setup.py").is_file()
    if sys.argv[0].startswith("promptcal ") or not is_checkout:
        return f"promptcal {name}"
    return f"python tools/{name.replace('-', '_')}.py"


def counted(number: int, noun: str) -> str:
    """Returns a number with a word whose plural ends with s: `1 run`, `2 runs`.

    Args:
        number: The number.
        noun: The word in the singular.
    """
    return plural(number, noun, f"{noun}s")


def plural(number: int, one: str, several: str) -> str:
    """Returns a number with a word: `1 class`, `2 classes`.

    Args:
        number: The number.
        one: The word in the singular.
        several: The word in the plural, for 0 too.
    """
    return f"{number:,} {one if number == 1 else several}"
