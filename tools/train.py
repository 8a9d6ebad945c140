"""Runs a trainer on a data set, as in CoOp's train.py.

    python tools/train.py --trainer SoC --dataset-config-file ucf101 --root DATA
"""
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

if __name__ == "__main__":  # import the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets import DATASET_REGISTRY
from promptcal.datasets.utils.cli import (
    load_plugins,
    log_to_terminal,
    resumable,
    run_tool,
    tool_parser,
)
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.config.build import KEY, build_cfg
from promptcal.trainers.config.help import help_text
from promptcal.trainers.config.layers import dataset_layers
from promptcal.trainers.config.settings import effective_settings, leaves, path_safe, run_path
from promptcal.trainers.config.table import TABLE
from promptcal.trainers.registry import build_trainer
from yacs.config import CfgNode

# Flags of CoOp's train.py -> the settings that they stand for. They are ignored or refused like the
# same settings in a yaml file, see trainers/config/dassl_compat.py.
COOP_FLAGS = {
    "--source-domains": "DATASET.SOURCE_DOMAINS", "--target-domains": "DATASET.TARGET_DOMAINS",
    "--transforms": "INPUT.TRANSFORMS", "--head": "MODEL.HEAD.NAME",
}
SWEEP = "--sweep"
SWEEP_SEPARATOR = "\0"  # no argument of a command can have this character
LIST_FLAGS = ("--seed", SWEEP, *COOP_FLAGS)


