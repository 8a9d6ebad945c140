"""One command for all tools: `promptcal train ...` is `python tools/train.py ...`, with or without a checkout."""
from __future__ import annotations

import argparse
import ast
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from promptcal.datasets.utils.cli import run_tool
from promptcal.datasets.utils.errors import UnknownNameError
from promptcal.datasets.utils.registry import nearest

FIRST = ("demo", "train", "predict", "report", "reproduce")  # as they stand in the list; the others follow by name
OF_MAKERS = ("command", "train_small_clip")  # no commands of a user's


def commands() -> dict[str, str]:
    """Each tool's name as a command, and what it does: the first sentence of its file, which is not imported yet."""
    files = [file for file in Path(__file__).parent.glob("*.py") if file.stem not in (*OF_MAKERS, "__init__")]
    texts = {file.stem.replace("_", "-"): ast.get_docstring(ast.parse(file.read_bytes())) or "" for file in files}
    order = sorted(texts, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    return {name: texts[name].partition("\n")[0] for name in order}


def parse(argv: Sequence[str], known: dict[str, str]) -> argparse.Namespace:
    lines = "\n".join(f"  {name:16}{what}" for name, what in known.items())
    parser = argparse.ArgumentParser(
        "promptcal", description="Calibrated test-time adaptation of CLIP.",
        epilog=f"commands:\n{lines}\n\npromptcal COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter, usage="promptcal [--version] COMMAND ...",
    )
    parser.add_argument("--version", action="store_true", help="say which version this is")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own")
    args = parser.parse_args(argv)
    if not args.command and not args.version:
        parser.print_help()
    return args


def main(argv: Sequence[str] | None = None) -> int | None:
    known = commands()
    args = parse(sys.argv[1:] if argv is None else argv, known)
    if args.version:
        from promptcal import __version__

        print(f"promptcal {__version__}")
        return 0
    if not args.command:
        return 2
    name = args.command.removesuffix(".py").replace("_", "-")
    if name not in known:
        raise UnknownNameError(f"unknown command '{args.command}'.{nearest(name, known)} Known: {', '.join(known)}.")
    sys.argv = [f"promptcal {name}", *args.arguments]  # as usage lines and error messages name it
    tool = importlib.import_module(f"promptcal.tools.{name.replace('-', '_')}")
    tool.__doc__ = as_typed(tool.__doc__ or "")
    return tool.main(args.arguments)


def as_typed(text: str) -> str:
    """A help text with its examples in the form of this command: who has typed it may have no folder `tools`."""
    text = re.sub(r"(torchrun .*)tools/(\w+)\.py", r"\1-m promptcal \2", text)
    return re.sub(r"(python|bash) tools/(\w+)\.(py|sh)", lambda call: f"promptcal {call[2].replace('_', '-')}", text)


def run() -> NoReturn:
    """The console script."""
    run_tool(main)
