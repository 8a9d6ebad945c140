"""The trainers by name, how each is shown, and the one way to make them."""
from __future__ import annotations

import re
from pathlib import Path

from yacs.config import CfgNode

from ..datasets.utils.registry import Registry

TRAINER_REGISTRY = Registry("trainer", Path(__file__).parent, __package__)
SPARE_COLOURS = ("#AA4499", "#661100", "#B8A13A", "#5B7F95")  # for methods that name none; no method of ours has them
LAST = 1000  # rank of methods that name none, or that are not ours


def build_trainer(cfg: CfgNode):
    """The trainer that `cfg.TRAINER.NAME` names."""
    return TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg)


def branch_of(name: str) -> str:
    """Where a method's own settings stand: `cfg.TRAINER.<branch>`."""
    return name.upper()


def method_key(name: str) -> str:
    """One spelling for all: `O-TPT`, `OTPT` and `otpt` are the same method."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_method(name: str) -> type | None:
    """The registered trainer of this name in any spelling; None for one that somebody else's code has run."""
    known = next((known for known in TRAINER_REGISTRY if method_key(known) == method_key(name)), None)
    return TRAINER_REGISTRY.get(known) if known else None


def method_label(name: str) -> str:
    """What the method is called on paper."""
    return getattr(find_method(name), "label", "") or name


def method_colour(name: str) -> str:
    """The method's colour in every figure; one that names none always gets the same spare one."""
    spare = SPARE_COLOURS[sum(method_key(name).encode()) % len(SPARE_COLOURS)]
    return getattr(find_method(name), "colour", "") or spare


def method_marker(name: str) -> str:
    return getattr(find_method(name), "marker", "v")


def method_rank(name: str) -> tuple[int, str]:
    """Sorts methods as papers list them."""
    return getattr(find_method(name), "rank", LAST), method_key(name)


def is_tuned(name: str) -> bool:
    """Whether a method adapts to test images. Of one that somebody else's code has run it is not known."""
    return getattr(find_method(name), "tuned", False)


def tunes_context(name: str) -> bool:
    """Whether a method runs the text tower for every image. One that is not ours counts as one."""
    return getattr(find_method(name), "tunes_context", True)


def is_trained(name: str) -> bool:
    """Whether a method learns from labelled images beforehand."""
    return getattr(find_method(name), "trained", False)


def is_online(name: str) -> bool:
    """Whether a method's predictions depend on the order of the images."""
    return getattr(find_method(name), "online", False)


def is_zero_shot(name: str) -> bool:
    """Whether a method is CLIP as it is, which all others are compared with."""
    return find_method(name) is not None and not is_tuned(name) and not is_trained(name)


def zero_shot_name() -> str:
    """The trainer that is CLIP as it is."""
    return next(name for name in TRAINER_REGISTRY if is_zero_shot(name))
