"""A process whose system refuses some calls, as a disk does that is mounted without locks or hard links."""
from __future__ import annotations

import ctypes
import platform
import struct

import pytest

CALLS = {"flock": 73, "link": 86, "linkat": 265}  # of Linux on x86-64
LOAD, JUMP_EQUAL, RETURN = 0x20, 0x15, 0x06  # the filter's instructions: load a word, compare, return
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
NO_NEW_PRIVILEGES, SECCOMP, FILTER = 38, 22, 2


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse(errno: int, *names: str) -> None:
    """From now on, and for good, the kernel answers this process's calls of these names with that error."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        pytest.skip("the numbers of these calls are Linux's on x86-64")
    steps = [struct.pack("HBBI", LOAD, 0, 0, 0)]  # the call's number
    for place, name in enumerate(names):
        steps.append(struct.pack("HBBI", JUMP_EQUAL, len(names) - place, 0, CALLS[name]))
    steps += [struct.pack("HBBI", RETURN, 0, 0, ALLOW), struct.pack("HBBI", RETURN, 0, 0, REFUSE | errno)]
    libc = ctypes.CDLL(None, use_errno=True)
    program = Program(len(steps), b"".join(steps))
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0):
        pytest.skip("this system lets no process refuse calls")
