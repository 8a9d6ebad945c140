"""Makes a clean copy of a prompt checkpoint without anything that could run.

    python tools/convert_prompt.py output/.../prompt_learner/model.pth.tar-50 prompt.safetensors
    python tools/convert_prompt.py model.pth.tar-50 prompt.safetensors --method CoOp --shots 2
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import load_plugins, log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.vlm.prompt_files import EMBEDDED, METADATA, convert_prompt


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument(
        "source",
        help="checkpoint as CoOp and Dassl write it, of which nothing is executed, or an "
        f"embedded prompt: {', '.join(EMBEDDED)}",
    )
    parser.add_argument("target", type=Path, help="the copy, named .safetensors")
    for key in METADATA:
        text = f"{key.replace('_', ' ')} to write into the copy"
        parser.add_argument(f"--{key.replace('_', '-')}", default="", metavar="TEXT", help=text)
    args = parser.parse_args(argv)
    load_plugins(args.plugin)
    log_to_terminal()
    if args.target.suffix != ".safetensors":
        raise ConfigError(f"{args.target} must be named .safetensors: the copy is in that format")
    metadata = {}
    for key in METADATA:
        text = getattr(args, key)
        if text:
            metadata[key] = text
    convert_prompt(args.source, args.target, metadata)


if __name__ == "__main__":
    run_tool(main)
