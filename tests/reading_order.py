"""Prints how often a reader changes file between the command line and results.json.

    python tests/reading_order.py            # changes and files
    python tests/reading_order.py --list     # every function in the order of its first call

Each function counts once, when it is called for the first time: that is where a reader opens it.
The run is SoC on a few images of LandCover, with the settings that everybody has. Threads, which
make views, are left out.
"""
from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from types import CodeType, FrameType

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / ".package"))

# Imported before the calls are watched, which would slow the imports down.
import matplotlib.pyplot  # noqa: E402, F401
import torch.utils.tensorboard  # noqa: E402, F401
from promptcal.tools import train  # noqa: E402 - the package of this checkout

OWN_SCOPE = 0x02  # flag of code that has variables of its own: functions, not modules or classes
INNER_LOOPS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def files_in_reading_order(arguments: list[str]) -> list[tuple[str, str]]:
    """File and name of each function of the project that a command calls, in order of first
    calls."""
    met: set[CodeType] = set()
    functions: list[tuple[str, str]] = []
    finished: list[bool] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event == "return" and code.co_qualname == "RunDir.write_results":
            finished.append(True)  # results.json is written
        if event != "call" or finished or code in met or not code.co_flags & OWN_SCOPE:
            return
        met.add(code)
        if code.co_filename.startswith("<"):  # no file
            return
        file = Path(os.path.realpath(code.co_filename))
        if not file.is_relative_to(PROJECT) or file.is_relative_to(PROJECT / ".venv"):
            return
        if any(loop in code.co_qualname for loop in INNER_LOOPS):
            return
        if is_importing(frame):
            met.discard(code)
            return
        functions.append((file.relative_to(PROJECT).as_posix(), code.co_qualname))

    sys.setprofile(look)
    try:
        train.main(arguments)
    finally:
        sys.setprofile(None)
    return functions


def is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, whose decorators are no part of the way."""
    while frame is not None:
        if frame.f_code.co_name == "_find_and_load":
            return True
        frame = frame.f_back
    return False


def main() -> None:
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        functions = files_in_reading_order(
            [
                "--trainer", "SoC", "--dataset-config-file", "landcover", "TEST.LIMIT", "12",
                "TTA.VIEWS", "10",
            ]
        )
        os.chdir(here)
    changes = 0
    before = ""
    for file, name in functions:
        if before and file != before:
            changes += 1
        before = file
        if "--list" in sys.argv:
            print(f"{file}: {name}")
    files = {file for file, _ in functions}
    print(f"{changes} changes between {len(files)} files")


if __name__ == "__main__":
    main()