class Sweep(NamedTuple):
    """One setting and the values that it has one after the other."""

    key: str
    values: Sequence[str]

    @property
    def pairs(self) -> list[list[str]]:
        """The setting with each of its values, as KEY VALUE."""
        return [[self.key, value] for value in self.values]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command: prints the list of settings, or makes the runs.

    Args:
        argv: The arguments of the command; None = those of this process.
    """
    args = parse(argv)
    log_to_terminal()
    load_plugins(args.plugin)
    if args.help_settings is not None:
        print(help_text(args.help_settings or args.trainer))
        return
    with resumable():
        run_all(args)


def run_all(args: argparse.Namespace) -> None:
    """Runs a trainer for each value of a sweep and each seed, and prints the tables of results.

    Args:
        args: The arguments of the command.
    """
    check_flags(args)
    check_root(args)
    # All configs are made, and refused if need be, before the first run begins.
    swept_pairs = args.sweep.pairs if args.sweep else [[]]
    seeds_to_run = args.seed or [None]
    configs = []
    for pair in swept_pairs:
        for seed in seeds_to_run:
            configs.append(make_config(args, seed, pair))
    if args.sweep:
        check_sweep(configs, len(seeds_to_run))
    if len(configs) > 1:
        check_folders(configs, len(seeds_to_run))
    # All limits above the number of images are one run. That number takes reading the data.
    if args.sweep and args.sweep.key == "TEST.LIMIT":
        check_sweep(configs, len(seeds_to_run), {"TEST.LIMIT": images_to_limit(configs[0])})
    # Imported late, because torch takes seconds: a misspelt trainer or file is answered at once.
    from promptcal.trainers.runs.summary import result_table, seeds_table, sweep_table

    finished = []
    for cfg in configs:
        trainer = build_trainer(cfg)
        if args.no_train:
            trainer.check()
            print(
                "settings, data and model fit together; nothing was run. Without --no-train the "
                f"run is in {run_path(trainer.cfg)}"
            )
            continue
        finished.append(trainer.run(train=not args.eval_only, overwrite=args.overwrite))
        if trainer.dist.is_main:
            # Imported after the run: matplotlib is not part of it.
            from promptcal.trainers.report.tensorboard_figures import write_tensorboard_figures

            write_tensorboard_figures(run_path(trainer.cfg))
            print(result_table(finished[-1:]))
    if len(finished) < 2 or not trainer.dist.is_main:
        return
    if args.sweep:
        values = [leaves(cfg)[args.sweep.key] for cfg in configs]
        print(f"\n{sweep_table(args.sweep.key, values, finished)}")
    else:
        print(f"\n{seeds_table(finished)}")


def check_flags(args: argparse.Namespace) -> None:
    """Refuses flags that contradict each other."""
    if args.load_epoch is not None and not args.model_dir:
        raise ConfigError("--load-epoch names an epoch of the prompt in --model-dir DIR: give that "
                          "folder too")
    if args.overwrite and args.resume:
        raise ConfigError(
            "--resume FOLDER continues a run and --overwrite starts one again: give one of them"
        )
    if len(args.seed) > 1 and args.resume:
        raise ConfigError("--resume FOLDER continues one run, which has its seed: leave --seed out")
    if args.sweep and args.resume:
        raise ConfigError(
            "--resume FOLDER continues one run, which has its settings: leave --sweep out"
        )


def check_root(args: argparse.Namespace) -> None:
    """Refuses a --root that is no folder, before the trainer imports torch, which takes seconds."""
    is_overridden = any(opt.startswith(("DATASET.NAME", "DATASET.ROOT")) for opt in args.opts)
    if not args.root or is_overridden:
        return
    for _, settings in dataset_layers(args.dataset_config_file):
        for key, value in settings:
            if key == "DATASET.NAME" and str(value) in DATASET_REGISTRY:
                DATASET_REGISTRY.get(str(value)).check_root(args.root)


def check_sweep(
    configs: Sequence[CfgNode], number_of_seeds: int, resolved: Mapping[str, object] | None = None,
) -> None:
    """Refuses a sweep of which two values are the same run.

    Args:
        configs: The settings of all runs, those of one value after each other.
        number_of_seeds: Number of seeds of each value.
        resolved: What settings stand for, as far as the data tells; see `effective_settings`.
    """
    first_seeds = configs[::number_of_seeds]
    known: list[dict[str, object]] = []
    for cfg in first_seeds:
        settings = effective_settings(cfg, resolved)
        if settings in known:
            raise ConfigError(
                "two values of --sweep are the same run: they mean the same, or the "
                "setting has no effect here"
            )
        known.append(settings)


def images_to_limit(cfg: CfgNode) -> int:
    """The number of images that TEST.LIMIT selects from. Limits above it are one run."""
    from promptcal.trainers.base import without_few_shot_sampling

    # Drawing a few-shot sample would write it to the data root.
    return build_trainer(without_few_shot_sampling(cfg)).data.available


def check_folders(configs: Sequence[CfgNode], number_of_seeds: int) -> None:
    """Refuses several runs that would be in one folder, or of one seed.

    Args:
        configs: The settings of all runs.
        number_of_seeds: Number of seeds of each value of a sweep.
    """
    if len({cfg.SEED for cfg in configs}) < number_of_seeds:
        raise ConfigError("SEED is in the settings and replaces all seeds of --seed: leave it out")
    folders: set[Path] = set()
    for cfg in configs:
        folder = run_path(cfg)
        if folder in folders:
            raise ConfigError(
                f"several runs would be in {folder}: leave TAG and OUTPUT_DIR out; --output-dir "
                f"makes a folder for each value and seed"
            )
        folders.add(folder)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parses the arguments of the command; None = those of this process."""
    words = join_lists(sys.argv[1:] if argv is None else argv)
    parser = tool_parser(__doc__)
    parser.unknown_option_hint = (
        " Settings have no dashes, such as TTA.STEPS 2; --help-settings lists them."
    )
    parser.add_argument("--root", help="folder that holds the data sets")
    parser.add_argument("--output-dir",
                        help="run folder; for several seeds the parent of their run folders "
                             "seed<k>, for a sweep of a folder per value; default "
                             "output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>")
    parser.add_argument("--resume", default="", help="run folder to continue with its own settings")
    parser.add_argument("--overwrite", action="store_true",
                        help="start again in a run folder that holds another run; its files are "
                             "removed")
    parser.add_argument("--seed", type=seeds, default=[], metavar="SEED ...",
                        help="0 or more; several, as in --seed 1 2 3, run one after the other, "
                             "then mean ± std")
    parser.add_argument(SWEEP, type=sweep, metavar="KEY VALUE ...",
                        help="several values of a setting, as in --sweep TRAINER.SOC.LAMBDA 10 20 "
                             "30, run one after the other, then a table of all")
    parser.add_argument("--trainer", default="", help="ZeroShot, TPT, CTPT, OTPT, SoC, CoOp ...")
    parser.add_argument("--backbone",
                        help="OpenAI's name, small, a path, open_clip:MODEL/TAG or hf:FOLDER")
    parser.add_argument("--config-file", default="",
                        help="yaml with further settings; CoOp's own files work too")
    parser.add_argument("--dataset-config-file", default="",
                        help="yaml of the data set, or its name, such as dtd")
    parser.add_argument("--eval-only", action="store_true",
                        help="test the prompt of --model-dir without training one")
    parser.add_argument("--model-dir",
                        help="folder of a trained prompt in CoOp's layout, or of one in each "
                             "seed<k>")
    parser.add_argument("--load-epoch", type=int,
                        help="epoch of that prompt (default: best, else last)")
    parser.add_argument("--no-train", action="store_true",
                        help="check settings, data and model, then stop")
    parser.add_argument("--help-settings", nargs="?", const="", metavar="TRAINER",
                        help="print all settings with defaults and allowed values, and those of a "
                             "trainer")
    for name in COOP_FLAGS:
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE",
                        help="settings, e.g. TTA.STEPS 2, or TTA.STEPS=2")
    return parser.parse_intermixed_args(words)


