"""Makes a clean copy of a prompt checkpoint without anything that could run; or shows it as words.

    python tools/convert_prompt.py output/.../prompt_learner/model.pth.tar-50 prompt.safetensors
    python tools/convert_prompt.py model.pth.tar-50 prompt.safetensors --method CoOp --shots 2
    python tools/convert_prompt.py prompt.safetensors --words --backbone ViT-B/16
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import load_plugins, log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.vlm.prompt_files import BACKBONE, EMBEDDED, METADATA, convert_prompt


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument(
        "source",
        help="checkpoint as CoOp and Dassl write it, of which nothing is executed, or an "
        f"embedded prompt: {', '.join(EMBEDDED)}",
    )
    parser.add_argument("target", type=Path, nargs="?", help="the copy, named .safetensors")
    parser.add_argument("--words", action="store_true",
                        help="show the tokens nearest to each context vector")
    for key in METADATA:
        text = f"{key.replace('_', ' ')} to write into the copy"
        if key == BACKBONE:
            text += "; for --words, where the checkpoint does not name its own"
        parser.add_argument(f"--{key.replace('_', '-')}", default="", metavar="TEXT", help=text)
    args = parser.parse_intermixed_args(argv)  # the target may follow --words
    load_plugins(args.plugin)
    log_to_terminal()
    if not args.target and not args.words:
        raise ConfigError("nothing to do: give the name of the copy, or --words")
    if args.target and args.target.suffix != ".safetensors":
        raise ConfigError(f"{args.target} must be named .safetensors: the copy is in that format")
    if args.target:
        metadata = {}
        for key in METADATA:
            text = getattr(args, key)
            if text:
                metadata[key] = text
        convert_prompt(args.source, args.target, metadata)
    if args.words:
        from promptcal.trainers.vlm.prompt_words import prompt_table  # imports all of torch

        print(prompt_table(args.source, args.backbone))


if __name__ == "__main__":
    run_tool(main)
