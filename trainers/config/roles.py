"""What each setting influences, in one table.

It decides whether a run may be resumed (fingerprint), the name of its folder (tag), and which runs the report compares.
A setting that is not listed has the role METHOD.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from yacs.config import CfgNode

from ..registry import EVERY_IMAGE, branch_of, method_info, method_key
from .safe_yaml import flatten


class Role(Enum):
    """What a setting changes."""

    PATH = "where files are read and written"
    SPEED = "speed and memory"
    DATA = "which images are used"
    ZERO_SHOT = "the prediction before adaptation"
    METHOD = "how a method adapts or is trained"
    STREAM = "in which order an online method sees the images"
    METRICS = "how predictions are measured"


INFLUENTIAL = (Role.DATA, Role.ZERO_SHOT, Role.METHOD, Role.STREAM)  # on predictions
COMPARED = (Role.ZERO_SHOT, Role.METHOD, Role.STREAM)  # another value makes another row in a table


@dataclass(frozen=True)
class Setting:
    """A setting's role, and how it enters the fingerprint, the tag and the report's tables."""

    role: Role
    hashed: bool = False  # names a file: the fingerprint has the file's hash instead of its name
    in_path: bool = False  # is a folder of its own in a run's path, so it is not in the tag
    compared: bool = True  # False: not, although its role is one of COMPARED
    fixed: bool = False  # changes no prediction, but must stay the same until the run is finished


# CoOp's key, but every method that starts from a learnt prompt reads it.
OF_PROMPTS = "TRAINER.COOP.CLASS_TOKEN_POSITION"

# Full names, or prefixes that end in a dot. The longest match counts.
SETTINGS: Mapping[str, Setting] = {
    "SEED": Setting(Role.DATA, in_path=True),
    "OUTPUT_DIR": Setting(Role.PATH),
    "TAG": Setting(Role.PATH),
    "DEVICE": Setting(Role.SPEED),
    "DATASET.NAME": Setting(Role.DATA, in_path=True),
    "DATASET.ROOT": Setting(Role.PATH),
    "DATASET.FEWSHOT_DIR": Setting(Role.PATH),
    "DATASET.NUM_SHOTS": Setting(Role.METHOD),
    "DATASET.CORRUPTION": Setting(Role.DATA, in_path=True),
    "DATASET.SEVERITY": Setting(Role.DATA, in_path=True),
    "DATASET.IMAGE_LIST": Setting(Role.DATA, hashed=True),
    "DATASET.SUBSAMPLE_CLASSES": Setting(Role.DATA),
    "INPUT.": Setting(Role.ZERO_SHOT),
    "DATALOADER.NUM_WORKERS": Setting(Role.SPEED),
    "DATALOADER.ON_BAD_IMAGE": Setting(Role.DATA),
    "DATALOADER.TRAIN_X.": Setting(Role.METHOD),
    "MODEL.BACKBONE.NAME": Setting(Role.ZERO_SHOT, hashed=True, in_path=True, compared=False),
    "MODEL.PREC": Setting(Role.ZERO_SHOT),
    "MODEL.INIT_WEIGHTS": Setting(Role.ZERO_SHOT, hashed=True),
    "PROMPT.DESCRIPTIONS": Setting(Role.ZERO_SHOT, hashed=True),
    "PROMPT.": Setting(Role.ZERO_SHOT),
    "TTA.EPISODES": Setting(Role.SPEED),
    "TTA.JACOBIAN": Setting(Role.SPEED),
    "TTA.JACOBIAN_GB": Setting(Role.SPEED),
    "TTA.": Setting(Role.METHOD),
    "OPTIM.": Setting(Role.METHOD),
    "TRAINER.NAME": Setting(Role.METHOD, in_path=True, compared=False),
    OF_PROMPTS: Setting(Role.ZERO_SHOT),
    "TRAINER.": Setting(Role.METHOD),
    "TEST.BINS": Setting(Role.METRICS),
    "TEST.SALS": Setting(Role.METRICS),
    "TEST.PART": Setting(Role.SPEED, fixed=True),  # the parts of an unfinished run depend on it
    "TEST.ORDER": Setting(Role.STREAM),
    "TEST.CORRELATION": Setting(Role.STREAM),
    "TEST.": Setting(Role.DATA),
    "CACHE.": Setting(Role.PATH),
}


def longest_match(key: str, table: Iterable[str]) -> str:
    """The entry of a table that names a key or is its longest prefix; "" if there is none."""
    return max((name for name in table if key == name or (name.endswith(".") and key.startswith(name))), key=len,
               default="")


def setting_of(key: str) -> Setting:
    """The table's line for a key."""
    return SETTINGS.get(longest_match(key, SETTINGS), Setting(Role.METHOD))


def leaves(cfg: CfgNode) -> dict[str, object]:
    """Every setting by its full name."""
    return dict(flatten(cfg))


def without_effect(settings: Mapping[str, object], trainer: str) -> set[str]:
    """The settings that change nothing because of the trainer or of other settings."""
    online = method_info(trainer).online or str(settings.get("TTA.RESET", "image")) not in EVERY_IMAGE
    described = settings.get("PROMPT.DESCRIPTIONS")
    texts = settings.get("PROMPT.TEMPLATE") or described
    effective = {"DATASET.SEVERITY": settings.get("DATASET.CORRUPTION"), "TEST.ORDER": online,
                 "TEST.CORRELATION": online and settings.get("TEST.ORDER") == "correlated",
                 "PROMPT.CTX_INIT": not texts, "PROMPT.ENSEMBLE": texts, "PROMPT.DESCRIPTION_FORMAT": described}
    return {key for key, effect in effective.items() if not effect}


def own_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that concern a trainer: all but those without effect and those of methods that it does not use."""
    unused = without_effect(settings, trainer)
    terms = str(settings.get("TRAINER.REGULARISERS") or "").split(",")
    added = [term.partition(":")[0].strip() for term in terms if term.strip()]
    own = {method_key(branch) for branch in (branch_of(trainer), "NAME", "REGULARISERS", *added)}
    return {
        key: value for key, value in settings.items()
        if (not key.startswith("TRAINER.") or key == OF_PROMPTS or method_key(key.split(".")[1]) in own)
        and key not in unused
    }


def influential_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that a trainer's predictions depend on."""
    own = own_settings(settings, trainer)
    return {key: value for key, value in own.items() if setting_of(key).role in INFLUENTIAL}


def compared_settings(settings: Mapping[str, object], trainer: str) -> dict[str, object]:
    """The settings that define an experiment: the rows of a table may differ in them. The λ of an added term is not
    one of them: its weight in TRAINER.REGULARISERS takes its place."""
    own = {key: (value, setting_of(key)) for key, value in own_settings(settings, trainer).items()
           if not key.endswith(".LAMBDA") or method_key(key.split(".")[1]) == method_key(branch_of(trainer))}
    return {key: value for key, (value, setting) in own.items() if setting.role in COMPARED and setting.compared}
