"""A checkout's own script, in the order of CoOp's: Dassl by name, its own data sets and trainers, then the config."""
import argparse

from dassl.config import get_cfg_default
from dassl.engine import build_trainer
from dassl.utils import setup_logger

import clip  # isort: skip  # the checkout's own
import datasets.folders  # isort: skip  # noqa: F401
import trainers.colour  # isort: skip  # noqa: F401

FLAGS = {"root": "DATASET.ROOT", "output_dir": "OUTPUT_DIR", "resume": "RESUME", "trainer": "TRAINER.NAME",
         "backbone": "MODEL.BACKBONE.NAME"}


def main():
    parser = argparse.ArgumentParser()
    for name in (*FLAGS, "dataset_config_file", "config_file", "model_dir"):
        parser.add_argument(f"--{name.replace('_', '-')}", default="")
    parser.add_argument("--seed", type=int, default=-1)
    parser.add_argument("--load-epoch", type=int)
    parser.add_argument("--eval-only", action="store_true")
    parser.add_argument("--no-train", action="store_true")
    parser.add_argument("opts", nargs=argparse.REMAINDER)
    args = parser.parse_args()

    cfg = get_cfg_default()
    cfg.DATASET.SUBSAMPLE_CLASSES = "all"
    for path in filter(None, (args.dataset_config_file, args.config_file)):
        cfg.merge_from_file(path)
    cfg.SEED = args.seed
    cfg.merge_from_list([item for name, key in FLAGS.items() if getattr(args, name)
                         for item in (key, getattr(args, name))])
    cfg.merge_from_list(args.opts)
    cfg.freeze()
    setup_logger(cfg.OUTPUT_DIR)
    print(f"clip is {clip.OWNER}")
    trainer = build_trainer(cfg)
    if args.eval_only:
        trainer.load_model(args.model_dir, epoch=args.load_epoch)
        trainer.test()
    elif not args.no_train:
        trainer.train()


if __name__ == "__main__":
    main()
