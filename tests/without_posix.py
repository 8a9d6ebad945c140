"""Runs commands, `[[tool, argument, …], …]` in JSON, after all that Windows or macOS lacks is taken
away.

It stands for those systems where the tests run on Linux. The libraries are imported before.
"""
from __future__ import annotations

import builtins
import importlib
import io
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot  # noqa: F401
import torch._dynamo
import torch.distributed
import torch.utils.tensorboard

with suppress(ImportError):  # what `transformers` imports late
    import psutil  # noqa: F401
    import torch.distributed.elastic.timer  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

MODULES = ("fcntl", "grp", "posix", "pwd", "resource", "termios")
FUNCTIONS = (
    "fork", "forkpty", "getgid", "getloadavg", "getpgid", "getuid", "geteuid", "killpg", "mkfifo",
    "register_at_fork", "sched_getaffinity", "setsid", "uname",
)
FLAGS = ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK")
SIGNALS = ("SIGALRM", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGSTOP", "SIGUSR1", "SIGUSR2")


def take_away() -> None:
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in (*FUNCTIONS, *FLAGS):
        if hasattr(os, name):
            delattr(os, name)
    for name in SIGNALS:
        delattr(signal, name)
    os.environ.setdefault("USERNAME", "user")  # as Windows does
    os.symlink = refuse_link
    os.link = refuse_link
    os.kill = refuse_signal
    openers = [(builtins, "open"), (io, "open"), (os, "open"), (os, "stat"), (os, "readlink")]
    for module, name in openers:
        setattr(module, name, without_proc(getattr(module, name)))
    from promptcal.datasets.utils import lock  # after the parts are gone, as it would be elsewhere

    lock.PROCESSES_CAN_BE_ASKED_FOR = False


def refuse_link(*_: object, **__: object) -> None:
    raise OSError(1314, "A required privilege is not held by the client")


def refuse_signal(*_: object) -> None:
    raise AssertionError("os.kill sends Ctrl-C on Windows, whatever the signal's number")


def without_proc(function):
    def call(path, *args, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *args, **options)
    return call


def main() -> None:
    take_away()
    from promptcal.datasets.utils import cli

    for tool, *words in json.loads(sys.argv[1]):
        arguments = list(map(str, words))
        module = importlib.import_module(f"promptcal.tools.{tool}")
        status = cli.outcome(lambda main=module.main, arguments=arguments: main(arguments))
        print(f"{tool}: status {status}", flush=True)


if __name__ == "__main__":
    main()
