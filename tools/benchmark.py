"""Measures the engine beside the slow, obvious way: time, memory, views a second, operations.

    python tools/benchmark.py --quick
    python tools/benchmark.py --scale                   only the growth with the number of classes, up to 21,000
    python tools/benchmark.py --out output/benchmark

Needs no weights and no data: shapes are CLIP's, weights random. Everything is timed on one core, by what the processor
spends on it; still, close other programs first: they share its caches.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.tools.speed.suite import FULL, QUICK, SCALE, Suite, run
from promptcal.tools.speed.view_cases import pictures_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # holds reference.py


def parse(argv: Sequence[str] | None) -> tuple[Suite, Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--quick", action="store_true", help="ViT-B/16, up to 100 classes: under 4 minutes")
    how_much.add_argument("--scale", action="store_true", help="10 to 21,000 classes: half an hour, 6 GB of memory")
    parser.add_argument("--out", type=Path, default=Path("output/benchmark"), help="folder for tables, JSON and charts")
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
    if args.scale and args.classes:
        given["scale_classes"] = given.pop("classes")
        del given["memory_classes"]
    return replace(SCALE if args.scale else QUICK if args.quick else FULL, **given), args.out


def main(argv: Sequence[str] | None = None) -> None:
    log_to_terminal()
    suite, out = parse(argv)
    if suite.photos:
        pictures_of(suite.photos, out)  # what is wrong with it is told before anything is measured
    print(run(suite, out))
    print(f"\nwritten to {out}: benchmark.txt, benchmark.json, and charts")


if __name__ == "__main__":
    run_tool(main)
