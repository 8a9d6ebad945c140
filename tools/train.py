"""Runs a trainer on a data set, as in CoOp's train.py.

    python tools/train.py --trainer SoC --dataset-config-file configs/datasets/ucf101.yaml --root DATA
"""
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__":  # import the package from this checkout, whatever is installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / ".package"))

from promptcal.datasets.utils.cli import log_to_terminal, resumable, run_tool, tool_parser
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.plugins import load_plugins
from promptcal.trainers.config.build import KEY, build_cfg
from promptcal.trainers.config.help import help_text
from promptcal.trainers.config.run_folder import run_path
from promptcal.trainers.registry import build_trainer
from yacs.config import CfgNode

# Flags of CoOp's train.py that are settings there. They are ignored or refused like those settings.
COOP_FLAGS = {
    "--source-domains": "DATASET.SOURCE_DOMAINS", "--target-domains": "DATASET.TARGET_DOMAINS",
    "--transforms": "INPUT.TRANSFORMS", "--head": "MODEL.HEAD.NAME",
}
LIST_FLAGS = ("--seed", *COOP_FLAGS)


@resumable()
def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.load_epoch is not None and not args.model_dir:
        raise ConfigError("--load-epoch names an epoch of the prompt in --model-dir DIR: give that folder too")
    if args.overwrite and args.resume:
        raise ConfigError("--resume FOLDER continues a run and --overwrite starts one again: give one of them")
    if len(args.seed) > 1 and args.resume:
        raise ConfigError("--resume FOLDER continues one run, which has its seed: leave --seed out")
    load_plugins(args.plugin)
    if args.help_settings is not None:
        print(help_text(args.help_settings or args.trainer))
        return
    log_to_terminal()
    configs = [make_config(args, seed) for seed in args.seed or [None]]
    # Imported late, because torch takes seconds: a misspelt trainer or file is answered at once.
    from promptcal.trainers.runs.summary import result_table, seeds_table

    finished = []
    for cfg in configs:
        trainer = build_trainer(cfg)
        if args.no_train:
            trainer.check()
            continue
        finished.append(trainer.run(train=not args.eval_only, overwrite=args.overwrite))
        if trainer.dist.is_main:
            # Imported after the run: matplotlib is not part of it.
            from promptcal.trainers.report.tensorboard_figures import write_tensorboard_figures

            write_tensorboard_figures(run_path(trainer.cfg))
            print(result_table(finished[-1:]))
    if len(finished) > 1 and trainer.dist.is_main:
        print(f"\n{seeds_table(finished)}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = tool_parser(__doc__)
    parser.add_argument("--root", help="folder that holds the data sets")
    parser.add_argument("--output-dir", help="run folder; for several seeds the parent of their run folders seed<k>; "
                                             "default output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>")
    parser.add_argument("--resume", default="", help="run folder to continue with its own settings")
    parser.add_argument("--overwrite", action="store_true",
                        help="start again in a run folder that holds another run; its files are removed")
    parser.add_argument("--seed", type=seeds, default=[], metavar="SEED ...",
                        help="0 or more; several, as in --seed 1 2 3, run one after the other, then mean ± std")
    parser.add_argument("--trainer", default="", help="ZeroShot, TPT, CTPT, OTPT, SoC, CoOp ...")
    parser.add_argument("--backbone", help="OpenAI's name, small, a path, open_clip:MODEL/TAG or hf:FOLDER")
    parser.add_argument("--config-file", default="", help="yaml with further settings; CoOp's own files work too")
    parser.add_argument("--dataset-config-file", default="", help="yaml of the data set, or its name, such as dtd")
    parser.add_argument("--eval-only", action="store_true", help="test the prompt of --model-dir without training one")
    parser.add_argument("--model-dir", help="folder of a trained prompt in CoOp's layout, or of one in each seed<k>")
    parser.add_argument("--load-epoch", type=int, help="epoch of that prompt (default: best, else last)")
    parser.add_argument("--no-train", action="store_true", help="check settings, data and model, then stop")
    parser.add_argument("--help-settings", nargs="?", const="", metavar="TRAINER",
                        help="print all settings with defaults and allowed values, and those of a trainer")
    for name in COOP_FLAGS:
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="settings, e.g. TTA.STEPS 2, or TTA.STEPS=2")
    return parser.parse_intermixed_args(join_lists(sys.argv[1:] if argv is None else argv))


def join_lists(argv: Sequence[str]) -> list[str]:
    """`--seed 1 2 3` as `--seed 1,2,3`, and CoOp's lists likewise: argparse would add the settings that follow."""
    joined: list[str] = []
    in_list = False  # whether the next argument may belong to a list
    for token in argv:
        in_list = in_list and not token.startswith("-") and not KEY.fullmatch(token.partition("=")[0])
        if in_list and joined[-1] not in LIST_FLAGS:
            joined[-1] += f",{token}"
        else:
            joined.append(token)
        in_list = in_list or token in LIST_FLAGS
    return joined


def seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0, or several such numbers")
    found = [int(seed) for seed in text.split(",")]
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text} names a seed twice")
    return found


def make_config(args: argparse.Namespace, seed: int | None) -> CfgNode:
    """The settings of one run. Several seeds have a folder each, in CoOp's layout."""
    output, model, prompt = args.output_dir or args.resume or None, args.model_dir, None
    if len(args.seed) > 1:
        output = output and str(Path(output, f"seed{seed}"))
        if model and Path(model, f"seed{seed}").is_dir():
            model = str(Path(model, f"seed{seed}"))
    if model:
        from promptcal.trainers.vlm.prompt_files import find_prompt

        prompt = find_prompt(model, args.load_epoch)
    flags = {
        "DATASET.ROOT": args.root, "OUTPUT_DIR": output, "SEED": seed, "MODEL.BACKBONE.NAME": args.backbone,
        "MODEL.INIT_WEIGHTS": prompt,
        **{key: getattr(args, name.strip("-").replace("-", "_")) for name, key in COOP_FLAGS.items()},
    }
    given = [item for pair in flags.items() if pair[1] is not None for item in pair]
    return build_cfg(args.trainer, args.dataset_config_file, args.config_file, args.resume, given, args.opts)


if __name__ == "__main__":
    run_tool(main)
