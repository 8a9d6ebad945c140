"""Two lines that bring promptcal into a Dassl checkout's own train.py:

    from promptcal.trainers.dassl import plugin   # before anything of dassl is imported
    plugin.extend_cfg(cfg)                        # at the end of its extend_cfg

Importing this mends Dassl (`patches`) and registers the evaluator `Calibration`. Our trainers are registered by
`extend_cfg`, when the checkout has registered its own, so that a name which it uses stays its own.
"""
from yacs.config import CfgNode

from ...datasets.utils.cli import log_to_terminal
from .patches import apply_patches

log_to_terminal()
apply_patches()

import dassl.engine  # noqa: E402  # Dassl can be imported from here on

from .evaluator import Calibration  # noqa: E402
from .keys import add_settings  # noqa: E402
from .trainers import introducing, register_trainers  # noqa: E402

dassl.engine.build_trainer = introducing(dassl.engine.build_trainer)

__all__ = ["Calibration", "extend_cfg"]


def extend_cfg(cfg: CfgNode) -> None:
    """Our settings and our trainers. To be called before any yaml is merged, and again without harm."""
    register_trainers()
    add_settings(cfg)
