"""What each setting influences: one table, from which everything else that must know it is derived.

Whether a run may be continued (fingerprint), how its folder is called (tag), which runs the report compares and what
it warns of all follow from here. A setting that no line names changes how a method tunes.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from yacs.config import CfgNode

from ..registry import branch_of, method_key
from .regularisers import regulariser_names


class Role(Enum):
    """What a setting changes."""

    PLACE = "where things lie"
    SPEED = "how fast and with how much memory it runs"
    DATA = "which images are looked at"
    BEFORE = "the prediction before tuning"
    TUNING = "how a method tunes or is trained"
    REPORT = "how predictions are summed up"


INFLUENTIAL = (Role.DATA, Role.BEFORE, Role.TUNING)  # on predictions


@dataclass(frozen=True)
class Setting:
    """A setting's role, and where it is told apart in another way than by its value."""

    role: Role
    hashed: bool = False  # names a file, which may be moved or replaced: its hash counts, not its name
    in_path: bool = False  # has a folder of its own in a run's path, so the tag need not name it
    compared: bool = True  # of BEFORE and TUNING: another value makes another row in a table


# CoOp's, but a prompt that it has learnt is read in the same way by every method.
OF_PROMPTS = "TRAINER.COOP.CLASS_TOKEN_POSITION"

# Full names, or beginnings that end in a dot and stand for all that they begin.
SETTINGS: Mapping[str, Setting] = {
    "SEED": Setting(Role.DATA, in_path=True),
    "OUTPUT_DIR": Setting(Role.PLACE),
    "TAG": Setting(Role.PLACE),
    "DEVICE": Setting(Role.SPEED),
    "DATASET.NAME": Setting(Role.DATA, in_path=True),
    "DATASET.ROOT": Setting(Role.PLACE),
    "DATASET.FEWSHOT_DIR": Setting(Role.PLACE),
    "DATASET.NUM_SHOTS": Setting(Role.TUNING),
    "DATASET.SUBSAMPLE_CLASSES": Setting(Role.DATA),
    "INPUT.": Setting(Role.BEFORE),
    "DATALOADER.NUM_WORKERS": Setting(Role.SPEED),
    "DATALOADER.JPEG": Setting(Role.BEFORE, compared=False),
    "DATALOADER.ON_BAD_IMAGE": Setting(Role.DATA),
    "DATALOADER.TRAIN_X.": Setting(Role.TUNING),
    "MODEL.BACKBONE.NAME": Setting(Role.BEFORE, hashed=True, in_path=True, compared=False),
    "MODEL.ACTIVATION": Setting(Role.BEFORE, hashed=True, compared=False),  # how the backbone's file is read
    "MODEL.HEAD_WIDTH": Setting(Role.BEFORE, hashed=True, compared=False),
    "MODEL.PREC": Setting(Role.BEFORE, compared=False),
    "MODEL.INIT_WEIGHTS": Setting(Role.BEFORE, hashed=True),
    "PROMPT.": Setting(Role.BEFORE),
    "TTA.EPISODES": Setting(Role.SPEED),
    "TTA.JACOBIAN": Setting(Role.SPEED),
    "TTA.JACOBIAN_GB": Setting(Role.SPEED),
    "TTA.": Setting(Role.TUNING),
    "OPTIM.": Setting(Role.TUNING),
    "TRAINER.NAME": Setting(Role.TUNING, in_path=True, compared=False),
    OF_PROMPTS: Setting(Role.BEFORE),
    "TRAINER.": Setting(Role.TUNING),
    "TEST.BINS": Setting(Role.REPORT),
    "TEST.SALS": Setting(Role.REPORT),
    "TEST.": Setting(Role.DATA),
    "CACHE.": Setting(Role.PLACE),
}


def setting_of(key: str) -> Setting:
    """The table's line on a key: its own, else that of its longest beginning."""
    if key in SETTINGS:
        return SETTINGS[key]
    beginnings = [name for name in SETTINGS if name.endswith(".") and key.startswith(name)]
    return SETTINGS[max(beginnings, key=len)] if beginnings else Setting(Role.TUNING)


def leaves(cfg: CfgNode, prefix: str = "") -> dict[str, object]:
    """Every setting by its full name."""
    flat = {}
    for key, value in cfg.items():
        if isinstance(value, CfgNode):
            flat.update(leaves(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def own_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that concern a trainer: all but those of other methods, unless it takes over their terms."""
    added = regulariser_names(settings.get("TRAINER.REGULARISERS"))
    own = {method_key(branch) for branch in (branch_of(trainer), "NAME", "REGULARISERS", *added)}
    return {
        key: value for key, value in settings.items()
        if not key.startswith("TRAINER.") or key == OF_PROMPTS or method_key(key.split(".")[1]) in own
    }


def influential_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that a trainer's predictions follow from."""
    return {
        key: value for key, value in own_settings(settings, trainer).items() if setting_of(key).role in INFLUENTIAL
    }


def compared_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that make a run another experiment: what a table's rows may differ in."""
    return {
        key: value for key, value in own_settings(settings, trainer).items()
        if setting_of(key).role in (Role.BEFORE, Role.TUNING) and setting_of(key).compared
    }
