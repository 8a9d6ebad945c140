"""Makes tables and figures of the paper next to the published ones; runs what is not finished.

    python tools/reproduce.py list
    python tools/reproduce.py table1 --root DATA --dry-run
    python tools/reproduce.py table1 lambda --demo
    python tools/reproduce.py all --demo
    python tools/reproduce.py all --root DATA --jobs 8
    python tools/reproduce.py all --root DATA --cluster slurm --slurm partition=gpu gres=gpu:1
    time=240
"""
from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

if __name__ == "__main__":  # take the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import (
    load_plugins,
    log_to_terminal,
    resumable,
    run_tool,
    tool_parser,
)
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.registry import nearest
from promptcal.trainers.experiments.definition import experiment_file, list_experiments

# Of the jobs of a SLURM cluster, under submitit's names. A job is one process, so numbers of nodes
# and tasks are not among them.
SLURM_TIME = 240  # minutes of a job; a group that takes longer is continued by the next one
ARRAY_PARALLELISM = 32  # jobs that run at the same time
SLURM_NUMBERS = ("time", "cpus_per_task", "gpus_per_node", "gpus_per_task", "signal_delay_s")
SLURM_TEXTS = (
    "partition", "account", "qos", "gres", "constraint", "exclude", "nodelist", "mem",
    "mem_per_cpu", "mem_per_gpu", "comment", "mail_type", "mail_user", "dependency",
)
SLURM_UNITS = {"time": " of minutes", "signal_delay_s": " of seconds"}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = tool_parser(__doc__)
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", default=["list"],
        help="experiments of configs/experiments, yaml files of your own, all, or list (default)")
    add("--root", default="", help="folder that holds the data sets")
    add("--limit", type=int, default=0, metavar="N", help="N test images per run, for a quick look")
    add("--quick", action="store_true",
        help="zero-shot alone, one seed: for verify a first check of weights, preprocessing, class "
        "names and split")
    add("--only", nargs="+", default=[], metavar="NAME",
        help="only these methods, data sets or backbones")
    add("--add", nargs="+", default=[], metavar="NAME", help="further methods or data sets")
    add("--backbone", default="",
        help="replaces the experiment's backbones; as for tools/train.py")
    add("--jobs", type=int, default=1, metavar="N",
        help="compute in N processes, each on one GPU if there are GPUs")
    add("--cluster", choices=["slurm"], help="compute as jobs of a cluster (promptcal[slurm])")
    add(
        "--slurm",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="options of the jobs, such as partition=gpu gres=gpu:1 cpus_per_task=8 time=240 "
        "(minutes)",
    )
    add("--array-parallelism", type=int, default=ARRAY_PARALLELISM, metavar="N",
        help=f"jobs that run at the same time (default: {ARRAY_PARALLELISM})")
    add("--detach", action="store_true", help="submit the jobs and do not wait for them")
    add(
        "--overwrite",
        action="store_true",
        help="compute finished runs of other data, weights, code or settings again, in their "
        "folders",
    )
    add("--dry-run", action="store_true", help="show the plan, its time and disk space, and stop")
    add("--demo", action="store_true", help="on the embedded data sets and backbone, in minutes")
    add("--output-dir", type=Path, default=Path("output"),
        help="where runs and outcomes are written")
    add("--cache-dir", type=Path,
        help="where view features are kept (default: cache/ in the output)")
    add(
        "--choose",
        action="append",
        default=[],
        metavar="SETTING",
        help="a swept setting, such as LAMBDA: add its value chosen on validation runs, and by "
        "leave one data set out",
    )
    add("--choose-by", default="ece", metavar="METRIC", help="the metric by which it is chosen")
    add("--baseline", default="", metavar="NAME",
        help="the method that others are compared with (default: as in the paper's tables)")
    add("--ours", action="append", default=[], metavar="NAME",
        help="the method whose rows state their difference from the baseline; may be given several "
        "times")
    add("--set", nargs="+", default=[], metavar="KEY VALUE", dest="opts",
        help="settings for all runs, e.g. DATALOADER.NUM_WORKERS 16")
    return parser.parse_args(argv)


