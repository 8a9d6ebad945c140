"""Settings of runs: which are usual for a method on a data set by the project's own files, which runs differ in what,
and how a setting is written."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ..config.build import build_cfg, dataset_file_of
from ..config.fingerprint import prompt_name
from ..config.roles import compared_settings, leaves
from ..registry import TRAINER_REGISTRY, branch_of
from .reading import Run


def settings_of(run: Run) -> dict[str, object]:
    """The settings that define a run's experiment, without those of other methods."""
    return compared_settings(run.settings, run.trainer)


@cache
def usual_settings(trainer: str, dataset: str) -> Mapping[str, object]:
    """Every setting by its full name; of the defaults alone where the data set has no file in configs/datasets."""
    if trainer not in TRAINER_REGISTRY:
        return {}
    return leaves(build_cfg(trainer, str(dataset_file_of(dataset) or "")))


def settings_pairs(trainer: str, dataset: str) -> list[object]:
    """The method's own settings (λ …) on a data set, as KEY VALUE pairs."""
    branch = f"TRAINER.{branch_of(trainer)}."
    return [item for pair in usual_settings(trainer, dataset).items() if pair[0].startswith(branch) for item in pair]


def unusual_settings(run: Run) -> dict[str, object]:
    """What sets a run apart from the method's usual run on its data set."""
    usual = usual_settings(run.trainer, run.dataset)
    return {key: value for key, value in settings_of(run).items() if key in usual and usual[key] != value}


def show_setting(key: str, value: object) -> str:
    """A setting as a row, a title or a legend names it."""
    if key.endswith(".LAMBDA") and isinstance(value, int | float):
        return f"λ {value:g}"
    if key.endswith(".DELTA") and isinstance(value, int | float):
        return f"δ at {value:g} %"
    if key == "TTA.STEPS":
        return "1 step" if value == 1 else f"{value} steps"
    if key == "PROMPT.CTX_INIT":
        return f"“{value}”" if value else "no initial words"
    if key == "MODEL.INIT_WEIGHTS":
        return f"prompt {prompt_name(str(value))}" if value else "hand-written prompt"
    if isinstance(value, str) and value:
        return value  # words speak for themselves
    return f"{key.rsplit('.', 1)[-1]} {'none' if value in ('', None) else value}"


def swept_keys(runs: Sequence[Run]) -> list[str]:
    """Settings in which two runs of one method on the same images differ."""
    groups = defaultdict(list)
    for run in runs:
        groups[run.trainer, run.dataset, run.data_hash, run.results["n"]].append(settings_of(run))
    keys = set()
    for group in groups.values():
        for key in set().union(*group):
            if len({repr(settings[key]) for settings in group if key in settings}) > 1:
                keys.add(key)
    return sorted(keys)


def setting_words(runs: Sequence[Run]) -> dict[Path, str]:
    """By folder, the settings in which a run differs from its neighbours or from what is usual, as words."""
    swept = swept_keys(runs)
    return {
        run.folder: ", ".join(
            show_setting(key, value) for key, value in settings_of(run).items()
            if key in swept or key in unusual_settings(run)
        )
        for run in runs
    }
