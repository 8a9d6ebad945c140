"""Runs a Dassl checkout's own, unchanged train.py with promptcal's trainers and evaluator.

    python -m promptcal.trainers.dassl train.py --trainer SoC \\
        --dataset-config-file configs/datasets/eurosat.yaml ...

Everything after train.py is passed to it. Before it: --dassl FOLDER, a clone of Dassl.pytorch that
is not installed.
"""
from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from yacs.config import CfgNode

from ...datasets.utils.cli import IS_MAIN, run_tool
from ...datasets.utils.errors import UserError
from .patches import explaining_absent_packages


def main(argv: list[str] | None = None) -> None:
    """Runs a checkout's train.py in this process."""
    parser = argparse.ArgumentParser(
        "python -m promptcal.trainers.dassl",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dassl", metavar="FOLDER",
                        help="a clone of Dassl.pytorch; default: the installed one")
    parser.add_argument("script", help="the checkout's train.py")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, default=[], help="its arguments")
    args = parser.parse_args(argv)
    script = Path(args.script)
    if not script.is_file():
        raise UserError(f"no {script} here: run this in the folder of a CoOp checkout, or give the "
                        f"path of train.py")
    sys.path[0] = str(script.resolve().parent)  # as `python train.py` sets it
    if args.dassl:
        folder = Path(args.dassl).resolve()
        if not (folder / "dassl" / "__init__.py").is_file():
            raise UserError(f"--dassl {args.dassl}: there is no dassl/__init__.py in this folder; "
                            f"give the folder of a clone of Dassl.pytorch")
        sys.path.insert(1, str(folder))
    with explaining_absent_packages():
        install_plugin()
        sys.argv = [args.script, *args.arguments]
        runpy.run_path(args.script, run_name="__main__")


def install_plugin() -> None:
    """Imports the plugin, and adds our settings to Dassl's `get_cfg_default`, which train.py
    imports by name.
    """
    from . import plugin  # patches Dassl, which can be imported only then

    import dassl.config  # isort: skip
    import dassl.utils  # isort: skip

    original = dassl.config.get_cfg_default

    def extended() -> CfgNode:
        cfg = original()
        plugin.extend_cfg(cfg)
        return cfg

    dassl.config.get_cfg_default = extended
    if not IS_MAIN:  # of several processes only the first one writes log lines and log.txt
        dassl.utils.setup_logger = lambda output=None: None


if __name__ == "__main__":
    run_tool(main)
