"""Patches that make Dassl (last changed in 2023) run on current Python, numpy and torch.

Each patch is a function that looks for a fault, fixes it, and returns whether there was one. A
repaired Dassl, or an old environment in which it works, is not changed.
"""
from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, StepLR

from ...datasets.utils.errors import UserError
from ..vlm.checkpoints import StandIn, read_checkpoint

logger = logging.getLogger(__name__)

# Modules of the packages in the extra `dassl` of pyproject.toml.
IMPORTED_BY_DASSL = ("sklearn", "scipy", "ftfy", "regex")
WILDS = "dassl.data.datasets.dg.wilds"  # three data sets, FMoW, IWildCam and Camelyon17


@contextmanager
def explaining_absent_packages() -> Iterator[None]:
    """One line instead of a traceback where a package that Dassl or CoOp imports is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in IMPORTED_BY_DASSL:
            raise
        raise UserError(
            f"Dassl needs {error.name}, which is not installed: pip install \"promptcal[dassl]\", "
            f"or pip install \".[dassl]\" in the folder of promptcal") from error


def apply_patches() -> list[str]:
    """Applies the patches that are needed and returns their names. A second call applies none."""
    spec = importlib.util.find_spec("dassl")
    if spec is None or spec.origin is None:  # a plain folder `dassl` is only a namespace package
        raise UserError("Dassl is not installed: clone Dassl.pytorch and give its folder with "
                        "--dassl FOLDER before train.py; it need not be installed")
    applied = [name for name, patch in PATCHES.items() if patch()]
    if applied:
        logger.info("Dassl patched: %s (see trainers/dassl/patches.py)", ", ".join(applied))
    return applied


def skip_wilds() -> bool:
    """Leaves out the data sets FMoW, IWildCam and Camelyon17 where wilds or pandas is absent.

    Dassl imports all data sets together, so without these packages none could be used. The three
    are not registered then: Dassl refuses their names and lists the others.
    """
    (root,) = importlib.import_module("dassl").__path__
    folder = Path(root).joinpath(*WILDS.split(".")[1:])
    if WILDS in sys.modules or not folder.is_dir():
        return False
    if importlib.util.find_spec("wilds") and importlib.util.find_spec("pandas"):
        return False
    sys.modules[WILDS] = types.ModuleType(WILDS)  # an empty module: Python does not import another
    return True


def enable_logging() -> bool:
    """Enables the log lines of the whole process, which Dassl's data sets disable on import."""
    importlib.import_module("dassl.data")
    disabled = logging.root.manager.disable >= logging.WARNING
    logging.disable(logging.NOTSET)
    return disabled


def restore_np_int() -> bool:
    """Defines np.int, which numpy 1.24 removed and Dassl's autoaugment and randaugment use."""
    removed = "int" not in vars(np)
    setattr(np, "int", int)  # noqa: B010
    return removed


def fix_warmup() -> bool:
    """Replaces the constructor of Dassl's warm-up schedulers, with which CoOp trains.

    It passes `verbose`, which current torch does not accept.
    """
    schedulers = importlib.import_module("dassl.optim.lr_scheduler")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    try:
        schedulers.ConstantWarmupScheduler(optimizer, StepLR(optimizer, step_size=1), 1, 1e-5)
        return False
    except TypeError:
        pass

    def start(
        self: Any, optimizer: Any, successor: Any, warmup_epoch: int, last_epoch: int = -1, *_: Any,
    ) -> None:
        self.successor = successor
        self.warmup_epoch = warmup_epoch
        LRScheduler.__init__(self, optimizer, last_epoch)

    def restore(self: Any, state: dict[str, Any]) -> None:
        """Restores the scheduler and its successor's plain numbers; objects stay those of this
        process.
        """
        plain_state = dict(state)
        successor = plain_state.pop("successor", None)
        LRScheduler.load_state_dict(self, plain_state)
        saved: dict[str, Any] = {}
        if isinstance(successor, StandIn):  # it was read from a file as data
            saved = successor.state or {}
        elif successor is not None:
            saved = vars(successor)
        for name, value in saved.items():
            if isinstance(value, int | float | list):
                setattr(self.successor, name, value)

    base = schedulers._BaseWarmupScheduler
    base.__init__ = start
    base.load_state_dict = restore
    return True


def read_as_data() -> bool:
    """Replaces Dassl's `load_checkpoint` in every module that has imported it by name.

    torch 2.6 refuses Dassl's checkpoints, because they hold objects whose unpickling executes code.
    They are read as data instead.
    """
    replaced = False
    for name in ("utils", "utils.torchtools", "engine.trainer"):
        module = importlib.import_module(f"dassl.{name}")
        if module.load_checkpoint is not read_checkpoint:
            setattr(module, "load_checkpoint", read_checkpoint)  # noqa: B010
            replaced = True
    return replaced


PATCHES = {
    "wilds": skip_wilds,
    "logging": enable_logging,
    "np.int": restore_np_int,
    "warm-up": fix_warmup,
    "checkpoints": read_as_data,
}
