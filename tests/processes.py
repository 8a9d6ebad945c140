"""Real processes that need not import torch: copies of a server that has, each with its own session, streams,
environment and end. Kills, signals, ranks and full disks meet them as they meet any other, three seconds earlier.

    python tests/processes.py FD     what `server` starts; it ends with the test process, whose end of FD closes
"""
from __future__ import annotations

import fcntl
import functools
import gc
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

PROJECT = Path(__file__).resolve().parents[1]
# Libraries alone: the project's own modules look at the environment while they are imported.
PRELOADED = ("torch", "torch._dynamo", "torch.distributed", "torch.utils.data", "torch.utils.tensorboard",
             "torchvision", "matplotlib.pyplot", "matplotlib.backends.backend_pdf", "matplotlib.backends.backend_svg",
             "yacs.config", "tqdm", "tabulate", "safetensors.torch", "ftfy", "regex")


def user_environment(**changes: str) -> dict[str, str]:
    """As the shell gives it: the tests' own number of threads is nothing that a user has set."""
    return {**{key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}, **changes}


class Process:
    """`python tools/<name> args`, or a script elsewhere, under way. As of a Popen: `pid`, `returncode`, `poll`, `wait`,
    `communicate`."""

    def __init__(self, name: str, *args: object, limit: int = resource.RLIM_INFINITY, out: BinaryIO | None = None,
                 err: BinaryIO | None = None, **env: str):
        """No file that it writes may grow beyond `limit` bytes; `env` comes on top of the user's environment. Streams
        that are not given are kept for `communicate`."""
        self.returncode: int | None = None
        (self.out, kept_out), (self.err, kept_err) = pipe(), pipe()
        asked = {"words": [str(PROJECT / "tools" / name), *map(str, args)], "limit": limit,
                 "cwd": tempfile.gettempdir(), "env": user_environment(**env)}
        own, theirs = socket.socketpair()
        with own, theirs, kept_out, kept_err:
            ends = (theirs, out or kept_out, err or kept_err)
            socket.send_fds(server(), [b"."], [end.fileno() for end in ends])
            self.news = own.makefile("rw")
        self.news.write(json.dumps(asked) + "\n")
        self.news.flush()
        self.pid = int(self.news.readline())

    def wait(self, timeout: float = 300) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < until, f"process {self.pid} does not end"
            time.sleep(0.01)
        return self.returncode

    def poll(self) -> int | None:
        """The status once it has ended; that of a killed one is the signal's number with a minus."""
        if self.returncode is None and not Path(f"/proc/{self.pid}").exists():
            self.returncode = int(self.news.readline())
            self.news.close()
        return self.returncode

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it has said on its two streams until its end."""
        self.wait(timeout)
        with self.out, self.err:
            return (self.out.read() or b"").decode(), (self.err.read() or b"").decode()

    def send(self, sent: signal.Signals) -> None:
        os.kill(self.pid, sent)

    def send_all(self, sent: signal.Signals) -> None:
        """To it and to all that it has started, as Ctrl-C in a terminal."""
        os.killpg(self.pid, sent)

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Until something has come true that this process brings about."""
        until = time.monotonic() + 240
        while not condition():
            assert self.poll() is None, self.communicate()
            assert time.monotonic() < until, "nothing happened"
            time.sleep(0.01)


def pipe() -> tuple[BinaryIO, BinaryIO]:
    """Both ends; it takes a megabyte, so that nobody needs to read while a process is under way."""
    out, into = os.pipe()
    fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(out, False)  # what a killed process has started may still hold the other end
    return os.fdopen(out, "rb"), os.fdopen(into, "wb")


def children(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def finish(name: str, *args: object, **env: str) -> str:
    """The output of a process that must end well."""
    process = Process(name, *args, **env)
    out, complaint = process.communicate(600)
    assert process.returncode == 0, complaint
    return out


def start_ranks(count: int, name: str, *args: object) -> list[Process]:
    """The processes that `torchrun --nproc-per-node count` would start, without the one that watches over them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
             "OMP_NUM_THREADS": 1}
    return [Process(name, *args, **{key: str(value) for key, value in {**place, "RANK": k, "LOCAL_RANK": k}.items()})
            for k in range(count)]


@functools.cache
def server() -> socket.socket:
    """The line to the server, which is started when the first process is asked for."""
    own, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                         env=user_environment(), start_new_session=True, stdin=subprocess.DEVNULL)
    return own


def serve(line: socket.socket) -> Sequence[str]:
    """Comes back in each copy, with the words of its command."""
    sys.modules["triton"] = None  # torch does without on a CPU, and it complains at the end of what is frozen
    for name in PRELOADED:
        __import__(name)
    del sys.modules["triton"]
    gc.freeze()  # or each copy would look through all of torch's objects once more at its end, for a second
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    while True:
        found, fds, _, _ = socket.recv_fds(line, 1, 3)
        if not found:
            raise SystemExit
        if os.fork() == 0:
            line.close()
            return copy(*fds)
        for fd in fds:
            os.close(fd)


def copy(news_fd: int, out: int, err: int) -> Sequence[str]:
    """In a copy of the server: tells number and status of the one that does the work, where it comes back."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=news_fd) as line:
        news = line.makefile("rw")
    asked = json.loads(news.readline())
    worker = os.fork()
    if worker:
        news.write(f"{worker}\n")
        news.flush()
        news.write(f"{os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])}\n")
        news.flush()
        os._exit(0)
    news.close()
    os.setsid()
    for fd, place in ((out, 1), (err, 2)):
        os.dup2(fd, place)
        os.close(fd)
    # Those of the server are set up for another kind of file.
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores Ctrl-C
    resource.setrlimit(resource.RLIMIT_FSIZE, (asked["limit"], asked["limit"]))
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    return asked["words"]


if __name__ == "__main__":
    sys.argv = list(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
