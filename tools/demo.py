"""The main job on the embedded default: five methods, one land-cover set, one table, one picture.

    bash tools/demo.sh
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, resumable, run_tool
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.report.demo_summary import overview, sentences, standings
from promptcal.trainers.report.figures.run_pictures import write_figures_to_tensorboard
from promptcal.trainers.report.reading import read_run
from promptcal.trainers.report.stamp import forget, made_from, remember, told_before
from promptcal.trainers.report.write import write_report
from promptcal.trainers.runs.summary import result_table

TRAINERS = ("ZeroShot", "TPT", "CTPT", "OTPT", "SoC")
REFERENCE = "TPT"  # what the calibrated methods mend
EVIDENCE = (
    "What this is evidence of: how the methods behave on a small CLIP with the geometry of a real one, on tiles drawn "
    "by code. It says nothing of photographs or of OpenAI's models, nor which method is best there: the paper's claims "
    "are about ViT-B/16 and ViT-L/14 on real data."
)


@resumable
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("output/demo"), help="where runs and report go")
    parser.add_argument("--images", type=int, default=960, help="test tiles, spread over the classes; 960 are all")
    args = parser.parse_args(argv)
    log_to_terminal()
    print(f"Five methods on the same {args.images} test tiles of LandCover, which is drawn by code, with the small "
          f"CLIP that ships with promptcal.")
    # TPT's 64 views are encoded first and kept, so that the others, zero-shot too, only read them.
    results = {}
    for trainer in sorted(TRAINERS, key=lambda name: name == "ZeroShot"):
        cfg = build_cfg(trainer, "configs/datasets/landcover.yaml", flags=[
            "OUTPUT_DIR", args.out / trainer, "CACHE.DIR", args.out / "cache", "TEST.LIMIT", args.images])
        results[trainer] = build_trainer(cfg).run(draw=write_figures_to_tensorboard)
    told = make_report([args.out / trainer for trainer in TRAINERS], args.out / "report")
    print(f"\n{result_table([results[trainer] for trainer in TRAINERS])}\n")
    print("\n".join(told))
    print(f"\n{EVIDENCE}\n"
          f"\nthe picture of it:    {args.out}/report/figures/overview.png\n"
          f"everything on a page: {args.out}/report/report.html\n"
          f"curves of each run:   tensorboard --logdir {args.out}/report/tensorboard")


def make_report(runs: Sequence[Path], out: Path) -> list[str]:
    """Writes the report and returns what it shows in sentences; one that would come out the same is left as it is."""
    made = made_from(runs)
    told = told_before(out, made)
    if told is None:
        forget(out)
        found = standings(list(map(read_run, runs)), REFERENCE)
        write_report(runs, out, first=[overview(found, REFERENCE)], remarks=[EVIDENCE])
        told = sentences(found, REFERENCE)
        remember(out, made, told)
    return told


if __name__ == "__main__":
    run_tool(main)
