"""The part of a plan that `--only` names, by method, data set and backbone."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...datasets.utils.errors import ConfigError
from ...datasets.utils.registry import nearest
from ..registry import method_key
from .planned_run import PlannedRun


def select(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    """The runs that match `only`, and the prompts that they start from.

    For each kind of name given (method, data set, backbone), one of the names must match.
    """
    names = {run: names_of(run) for run in runs}
    wanted: dict[str, set[str]] = {"method": set(), "dataset": set(), "backbone": set()}
    for name in only:
        kind = find_kind(name, wanted, names.values())
        if not kind:
            known: set[str] = set()
            for run in runs:
                known.update((run.method, run.dataset, run.backbone))
            raise ConfigError(
                f"--only {name}: no such method, data set or backbone here."
                f"{nearest(name, sorted(known))} Known: {', '.join(sorted(known))}.")
        wanted[kind].add(method_key(name))

    selected = set()
    for run in runs:
        matches = True
        for kind, keys in wanted.items():
            if keys and keys.isdisjoint(names[run][kind]):
                matches = False
        if matches:
            selected.add(run)
            if run.prompt:
                selected.add(run.prompt)
    return [run for run in runs if run in selected]


def names_of(run: PlannedRun) -> dict[str, set[str]]:
    """By kind, the names by which `--only` may select a run."""
    return {
        "method": {method_key(run.method)},
        "dataset": {method_key(run.dataset), method_key(run.dataset_name)},
        "backbone": {method_key(run.backbone)},
    }


def find_kind(name: str, kinds: Iterable[str], names: Iterable[Mapping[str, set[str]]]) -> str:
    """What a name is: the first kind in which a run has it; "" if no run has it."""
    by_run = list(names)
    for kind in kinds:
        for run_names in by_run:
            if method_key(name) in run_names[kind]:
                return kind
    return ""
