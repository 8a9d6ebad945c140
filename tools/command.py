"""One command for all tools: `promptcal train ...` is `python tools/train.py ...`, with or without
a checkout.
"""
from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from promptcal import __version__
from promptcal.datasets.utils.cli import run_tool
from promptcal.datasets.utils.errors import UnknownNameError
from promptcal.datasets.utils.registry import nearest

COMMANDS = (
    "demo",
    "train",
    "predict",
    "report",
    "tensorboard",
    "reproduce",
    "export",
    "download",
    "check-data",
    "convert-prompt",
    "new-method",
    "benchmark",
    "doctor",
)
# A file tools/tensorboard.py would hide the package of that name from the other scripts.
OTHER_FILES = {"tensorboard": "tensorboard_runs"}


def module_of(name: str) -> str:
    """The file of a command."""
    return OTHER_FILES.get(name) or name.replace("-", "_")


def command_of(module: str) -> str:
    """The command of a file."""
    for name, file in OTHER_FILES.items():
        if module == file:
            return name
    return module.replace("_", "-")


def summary(name: str) -> str:
    """The first line of a tool's docstring, read without importing the tool."""
    source = Path(__file__).with_name(f"{module_of(name)}.py").read_bytes()
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def main(argv: Sequence[str] | None = None) -> int | None:
    lines = "\n".join(f"  {name:16}{summary(name)}" for name in COMMANDS)
    parser = argparse.ArgumentParser(
        "promptcal",
        description="Calibrated test-time adaptation of CLIP.",
        usage="promptcal [--version] COMMAND ...",
        epilog=f"commands:\n{lines}\n\nSee also: promptcal COMMAND --help",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"promptcal {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of the commands below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the command")
    args = parser.parse_args(argv)
    if not args.command:
        parser.print_help()
        return 2
    name = command_of(args.command.removesuffix(".py"))
    if name not in COMMANDS:
        raise UnknownNameError(
            f"unknown command '{args.command}'.{nearest(name, COMMANDS)} Known: "
            f"{', '.join(COMMANDS)}."
        )
    sys.argv = [f"promptcal {name}", *args.arguments]  # for usage lines and error messages
    tool = importlib.import_module(f"promptcal.tools.{module_of(name)}")
    tool.__doc__ = as_typed(tool.__doc__ or "")
    return tool.main(args.arguments)


def as_typed(text: str) -> str:
    """A help text with its examples in the form `promptcal train`, because an installed package has
    no folder tools.
    """
    text = re.sub(r"(torchrun .*)tools/(\w+)\.py", r"\1-m promptcal \2", text)
    return re.sub(
        r"(python|bash) tools/(\w+)\.(py|sh)", lambda call: f"promptcal {command_of(call[2])}", text
    )


def run() -> NoReturn:
    """The console script."""
    run_tool(main)
