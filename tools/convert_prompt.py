"""Makes a clean copy of a prompt checkpoint: tensors only, nothing that could run.

    python tools/convert_prompt.py output/.../prompt_learner/model.pth.tar-50 prompt.safetensors
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.plugins import load_plugins
from promptcal.trainers.vlm.prompt_files import EMBEDDED, convert_prompt


def main(argv: Sequence[str] | None = None) -> None:
    parser = tool_parser(__doc__)
    parser.add_argument("source", help="checkpoint as CoOp and Dassl write it, of which nothing is executed, or an "
                                       f"embedded prompt: {', '.join(EMBEDDED)}")
    parser.add_argument("target", type=Path, help="the copy, named .safetensors")
    args = parser.parse_args(argv)
    load_plugins(args.plugin)
    log_to_terminal()
    if args.target.suffix != ".safetensors":
        raise ConfigError(f"{args.target} must be named .safetensors: the copy is in that format")
    convert_prompt(args.source, args.target)


if __name__ == "__main__":
    run_tool(main)
