"""Real processes, for tests of kills, signals, ranks, full disks and streams."""
from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).resolve().parents[1]


def user_environment(**changes: str) -> dict[str, str]:
    """The environment of a user's shell, without the number of threads that the tests set."""
    return {**{key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}, **changes}


class Process(subprocess.Popen):
    """`python tools/<name> args`, or a script elsewhere, started from another folder and in a session of its own.

    No file that it writes may grow beyond `limit` bytes. Streams that are not given are read by `communicate`.
    """

    def __init__(self, name: str | Path, *args: object, limit: int = resource.RLIM_INFINITY,
                 out: IO | int = subprocess.PIPE, err: IO | int = subprocess.PIPE, **env: str) -> None:
        def prepare() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job ignores Ctrl-C

        super().__init__([sys.executable, PROJECT / "tools" / name, *map(str, args)], stdout=out, stderr=err, text=True,
                         env=user_environment(**env), cwd=tempfile.gettempdir(), start_new_session=True,
                         preexec_fn=prepare)

    def communicate(self, input: str | None = None, timeout: float | None = 300) -> tuple[str, str]:
        return super().communicate(input, timeout)

    def send(self, sent: signal.Signals) -> None:
        os.kill(self.pid, sent)

    def send_all(self, sent: signal.Signals) -> None:
        """To it and to all that it has started, as Ctrl-C in a terminal."""
        os.killpg(self.pid, sent)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until the process has made a condition true."""
        until = time.monotonic() + 240
        while not condition():
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < until, "nothing happened"
            time.sleep(0.01)


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def finish(name: str, *args: object, **env: str) -> str:
    """The output of a process that must end well."""
    process = Process(name, *args, **env)
    out, complaint = process.communicate(timeout=600)
    assert process.returncode == 0, complaint
    return out


def start_ranks(count: int, name: str, *args: object) -> list[Process]:
    """The processes that `torchrun --nproc-per-node count` would start, without torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
              "OMP_NUM_THREADS": 1}
    return [Process(name, *args, **{key: str(value) for key, value in {**shared, "RANK": k, "LOCAL_RANK": k}.items()})
            for k in range(count)]