def check_options(args: argparse.Namespace) -> None:
    """Refuses options that are out of range or exclude each other."""
    for name in args.names:
        if name != "all":
            experiment_file(name)
    if args.limit < 0:
        raise ConfigError(f"--limit is {args.limit}; it must be 0 (all images) or more")
    if args.jobs < 1:
        raise ConfigError(f"--jobs is {args.jobs}; it must be 1 or more")
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise ConfigError("reproduce starts its own processes: use --jobs N instead of torchrun")
    if args.cluster and args.jobs > 1:
        raise ConfigError(
            "--cluster and --jobs exclude each other: --array-parallelism N limits the "
            "cluster's jobs"
        )
    if not args.cluster and (args.slurm or args.detach):
        raise ConfigError("--slurm and --detach are for jobs of a cluster: add --cluster slurm")


def parse_slurm(pairs: Sequence[str]) -> dict[str, str | int]:
    """The parameters of submitit's jobs from the pairs of --slurm, such as `partition=gpu`."""
    parameters: dict[str, str | int] = {"time": SLURM_TIME}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.removeprefix("--").replace("-", "_")
        if not (equals and key and value and value.isprintable()):
            raise ConfigError(f"--slurm {pair}: write KEY=VALUE, such as partition=gpu")
        if key not in (*SLURM_NUMBERS, *SLURM_TEXTS):
            known = sorted((*SLURM_NUMBERS, *SLURM_TEXTS))
            raise ConfigError(f"--slurm {pair}: unknown key '{key}'.{nearest(key, known)} Known: "
                              f"{', '.join(known)}.")
        if key in SLURM_TEXTS:
            parameters[key] = value
            continue
        if not value.isdecimal() or int(value) == 0:
            unit = SLURM_UNITS.get(key, "")
            raise ConfigError(
                f"--slurm {pair}: {key} must be a whole number{unit}, 1 or more")
        parameters[key] = int(value)
    return parameters


def check_slurm() -> None:
    """Refuses if jobs cannot be submitted from here."""
    if not find_spec("submitit"):
        raise ConfigError(
            "--cluster slurm needs submitit: pip install -e '.[slurm]' in promptcal's folder"
        )
    if not shutil.which("sbatch"):
        raise ConfigError(
            "--cluster slurm needs sbatch, which is not in PATH: give the command on a "
            "machine of the cluster from which jobs are submitted, or use --jobs N on "
            "this one"
        )


@resumable()
def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    if "list" in args.names:
        print(list_experiments())
        return 0
    check_options(args)
    slurm = parse_slurm(args.slurm)
    if args.array_parallelism < 1:
        raise ConfigError(f"--array-parallelism is {args.array_parallelism}; it must be 1 or more")
    if args.cluster and not args.dry_run:
        check_slurm()
    load_plugins(args.plugin)
    # Imported here because they import torch, which the list and a usage error need not wait for.
    from promptcal.trainers.experiments.cluster import Cluster, show_groups
    from promptcal.trainers.experiments.plan import Workspace
    from promptcal.trainers.experiments.plan_table import show_plan
    from promptcal.trainers.experiments.reproduce import (
        download_missing,
        groups_of,
        make_plans,
        read_experiments,
        reproduce,
    )
    from promptcal.trainers.report.table import terminal

    log_to_terminal()
    workspace = Workspace(
        root=args.root,
        output=args.output_dir,
        cache=args.cache_dir,
        demo=args.demo,
        limit=args.limit,
        opts=tuple(args.opts),
        backbone=args.backbone,
        choose=tuple(args.choose),
        choose_by=args.choose_by,
        overwrite=args.overwrite,
        baseline=args.baseline,
        ours=tuple(args.ours),
    )
    catalogue = read_experiments(args.names, args.add, args.demo, args.quick)
    if "all" not in args.names and not args.dry_run:
        for experiment in catalogue.chosen.values():
            download_missing(experiment, workspace, args.only)
    plans = make_plans(catalogue, workspace, args.only)
    cluster = None
    if args.cluster:
        cluster = Cluster(workspace, slurm, args.array_parallelism)
    print(show_plan(plans, workspace), flush=True)
    for name, reason in catalogue.problems.items():
        print(f"not planned: {name}: {reason}")
    if args.dry_run:
        if cluster:
            print(show_groups(groups_of(plans), args.array_parallelism))
        return 1 if catalogue.problems else 0
    if cluster and args.detach:
        print(cluster.detach(groups_of(plans)))
        return 1 if catalogue.problems else 0
    done = reproduce(catalogue, plans, workspace, args.jobs, cluster)
    for outcome in done.outcomes.values():
        for table in outcome.tables:
            print(f"\n{terminal(table)}")
    print(f"\n{done.summary(len(plans) + len(catalogue.problems))}")
    return 1 if done.failed or done.problems else 0


if __name__ == "__main__":
    run_tool(main)
