"""Two lines that add promptcal to a Dassl checkout's own train.py:

    from promptcal.trainers.dassl import plugin   # before anything of dassl is imported
    plugin.extend_cfg(cfg)                        # at the end of its extend_cfg

Importing this module patches Dassl (`patches`) and registers the evaluator `Calibration`.
`extend_cfg` registers our trainers after the checkout's own, whose names take precedence.
"""
import importlib

from yacs.config import CfgNode

from ...datasets.utils.cli import log_to_terminal, outcome
from .patches import apply_patches, explaining_absent_packages


def prepare_dassl() -> None:
    """Patches Dassl and imports it, which needs packages that may be absent."""
    with explaining_absent_packages():
        apply_patches()
        importlib.import_module("dassl.engine")


log_to_terminal()
status = outcome(prepare_dassl)  # prints one line for a user error
if status:
    raise SystemExit(status)

import dassl.engine  # noqa: E402  # Dassl can be imported from here on

from .convert import add_settings  # noqa: E402
from .evaluator import Calibration  # noqa: E402
from .trainers import connecting_evaluator, register_trainers  # noqa: E402

dassl.engine.build_trainer = connecting_evaluator(dassl.engine.build_trainer)

__all__ = ["Calibration", "extend_cfg"]


def extend_cfg(cfg: CfgNode) -> None:
    """Adds our settings and trainers.

    Call it before any yaml is merged; repeated calls change nothing.
    """
    register_trainers()
    add_settings(cfg)
