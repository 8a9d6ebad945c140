"""Defines errors that a user can fix. Commands print them as one line and exit with status 2."""
from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MAX_LENGTH = 2000  # characters of a message; longer ones are shortened


def one_line(text: object, length: int = MAX_LENGTH) -> str:
    """Returns anything as one line for any terminal, without control characters.

    Args:
        text: The text, usually an error's message.
        length: Largest number of letters of the line; the middle of a longer text is left out.
    """
    text = str(text)
    if len(text) > 3 * length:
        text = f"{text[: 2 * length]} {text[-length:]}"
    letters = []
    for letter in " ".join(text.split()):
        # The two joiners are parts of emoji and of words.
        is_shown = letter.isprintable() or letter in "\u200c\u200d"
        letters.append(letter if is_shown else "\N{REPLACEMENT CHARACTER}")
    line = "".join(letters)
    if len(line) <= length:
        return line
    beginning = line[: length * 2 // 3]
    end = line[-(length // 3 - 3) :]
    return f"{beginning} … {end}"


class UserError(ValueError):
    """Bad input. The message is one line that says what is wrong and what to do about it."""

    def __init__(self, message: object) -> None:
        super().__init__(one_line(message))


class ConfigError(UserError):
    """A setting that does not exist or has a value that cannot work."""


class UnknownNameError(ConfigError):
    """A trainer, data set or other name that is not registered."""


class DataError(UserError):
    """A data set that is missing, incomplete or inconsistent."""


class WeightsError(UserError):
    """A weight file or prompt checkpoint that is missing, damaged or does not fit."""


def first_five(items: Sequence[object]) -> str:
    """Returns the first five of many items and the number of the others, for a readable message."""
    first = ", ".join(one_line(item, 240) for item in items[:5])
    if len(items) <= 5:
        return first
    return f"{first} and {len(items) - 5} more"


@contextmanager
def reading() -> Iterator[None]:
    """Turns an OSError of code that reads a data root into a DataError; also as a decorator."""
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read {error.filename or 'the data'}: "
                        f"{error.strerror or error}") from error


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: in Python, numpy or torch, on a CPU or a GPU.

    torch's CPU allocator and cuBLAS raise plain RuntimeErrors, which are known by their text.
    """
    # The type is known by its name, because this module does not import torch.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if not isinstance(error, RuntimeError):
        return False
    return "DefaultCPUAllocator" in str(error) or "ALLOC_FAILED" in str(error)


def machine_fault(error: BaseException) -> str:
    """Returns what happened and the remedy, if the machine has failed and not the program.

    Otherwise it returns "".
    """
    if out_of_memory(error):
        return ("out of memory; finished parts are kept: use fewer TTA.EPISODES and "
                "DATALOADER.NUM_WORKERS, TTA.JACOBIAN off, or DEVICE cpu")
    # Before version 2.8 torch has no type for this.
    if type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error"):
        first_line = str(error).partition("\n")[0]
        return (f"the GPU has failed ({one_line(first_line, 160)}); finished parts are kept: run "
                f"the command again, with DEVICE cpu if it does not recover")
    too_many_files = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
    too_many_threads = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if too_many_files or too_many_threads:
        return ("this shell allows too few open files or threads; finished parts are kept: raise "
                "`ulimit -n` and `ulimit -u`, or set DATALOADER.NUM_WORKERS 1")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return (f"a path is too long ({one_line(error.filename, 80)}): a name may have 255 letters "
                f"and a path 4,096; use shorter ones")
    if isinstance(error, RuntimeError) and "home directory" in str(error):  # of Path.expanduser
        return "a path begins with ~, but this user has no home folder: write it out, or set HOME"
    return ""


@contextmanager
def explaining_faults() -> Iterator[None]:
    """Turns a fault of the machine into a UserError with the remedy; also as a decorator."""
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:
        line = machine_fault(error)
        if line:
            raise UserError(line) from error
        raise
