"""Patches that make Dassl (last changed in 2023) run on current Python, numpy and torch.

Each patch states its reason and is applied only where its fault is found: a repaired Dassl, or an old environment in
which it works, is not changed.
"""
from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

from ...datasets.utils.errors import UserError
from ..vlm.checkpoints import StandIn, read_checkpoint

logger = logging.getLogger(__name__)

PLACES = (".", "..", "../..")  # where READMEs of CoOp and its successors clone Dassl or their version of it
NEEDED = {"sklearn": "scikit-learn", "scipy": "scipy", "ftfy": "ftfy", "regex": "regex"}  # modules that Dassl imports
WILDS = "dassl.data.datasets.dg.wilds"  # three data sets, FMoW, IWildCam and Camelyon17


@dataclass(frozen=True)
class Patch:
    """A fault of Dassl: how it is detected, and how it is fixed."""

    name: str
    reason: str
    present: Callable[[], bool]
    apply: Callable[[], None]


def apply_patches() -> list[str]:
    """Applies the patches that are needed and returns their names. A second call applies none."""
    missing = [package for module, package in NEEDED.items() if not has_module(module)]
    if missing:
        raise UserError(f"Dassl and CoOp import {' and '.join(missing)}, not installed here: "
                        f"pip install {' '.join(missing)}, or promptcal with the extra [dassl]")
    applied = []
    for patch in PATCHES:
        if patch.present():
            patch.apply()
            logger.info("Dassl patched: %s (%s)", patch.name, patch.reason)
            applied.append(patch.name)
    return applied


def has_module(name: str) -> bool:
    return sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None


def is_installed() -> bool:
    """Whether Dassl can be imported. A plain folder `dassl`, such as a clone, is only a namespace package."""
    spec = importlib.util.find_spec("dassl")
    return spec is not None and spec.origin is not None


def use_checkout() -> None:
    """Adds a cloned Dassl that is not installed to the path: the nearest one; of two in one place, Dassl.pytorch."""
    for place in map(Path, PLACES):
        names = {path.parents[1].name for path in place.glob("[Dd]assl*/dassl/__init__.py")}
        if names:
            name = "Dassl.pytorch" if "Dassl.pytorch" in names else min(names)
            sys.path.append(str((place / name).resolve()))
            return
    raise UserError("Dassl is not installed, nor cloned here as Dassl.pytorch: clone it beside this folder, or give "
                    "its path with --dassl FOLDER before train.py; it need not be installed")


def lacks_wilds() -> bool:
    spec = importlib.util.find_spec("dassl")
    assert spec is not None and spec.origin is not None  # `use_checkout` has run
    folder = Path(spec.origin).parent.joinpath(*WILDS.split(".")[1:])
    return WILDS not in sys.modules and folder.is_dir() and not all(map(has_module, ("wilds", "pandas")))


def skip_wilds() -> None:
    """Its data sets are then not registered: Dassl refuses their names and lists the others."""
    sys.modules[WILDS] = types.ModuleType(WILDS)


def disables_logging() -> bool:
    importlib.import_module("dassl.data")
    return logging.root.manager.disable >= logging.WARNING


def warmup_schedulers() -> types.ModuleType:
    return importlib.import_module("dassl.optim.lr_scheduler")


def warmup_fails() -> bool:
    """Whether a warm-up scheduler cannot be constructed."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    successor = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    try:
        warmup_schedulers().ConstantWarmupScheduler(optimizer, successor, 1, 1e-5)
    except TypeError:
        return True
    return False


def fix_warmup() -> None:
    def start(self: Any, optimizer: Any, successor: Any, warmup_epoch: int, last_epoch: int = -1, *_: Any) -> None:
        self.successor, self.warmup_epoch = successor, warmup_epoch
        LRScheduler.__init__(self, optimizer, last_epoch)

    def restore(self: Any, state: dict[str, Any]) -> None:
        """Restores the scheduler and its successor's plain numbers; objects stay those of this process."""
        state = dict(state)
        successor = state.pop("successor", None)
        LRScheduler.load_state_dict(self, state)
        saved = successor.state if isinstance(successor, StandIn) else getattr(successor, "__dict__", None)
        if isinstance(saved, dict):
            numbers = {key: value for key, value in saved.items() if isinstance(value, int | float | list)}
            self.successor.__dict__.update(numbers)

    base = warmup_schedulers()._BaseWarmupScheduler
    base.__init__, base.load_state_dict = start, restore


def read_as_data() -> None:
    """Replaces `load_checkpoint`, which executes what a file contains, in every module that has imported it by name."""
    for name in ("dassl.utils.torchtools", "dassl.utils", "dassl.engine.trainer"):
        setattr(importlib.import_module(name), "load_checkpoint", read_checkpoint)  # noqa: B010


PATCHES = (
    Patch("set-up", "its setup.py fails on Python 3.13 and requires packages of 2019; a clone is enough",
          lambda: not is_installed(), use_checkout),
    Patch("wilds", "FMoW, IWildCam and Camelyon17 import wilds and pandas, without which no other data set works",
          lacks_wilds, skip_wilds),
    Patch("logging", "its data sets disable the log lines of the whole process",
          disables_logging, lambda: logging.disable(logging.NOTSET)),
    Patch("np.int", "numpy 1.24 removed it, and its autoaugment and randaugment use it",
          lambda: "int" not in vars(np), lambda: setattr(np, "int", int)),
    Patch("warm-up", "its scheduler passes `verbose`, which current torch does not accept, so that CoOp cannot train",
          warmup_fails, fix_warmup),
    Patch("checkpoints", "torch 2.6 refuses the live objects that it saves; they are read as data instead",
          lambda: importlib.import_module("dassl.utils").load_checkpoint is not read_checkpoint, read_as_data),
)
