"""A function in a copy of the test process: its changes end with it, and torch need not be imported again."""
from __future__ import annotations

import multiprocessing
import subprocess
import tempfile
from collections.abc import Callable

import torch
from processes import redirect_streams


def forked(function: Callable[[], None]) -> subprocess.CompletedProcess:
    """What the function prints, and its exit status: 0, that of its SystemExit, or 1 for any other exception."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        def in_child() -> None:
            torch.set_num_threads(1)  # OpenMP's threads are not copied, and waiting for them would never end
            redirect_streams(out.fileno(), err.fileno())
            function()

        child = multiprocessing.get_context("fork").Process(target=in_child)
        child.start()
        child.join()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(function.__name__, child.exitcode, out.read(), err.read())
