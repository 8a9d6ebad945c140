"""Errors that a user can mend: the command-line tools print them as one line and exit with status 2."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

LONGEST = 2000  # letters of a message; what is longer quotes a file that nobody wants on the screen


def one_line(text: object, length: int = LONGEST) -> str:
    """Anything as one short line that any terminal takes: no line breaks, no control characters, no lone surrogates,
    the middle of what is too long left out."""
    text = str(text)
    if len(text) > 3 * length:
        text = f"{text[: 2 * length]} {text[-length:]}"
    line = "".join(c if c.isprintable() or c in "\u200c\u200d" else "\N{REPLACEMENT CHARACTER}"
                   for c in " ".join(text.split()))  # the two joiners are parts of emoji and of words
    return line if len(line) <= length else f"{line[: length * 2 // 3]} … {line[-(length // 3 - 3):]}"


class UserError(ValueError):
    """Bad input. The message is one line that says what is wrong and what to do about it."""

    def __init__(self, message: object) -> None:
        super().__init__(one_line(message))


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
    shown = ", ".join(one_line(item, 240) for item in items[:5])
    return shown if len(items) <= 5 else f"{shown} and {len(items) - 5} more"


@contextmanager
def reading() -> Iterator[None]:
    """Around what reads a data root, or as a decorator: what the system refuses (permissions, a disk that is gone)
    becomes one line like any other fault of the data."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {error.filename or 'the data'}: {error.strerror or error}") from error


GPU_SIGNS = ("CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS", "NVML", "HIP error")
# Not "in DataLoader worker process 0", which is where an error of the program's was caught.
LIMIT_SIGNS = ("Too many open files", "can't start new thread")
WORKER_SIGNS = ("DataLoader worker (pid", "items of ancillary data")


def out_of_memory(error: BaseException) -> bool:
    """Python, numpy, CUDA, its libraries and torch's CPU allocator each have a way of their own to say it."""
    signs = ("out of memory", "DefaultCPUAllocator", "ALLOC_FAILED")
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or any(
        sign in str(error) for sign in signs)


def fault_of_machine(error: BaseException) -> bool:
    """Whether the machine, not the program, has failed."""
    return out_of_memory(error) or any(sign in str(error) for sign in (*GPU_SIGNS, *WORKER_SIGNS, *LIMIT_SIGNS))


@contextmanager
def explaining_faults() -> Iterator[None]:
    """What torch raises when the machine, not the program, has failed, as a line with the remedy."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        if out_of_memory(error):
            raise UserError("out of memory; what was finished is kept: use fewer TTA.EPISODES and "
                            "DATALOADER.NUM_WORKERS, TTA.JACOBIAN off, or DEVICE cpu") from error
        if "home directory" in str(error):  # pathlib's, on a user without one
            raise UserError("a path begins with ~, but this user has no home folder: write it out, or set HOME"
                            ) from error
        if any(sign in str(error) for sign in LIMIT_SIGNS):
            raise UserError("this shell allows too few open files or threads; what was finished is kept: raise "
                            "`ulimit -n` and `ulimit -u`, or set DATALOADER.NUM_WORKERS 0") from error
        if any(sign in str(error) for sign in GPU_SIGNS):
            reason = one_line(str(error).splitlines()[0], 160)
            raise UserError(f"the GPU has failed ({reason}); what was finished is kept: run the command again, with "
                            f"DEVICE cpu if it does not recover") from error
        if any(sign in str(error) for sign in WORKER_SIGNS):
            raise UserError("a process that makes views was killed, usually for want of memory; what was finished is "
                            "kept: use fewer DATALOADER.NUM_WORKERS, or give /dev/shm more space") from error
        raise
