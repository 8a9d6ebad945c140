"""Patches that make Dassl (last changed in 2023) run on current Python, numpy and torch.

Each patch is a function that looks for its fault and fixes it: a repaired Dassl, or an old
environment in which it works, is not changed.
"""
from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler, StepLR

from ...datasets.utils.errors import UserError
from ..vlm.checkpoints import StandIn, read_checkpoint

logger = logging.getLogger(__name__)

WILDS = "dassl.data.datasets.dg.wilds"  # three data sets, FMoW, IWildCam and Camelyon17


def apply_patches() -> list[str]:
    """Applies the patches that are needed and returns their names. A second call applies none."""
    spec = importlib.util.find_spec("dassl")
    if spec is None or spec.origin is None:  # a plain folder `dassl` is only a namespace package
        raise UserError("Dassl is not installed: clone Dassl.pytorch and give its folder with --dassl FOLDER before "
                        "train.py; it need not be installed")
    applied = [name for name, patch in PATCHES.items() if patch()]
    if applied:
        logger.info("Dassl patched: %s (see trainers/dassl/patches.py)", ", ".join(applied))
    return applied


def skip_wilds() -> bool:
    """FMoW, IWildCam and Camelyon17 import wilds and pandas, without which no other data set works.

    They are not registered then: Dassl refuses their names and lists the others.
    """
    (root,) = importlib.import_module("dassl").__path__
    there = Path(root).joinpath(*WILDS.split(".")[1:]).is_dir()
    if WILDS in sys.modules or not there or all(map(importlib.util.find_spec, ("wilds", "pandas"))):
        return False
    sys.modules[WILDS] = types.ModuleType(WILDS)
    return True


def enable_logging() -> bool:
    """Its data sets disable the log lines of the whole process."""
    importlib.import_module("dassl.data")
    disabled = logging.root.manager.disable >= logging.WARNING
    logging.disable(logging.NOTSET)
    return disabled


def restore_np_int() -> bool:
    """numpy 1.24 removed it, and its autoaugment and randaugment use it."""
    removed = "int" not in vars(np)
    setattr(np, "int", int)  # noqa: B010
    return removed


def fix_warmup() -> bool:
    """Its scheduler passes `verbose`, which current torch does not accept, so that CoOp cannot
    train.
    """
    schedulers = importlib.import_module("dassl.optim.lr_scheduler")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    try:
        schedulers.ConstantWarmupScheduler(optimizer, StepLR(optimizer, step_size=1), 1, 1e-5)
        return False
    except TypeError:
        pass

    def start(self: Any, optimizer: Any, successor: Any, warmup_epoch: int, last_epoch: int = -1, *_: Any) -> None:
        self.successor, self.warmup_epoch = successor, warmup_epoch
        LRScheduler.__init__(self, optimizer, last_epoch)

    def restore(self: Any, state: dict[str, Any]) -> None:
        """Restores the scheduler and its successor's plain numbers; objects stay those of this
        process.
        """
        successor = state.get("successor")
        LRScheduler.load_state_dict(self, {key: value for key, value in state.items() if key != "successor"})
        saved = getattr(successor, "state" if isinstance(successor, StandIn) else "__dict__", None) or {}
        self.successor.__dict__.update(
            {key: value for key, value in saved.items() if isinstance(value, int | float | list)})

    base = schedulers._BaseWarmupScheduler
    base.__init__, base.load_state_dict = start, restore
    return True


def read_as_data() -> bool:
    """torch 2.6 refuses the live objects in its checkpoints, which would be executed; they are read
    as data instead, in every module that has imported `load_checkpoint` by name.
    """
    modules = [importlib.import_module(f"dassl.{name}") for name in ("utils", "utils.torchtools", "engine.trainer")]
    found = any(module.load_checkpoint is not read_checkpoint for module in modules)
    for module in modules:
        setattr(module, "load_checkpoint", read_checkpoint)  # noqa: B010
    return found


PATCHES = {"wilds": skip_wilds, "logging": enable_logging, "np.int": restore_np_int, "warm-up": fix_warmup,
           "checkpoints": read_as_data}
