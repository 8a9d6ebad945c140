"""Commands in processes of their own, for kills, signals, ranks, full disks and closed streams.

They are forked from a server that has imported torch (multiprocessing's forkserver), which saves
each of them seconds.
"""
from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO
from unittest import mock

PROJECT = Path(__file__).resolve().parents[1]
SERVER = multiprocessing.get_context("forkserver")
# No modules of the project: they read the environment while they are imported.
SERVER.set_forkserver_preload([
    "torch._dynamo", "torch.distributed", "torch.utils.tensorboard", "torchvision",
    "matplotlib.pyplot", "yacs.config", "tqdm", "tabulate", "safetensors.torch", "ftfy", "regex",
])


def user_environment(**changes: str) -> dict[str, str]:
    """The shell's environment: the tests' own number of threads is not a user's setting."""
    environment = dict(os.environ)
    environment.pop("OMP_NUM_THREADS", None)
    environment.update(changes)
    return environment


class Process:
    """`python tools/<name> args`, or a script elsewhere, while it runs.

    It has the methods of a Popen.
    """

    def __init__(
        self, name: str, *args: object, limit: int = resource.RLIM_INFINITY,
        out: BinaryIO | None = None, err: BinaryIO | None = None, **env: str,
    ) -> None:
        """
        Args:
            name: Of the script.
            args: Its arguments.
            limit: Of the size of files that it writes, in bytes.
            out: Its standard output; None = what `communicate` returns.
            err: Its standard error; None = what `communicate` returns.
            env: Is added to the user's environment.
        """
        self.out_file = tempfile.TemporaryFile()  # noqa: SIM115
        self.err_file = tempfile.TemporaryFile()  # noqa: SIM115
        # Files themselves cannot be sent to another process.
        out_end = Connection(os.dup((out or self.out_file).fileno()), readable=False)
        err_end = Connection(os.dup((err or self.err_file).fileno()), readable=False)
        words = [str(PROJECT / "tools" / name)]
        words += map(str, args)
        self.process = SERVER.Process(
            target=run_script, args=(words, user_environment(**env), limit, out_end, err_end))
        # The environment is the server's, when it is started.
        with mock.patch.dict(os.environ, user_environment(), clear=True):
            self.process.start()
        out_end.close()
        err_end.close()
        self.pid: int = self.process.pid

    def poll(self) -> int | None:
        """The exit status once it has ended; minus the signal's number if it was killed."""
        return self.process.exitcode

    returncode = property(poll)

    def wait(self, timeout: float = 300) -> int:
        self.process.join(timeout)
        assert self.poll() is not None, f"process {self.pid} does not end"
        return self.poll()

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Standard output and standard error, after its end."""
        self.wait(timeout)
        self.out_file.seek(0)
        self.err_file.seek(0)
        return self.out_file.read().decode(), self.err_file.read().decode()

    def send(self, sent: signal.Signals) -> None:
        os.kill(self.pid, sent)

    def send_all(self, sent: signal.Signals) -> None:
        """To it and to all that it has started, like Ctrl-C in a terminal."""
        os.killpg(self.pid, sent)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until the process has made something true."""
        until = time.monotonic() + 240
        while not condition():
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < until, "nothing happened"
            time.sleep(0.01)


def run_script(words: list[str], env: dict[str, str], limit: int, out: Connection, err: Connection) -> None:
    """In the new process."""
    os.setsid()
    redirect_streams(out.fileno(), err.fileno())
    # ignored where the tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(tempfile.gettempdir())
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # not run by multiprocessing


def redirect_streams(out: int, err: int) -> None:
    for fd, target in ((out, 1), (err, 2)):
        os.dup2(fd, target)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


def start_ranks(count: int, name: str, *args: object) -> list[Process]:
    """The processes that `torchrun --nproc-per-node count` would start, without torchrun itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(count):
        variables = {
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        ranks.append(Process(name, *args, **variables))
    return ranks


def forked(function: Callable[[], None]) -> subprocess.CompletedProcess:
    """Calls a function in a copy of the test process.

    Its changes end with it, and torch need not be imported again.

    Returns:
        What it prints, and its exit status: 0, that of its SystemExit, or 1 for any other
        exception.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        def in_child() -> None:
            import torch  # which the test has imported; this module does without

            # OpenMP's threads are not copied, and waiting for them would never end.
            torch.set_num_threads(1)
            redirect_streams(out.fileno(), err.fileno())
            function()

        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(function.__name__, child.exitcode, out.read(), err.read())