def join_lists(argv: Sequence[str]) -> list[str]:
    """Rewrites `--seed 1 2 3` as `--seed 1,2,3`, and other lists likewise.

    argparse would take the settings that follow for values of the list.
    """
    joined: list[str] = []
    flag = ""  # flag of the list that the next argument may belong to; "" = none
    for token in argv:
        if flag:
            is_first = joined[-1] == flag
            if ends_list(token, of_sweep=flag == SWEEP, is_first=is_first):
                flag = ""
            elif not is_first:
                separator = SWEEP_SEPARATOR if flag == SWEEP else ","
                joined[-1] += f"{separator}{token}"
                continue
        joined.append(token)
        if token in LIST_FLAGS:
            flag = token
    return joined


def ends_list(token: str, of_sweep: bool, is_first: bool) -> bool:
    """Whether an argument does not belong to the list before it.

    A sweep begins with a key, and its values may be negative or in capitals, such as RN50.

    Args:
        token: The argument.
        of_sweep: Whether the list is that of --sweep.
        is_first: Whether the argument follows the flag itself.
    """
    key = token.partition("=")[0]
    if not of_sweep:
        return token.startswith("-") or KEY.fullmatch(key) is not None
    if is_first:
        return token.startswith("-")
    shared_keys = {row.key for row in TABLE}
    is_setting = KEY.fullmatch(key) is not None and ("." in key or key in shared_keys)
    return token.startswith("--") or is_setting


def seeds(text: str) -> list[int]:
    """Parses the value of --seed, such as `1,2,3`."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from 0, or several such numbers")
    numbers = [int(seed) for seed in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError(f"{text} names a seed twice")
    return numbers


def sweep(text: str) -> Sweep:
    """Parses the value of --sweep: a key and its values, which `join_lists` has joined."""
    key, *values = text.split(SWEEP_SEPARATOR)
    if not KEY.fullmatch(key) or not values:
        raise argparse.ArgumentTypeError(
            "it needs a setting and its values, such as TRAINER.SOC.LAMBDA 10 20 30")
    if len(set(values)) < len(values):
        raise argparse.ArgumentTypeError(f"a value of {key} is given twice")
    return Sweep(key, values)


def make_config(
    args: argparse.Namespace, seed: int | None, swept_pair: Sequence[str] = (),
) -> CfgNode:
    """Builds the settings of one run. Each value of a sweep and each of several seeds has a folder.

    Args:
        args: The arguments of the command.
        seed: Seed of the run; None = that of the settings.
        swept_pair: KEY VALUE of a sweep; empty = there is none.
    """
    output = args.output_dir or args.resume or None
    if output and swept_pair:
        key, value = swept_pair
        output = str(Path(output, path_safe(f"{key.rpartition('.')[2]}-{value}")))
    model = args.model_dir
    if len(args.seed) > 1:
        if output:
            output = str(Path(output, f"seed{seed}"))
        if model and Path(model, f"seed{seed}").is_dir():
            model = str(Path(model, f"seed{seed}"))
    prompt = None
    if model:
        from promptcal.trainers.vlm.prompt_files import find_prompt

        prompt = find_prompt(model, args.load_epoch)
    flags = {
        "DATASET.ROOT": args.root,
        "OUTPUT_DIR": output,
        "SEED": seed,
        "MODEL.BACKBONE.NAME": args.backbone,
        "MODEL.INIT_WEIGHTS": prompt,
    }
    for name, key in COOP_FLAGS.items():
        flags[key] = getattr(args, name.strip("-").replace("-", "_"))
    flag_pairs: list[object] = []
    for key, value in flags.items():
        if value is not None:
            flag_pairs += [key, value]
    opts = [*args.opts, *swept_pair]
    return build_cfg(args.trainer, args.dataset_config_file, args.config_file, args.resume,
                     flag_pairs, opts)


if __name__ == "__main__":
    run_tool(main)
