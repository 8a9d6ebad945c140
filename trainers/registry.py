"""The trainers by name, and what tables and figures need to know about each."""
from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from yacs.config import CfgNode

from ..datasets.utils.registry import Registry

if TYPE_CHECKING:
    from .base import BaseTrainer

TRAINER_REGISTRY = Registry("trainer", Path(__file__).parent, __package__)
SPARE_COLOURS = ("#AA4499", "#661100", "#B8A13A", "#5B7F95")  # for methods that state none
ZERO_SHOT = "ZeroShot"  # the trainer that is CLIP without adaptation, which all others are compared with
LAST = 1000  # display order of methods that state none
EVERY_IMAGE = ("image", "1")  # values of TTA.RESET with which nothing is carried from image to image


def build_trainer(cfg: CfgNode) -> BaseTrainer:
    """The trainer that `cfg.TRAINER.NAME` names."""
    return TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg)


def branch_of(name: str) -> str:
    """The group of a method's own settings: `cfg.TRAINER.<branch>`."""
    return name.upper()


def method_key(name: str) -> str:
    """One spelling for all: `O-TPT`, `OTPT` and `otpt` are the same method."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_method(name: str) -> type[BaseTrainer] | None:
    """The registered trainer of this name in any spelling; None if there is none."""
    known = next((known for known in TRAINER_REGISTRY if method_key(known) == method_key(name)), None)
    return TRAINER_REGISTRY.get(known) if known else None


@dataclass(frozen=True)
class MethodInfo:
    """What tables, figures and plans need to know about a method, registered here or not."""

    name: str
    label: str  # in tables and figures
    colour: str
    marker: str
    order: tuple[int, str]  # sorts methods as papers list them
    tuned: bool  # adapts to test images
    tunes_context: bool  # runs the text tower for every image
    trained: bool  # learns from labelled images first
    online: bool  # its predictions depend on the order of the images
    zero_shot: bool  # CLIP without adaptation, which all others are compared with


Method = TypeVar("Method", str, MethodInfo)  # keys of a figure's data; a MethodInfo where the label has settings


def method_info(name: str | MethodInfo) -> MethodInfo:
    """Facts about a method by its name in any spelling. A method that is not registered gets neutral values."""
    if isinstance(name, MethodInfo):
        return name
    method, key = find_method(name), method_key(name)
    spare = SPARE_COLOURS[sum(key.encode()) % len(SPARE_COLOURS)]
    if method is None:
        return MethodInfo(name, name, spare, "v", (LAST, key), False, True, False, False, False)
    own = vars(method)  # a method derived from another one does not take over its looks
    return MethodInfo(
        name=method.__name__, label=own.get("label") or name, colour=own.get("colour") or spare,
        marker=own.get("marker", "v"), order=(own.get("display_order", LAST), key), tuned=method.tuned,
        tunes_context=method.tunes_context,
        trained=method.trained, online=method.online, zero_shot=not method.tuned and not method.trained,
    )


def reset_words(reset: object) -> str:
    """What a label adds for a value of TTA.RESET; "" where every image starts from the initial prompt."""
    if reset is None or str(reset) in EVERY_IMAGE:
        return ""
    return "never reset" if reset == "never" else f"reset every {reset} images"


def backbone_label(name: str) -> str:
    """What a backbone is called in tables and captions."""
    return "small CLIP" if name == "small" else name
