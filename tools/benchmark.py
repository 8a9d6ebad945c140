"""Measures the engine beside the slow, obvious way: time, memory, views a second, operations.

    python tools/benchmark.py --quick
    python tools/benchmark.py --out output/benchmark

Needs no weights and no data: shapes are CLIP's, weights random. Close other programs first.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.tools.speed.benchmark import FULL, QUICK, Settings, run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # holds reference.py


def parse(argv: Sequence[str] | None) -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="ViT-B/16, up to 100 classes: 3 minutes on 2 cores")
    parser.add_argument("--out", type=Path, default=Path("output/benchmark"), help="folder for the table, JSON and PNG")
    parser.add_argument("--backbones", nargs="+", metavar="NAME",
                        help="ViT-B/16, ViT-L/14, tiny; or open_clip:MODEL/TAG, hf:FOLDER: their text side alone")
    parser.add_argument("--classes", nargs="+", type=int, metavar="K", help="numbers of classes of the text side")
    parser.add_argument("--photos", metavar="FOLDER", help="photographs that views are made of")
    parser.add_argument("--rounds", type=int, help="how often the ways take turns; medians are reported")
    args = parser.parse_args(argv)
    wanted = {
        "backbones": args.backbones, "classes": args.classes, "memory_classes": args.classes, "rounds": args.rounds,
        "photos": args.photos,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return replace(QUICK if args.quick else FULL, **given), args.out


def main(argv: Sequence[str] | None = None) -> None:
    log_to_terminal()
    settings, out = parse(argv)
    print(run(settings, out))
    print(f"\nwritten: {out / 'benchmark.json'}, benchmark.txt, benchmark.png")


if __name__ == "__main__":
    run_tool(main)
