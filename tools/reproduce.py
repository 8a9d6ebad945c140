"""Makes a table or figure of the paper: runs what is not finished, then writes it beside the published one.

    python tools/reproduce.py list
    python tools/reproduce.py table1 --root DATA --dry-run
    python tools/reproduce.py all --demo
    torchrun --nproc-per-node 8 tools/reproduce.py all --root DATA
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import counted, log_to_terminal, resumable, run_tool
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.experiments.plan import Place
from promptcal.trainers.experiments.plan_table import show_list, show_plan
from promptcal.trainers.experiments.reproduce import make_plans, read_experiments, reproduce
from promptcal.trainers.experiments.runner import stand_alone
from promptcal.trainers.report.render import terminal


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME", help="an experiment of configs/experiments, all, or list")
    parser.add_argument("--root", default="", help="folder that holds the data sets")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="N test images a run, for a quick look")
    parser.add_argument("--only", nargs="+", default=[], metavar="WHAT", help="these methods, data sets or backbones")
    parser.add_argument("--backbone", default="", help="this one instead of the experiment's, as for tools/train.py")
    parser.add_argument("--dry-run", action="store_true", help="show the plan and what it will take, and stop")
    parser.add_argument("--demo", action="store_true", help="on the embedded data sets and backbone, in minutes")
    parser.add_argument("--output-dir", type=Path, default=Path("output"), help="where runs and outcomes go")
    parser.add_argument("--cache-dir", type=Path, help="where view features go (default: cache/ in the output)")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY VALUE", dest="opts",
                        help="settings for all runs, e.g. DATALOADER.NUM_WORKERS 16")
    return parser.parse_args(argv)


@resumable
def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if args.limit < 0:
        raise ConfigError(f"--limit is {args.limit}; it must be 0 (all images) or more")
    rank, world = stand_alone()
    log_to_terminal()
    place = Place(args.root, args.output_dir, args.cache_dir, args.demo, args.limit, tuple(args.opts), args.backbone)
    if args.name == "list":
        print(show_list(place))
        return 0
    experiments = read_experiments(args.name)
    plans = make_plans(experiments, place, args.only)
    if rank == 0:
        print(show_plan(plans, experiments, place))
    if args.dry_run:
        return 0
    tally, outcomes, problems = reproduce(experiments, plans, place, rank, world)
    for outcome in outcomes.values():
        for table in outcome.tables:
            print(f"\n{terminal(table, colour=sys.stdout.isatty())}")
    of_all = f"; {len(outcomes)} of {counted(len(plans), 'outcome')} written" if rank == 0 else " by this process"
    print(f"\n{counted(len(tally.done), 'run')} done now{of_all}")
    for name, outcome in outcomes.items():
        print(f"  {name}: {outcome.page}")
    for run, reason in tally.failed.items():
        print(f"failed: {run.described}: {reason}")
    for name, reason in problems.items():
        print(f"not written: {name}: {reason}")
    return 1 if tally.failed or problems else 0


if __name__ == "__main__":
    run_tool(main)
