"""The trainers by name, and what settings, tables and figures need to know about each."""
from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from yacs.config import CfgNode

from ...datasets.utils.registry import Registry
from ...datasets.utils.source import is_plugin
from .schema import Setting

PACKAGE = __name__.removesuffix(".config.registry")  # the package of the trainers
TRAINER_REGISTRY = Registry("trainer", Path(__file__).parents[1], PACKAGE)
SPARE_COLOURS = ("#AA4499", "#661100", "#B8A13A", "#5B7F95")  # colours of methods that state none
ZERO_SHOT = "ZeroShot"  # the trainer that is CLIP without adaptation; others are compared with it
BASE = "BaseTrainer"  # all methods are derived from it; its hooks for settings do nothing
LAST = 1000  # display order of methods that state none

# The settings that a method reads, given all settings by their full keys.
UsedSettings = Callable[[Mapping[str, object]], Collection[str]]


def build_trainer(cfg: CfgNode, dataset: Any = None) -> Any:
    """Builds the trainer that `cfg.TRAINER.NAME` names, a `BaseTrainer`.

    Args:
        cfg: The settings.
        dataset: A `Dataset` that is used instead of the one that `cfg` names; None = that one.
    """
    return TRAINER_REGISTRY.get(cfg.TRAINER.NAME)(cfg, dataset)


def branch_of(name: str) -> str:
    """The group of a method's own settings: `cfg.TRAINER.<branch>`."""
    return name.upper()


def method_key(name: str) -> str:
    """One spelling for all: `O-TPT`, `OTPT` and `otpt` are the same method."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def registered_name(name: str) -> str:
    """The name under which a trainer is registered, found by any spelling of it.

    A name that is not registered is returned as it is: the registry refuses it with a list of
    names.
    """
    if name in TRAINER_REGISTRY:
        return name
    for known in TRAINER_REGISTRY:
        if method_key(known) == method_key(name):
            return known
    return name


def find_method(name: str) -> type[Any] | None:
    """The registered trainer of this name in any spelling; None if there is none."""
    known = registered_name(name)
    if known not in TRAINER_REGISTRY:
        return None
    return TRAINER_REGISTRY.get(known)


def method_settings(method: type[Any]) -> tuple[Setting, ...]:
    """The rows that a method declares, with full keys.

    A class has the rows of the classes that it is derived from, in their branches, except those
    that it declares again under the same name in its own branch.
    """
    rows: dict[str, Setting] = {}
    for cls in method.__mro__:
        for row in vars(cls).get("settings", ()):
            if row.key in rows:
                continue
            full_key = row.key
            if "." not in full_key:
                full_key = f"TRAINER.{branch_of(cls.__name__)}.{row.key}"
            rows[row.key] = replace(row, key=full_key)
    return tuple(rows.values())


def declared_use(method: type[Any]) -> UsedSettings | None:
    """The class method by which a method says what it reads; None if it does not say.

    A user's class may read any setting, whatever the class that it is derived from reads. So it is
    asked only if it defines `used_settings` itself.
    """
    for cls in method.__mro__:
        if "used_settings" in vars(cls) and cls.__name__ != BASE:
            return method.used_settings
        if is_plugin(cls):
            return None
    return None


@dataclass(frozen=True)
class MethodInfo:
    """What settings, tables, figures and plans need to know about a method, registered or not.

    Attributes:
        name: The class's name.
        label: Name in tables and figures.
        colour: Colour in figures.
        marker: Marker in figures.
        order: Sorts methods as papers list them.
        tuned: Adapts to test images.
        tunes_context: Runs the text tower for every image.
        tunes_by_gradients: Takes gradient steps, so that it takes regularisers and TTA.RESET.
        trained: Learns from labelled images first.
        online: Makes predictions that depend on the order of the images, whatever the settings.
        zero_shot: Is CLIP without adaptation; all others are compared with it.
        cls: The registered class; None if there is none.
        is_plugin: Whether it is a user's, or not registered: what it reads is not known.
        settings: The rows of its own settings, with full keys.
        used_settings: Gives the settings that it reads, among those with `used_by` in the table;
            None if they are not known.
    """

    name: str
    label: str
    colour: str
    marker: str = "v"
    order: tuple[int, str] = (LAST, "")
    tuned: bool = False
    tunes_context: bool = True
    tunes_by_gradients: bool = False
    trained: bool = False
    online: bool = False
    zero_shot: bool = False
    cls: type[Any] | None = None
    is_plugin: bool = True
    settings: Sequence[Setting] = field(default=(), compare=False)
    used_settings: UsedSettings | None = field(default=None, compare=False)


# Keys of a figure's data; MethodInfo has a label of its own.
Method = TypeVar("Method", str, MethodInfo)


def method_info(name: str | MethodInfo) -> MethodInfo:
    """Returns facts about a method by its name in any spelling.

    A method that is not registered gets neutral values.
    """
    if isinstance(name, MethodInfo):
        return name
    key = method_key(name)
    spare_colour = SPARE_COLOURS[sum(key.encode()) % len(SPARE_COLOURS)]
    method = find_method(name)
    if method is None:
        return MethodInfo(name=name, label=name, colour=spare_colour, order=(LAST, key))
    attributes = vars(method)  # a method derived from another one does not take over its looks
    return MethodInfo(
        name=method.__name__,
        label=attributes.get("label") or name,
        colour=attributes.get("colour") or spare_colour,
        marker=attributes.get("marker", "v"),
        order=(attributes.get("display_order", LAST), key),
        tuned=method.tuned,
        tunes_context=method.tunes_context,
        tunes_by_gradients=method.takes_regularisers,
        trained=method.trained,
        online=method.online,
        zero_shot=not method.tuned and not method.trained,
        cls=method,
        settings=method_settings(method),
        used_settings=declared_use(method),
        is_plugin=is_plugin(method),
    )


def backbone_label(name: str) -> str:
    """What a backbone is called in tables and captions."""
    return "small CLIP" if name == "small" else name
