"""Trains the small CLIP that ships with the package, or draws a sheet of its training tiles.

    python tools/train_small_clip.py --out small_clip.safetensors
    python tools/train_small_clip.py --contact-sheet tiles.png

Training draws its own images, needs no data and takes less than half an hour on a CPU. The defaults made the file that
ships; a training with the same seed, machine, versions and threads gives the same file.
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

from promptcal.datasets.synthetic.tiles import contact_sheet
from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.vlm.small.training import Settings, make_small_clip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--out", type=Path, metavar="FILE", help="train, and write the weights here (.safetensors)")
    task.add_argument("--contact-sheet", type=Path, metavar="PNG", help="draw labelled example tiles and stop")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    for field in fields(Settings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default,
                            help="(default: %(default)s)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    log_to_terminal()
    if args.contact_sheet:
        if args.contact_sheet.suffix != ".png":
            raise ConfigError(f"--contact-sheet {args.contact_sheet}: the name must end in .png")
        contact_sheet().save(args.contact_sheet)
        return
    if args.out.suffix != ".safetensors":
        raise ConfigError(f"--out {args.out}: the name must end in .safetensors")
    if args.threads < 1:
        raise ConfigError(f"--threads is {args.threads}; it must be at least 1")
    torch.set_num_threads(args.threads)
    make_small_clip(args.out, Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)}))


if __name__ == "__main__":
    run_tool(main)
