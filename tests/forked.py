"""A function in a copy of the test process: what it changes is gone with it, and torch need not be imported again."""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable

import torch


def forked(function: Callable[[], None]) -> subprocess.CompletedProcess:
    """What the function prints, and its exit status: 0, that of its SystemExit, or 1 for any other exception."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            os._exit(in_child(function, out.fileno(), err.fileno()))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(function.__name__, status, out.read(), err.read())


def in_child(function: Callable[[], None], out: int, err: int) -> int:
    torch.set_num_threads(1)  # a team of OpenMP's threads is not copied: whoever counts on it waits for ever
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # noqa: SIM115
    status: object = 0
    try:
        function()
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status
