"""Runs a trainer on a data set, as in CoOp's train.py.

    python tools/train.py --trainer SoC --dataset-config-file configs/datasets/ucf101.yaml --root DATA
"""
from __future__ import annotations

import argparse
from collections.abc import Sequence

from promptcal.datasets.utils.cli import log_to_terminal, run_tool
from promptcal.datasets.utils.errors import ConfigError
from promptcal.trainers.config.layers import build_cfg, check_names
from promptcal.trainers.registry import build_trainer


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", help="folder that holds the data sets")
    parser.add_argument("--output-dir", help="run folder; default output/<dataset>/<trainer>/<backbone>/<tag>/seed<k>")
    parser.add_argument("--resume", default="", help="run folder to continue with its own settings")
    parser.add_argument("--seed", type=int, help="0 or more")
    parser.add_argument("--trainer", default="", help="ZeroShot, TPT, CTPT, OTPT, SoC, CoOp ...")
    parser.add_argument("--backbone", help="OpenAI's name, small, a path, open_clip:MODEL/TAG or hf:FOLDER")
    parser.add_argument("--config-file", default="", help="yaml with further settings")
    parser.add_argument("--dataset-config-file", default="", help="yaml of the data set, from configs/datasets")
    parser.add_argument("--eval-only", action="store_true", help="test the prompt of --model-dir without training one")
    parser.add_argument("--model-dir", help="folder with a trained prompt, in CoOp's layout")
    parser.add_argument("--load-epoch", type=int, help="epoch of that prompt (default: best, else last)")
    parser.add_argument("--no-train", action="store_true", help="check settings, data and model, then stop")
    parser.add_argument("opts", nargs="*", metavar="KEY VALUE", help="settings, e.g. TTA.STEPS 2")
    return parser.parse_intermixed_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.load_epoch is not None and not args.model_dir:
        raise ConfigError("--load-epoch names an epoch of the prompt in --model-dir DIR: give that folder too")
    log_to_terminal()
    check_names(args.trainer, args.dataset_config_file, args.config_file)
    # From here on torch is needed, which takes seconds to import.
    from promptcal.trainers.report.figures.board import write_pictures
    from promptcal.trainers.runs.summary import result_table
    from promptcal.trainers.vlm.prompt_files import find_prompt

    flags = {
        "DATASET.ROOT": args.root, "OUTPUT_DIR": args.output_dir or args.resume or None, "SEED": args.seed,
        "MODEL.BACKBONE.NAME": args.backbone,
        "MODEL.INIT_WEIGHTS": find_prompt(args.model_dir, args.load_epoch) if args.model_dir else None,
    }
    cfg = build_cfg(
        args.trainer, args.dataset_config_file, args.config_file, args.resume,
        flags=[item for pair in flags.items() if pair[1] is not None for item in pair], opts=args.opts,
    )
    trainer = build_trainer(cfg)
    if args.no_train:
        trainer.check()
    else:
        results = trainer.run(train=not args.eval_only, draw=write_pictures)
        if trainer.ranks.first:
            print(result_table([results]))


if __name__ == "__main__":
    run_tool(main)
