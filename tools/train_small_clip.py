"""Trains the small CLIP that ships with the package.

    python tools/train_small_clip.py --out small_clip.safetensors

Training draws its own images, needs no data and takes less than half an hour on a CPU. The defaults
made the file that ships; a training with the same seed, machine, versions and threads gives the
same file.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import torch

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.vlm.small.training import Settings, make_small_clip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the weights, .safetensors"
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="threads of torch (default: %(default)s)"
    )
    for field in fields(Settings):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=type(field.default),
            default=field.default,
            help="(default: %(default)s)",
        )
    args = vars(parser.parse_args(argv))
    log_to_terminal()
    path = args.pop("out")
    threads = args.pop("threads")
    if path.suffix != ".safetensors" or threads < 1:
        raise ConfigError(
            f"--out must end in .safetensors and --threads be at least 1, not {path} and {threads}"
        )
    torch.set_num_threads(threads)
    make_small_clip(path, Settings(**args))


if __name__ == "__main__":
    run_tool(main)
