"""Five methods on an embedded data set with an embedded model: a table, a figure and a report.

    bash tools/demo.sh
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import ToolParser, counted, log_to_terminal, resumable, run_tool
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.summary import result_table

TRAINERS = ("ZeroShot", "TPT", "CTPT", "OTPT", "SoC")
# TPT goes first: the others, zero-shot too, read the features of its 64 views from the cache.
ORDER_OF_RUNS = ("TPT", "CTPT", "OTPT", "SoC", "ZeroShot")
REFERENCE = "TPT"  # the method that the calibrated ones improve on
EVIDENCE = (
    "What this is evidence of: how the methods behave on a small CLIP with the geometry of a real "
    "one, on tiles drawn by code. It says nothing about photographs or OpenAI's models, nor which "
    "method is best there: the paper's claims are about ViT-B/16 and ViT-L/14 on real data."
)


@resumable()
def main(argv: Sequence[str] | None = None) -> None:
    parser = ToolParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("output/demo"),
                        help="folder for runs and report")
    parser.add_argument("--images", type=int, default=960,
                        help="test tiles, spread over the classes; there are 960")
    args = parser.parse_args(argv)
    if not 1 <= args.images <= 960:
        parser.error("--images must be from 1 to 960")
    log_to_terminal()
    print(
        f"Five methods on the same {counted(args.images, 'test tile')} of LandCover, which is "
        "drawn by code, with the small CLIP that ships with promptcal."
    )
    results = {}
    for trainer in ORDER_OF_RUNS:
        flags = ["OUTPUT_DIR", args.out / trainer, "CACHE.DIR", args.out / "cache",
                 "TEST.LIMIT", args.images]
        cfg = build_cfg(trainer, "configs/datasets/landcover.yaml", flags=flags)
        results[trainer] = build_trainer(cfg).run()
    # Imported after the runs: matplotlib is not part of them.
    from promptcal.trainers.report.arrange import arrange
    from promptcal.trainers.report.core import Additions, make_tests, measure, report
    from promptcal.trainers.report.figures.reliability import overview
    from promptcal.trainers.report.layout import default_layout
    from promptcal.trainers.report.load import read_run
    from promptcal.trainers.report.tensorboard_figures import write_tensorboard_figures

    runs = []
    for trainer in TRAINERS:
        write_tensorboard_figures(args.out / trainer)
        runs.append(read_run(args.out / trainer, trainer))
    layout = default_layout(baseline=REFERENCE)
    measured = measure(runs, layout)
    (tests,) = make_tests(arrange(measured.test), layout)  # one table: one data set, one model
    figure = overview(tests.grid, tests.against_baseline, tests.baseline)
    additions = Additions(notes=[EVIDENCE], figures=[figure])
    report(runs, layout, args.out / "report", additions, measured)
    print(f"\n{result_table([results[trainer] for trainer in TRAINERS])}\n")
    if tests.verdict is not None:
        for sentence in (tests.verdict.sentence, *tests.verdict.findings):
            print(sentence)
    print(f"\n{EVIDENCE}\n"
          f"\nas a figure:          {args.out}/report/figures/overview.png\n"
          f"everything on a page: {args.out}/report/report.html\n"
          f"curves of each run:   promptcal tensorboard {args.out}")


if __name__ == "__main__":
    run_tool(main)
