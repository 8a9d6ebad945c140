"""The plan in words: which runs, what is done, what is left and what it will take."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tabulate import tabulate

from ...datasets.download.verify import Finding
from ...datasets.utils.cli import counted
from ...datasets.utils.errors import one_line
from ..registry import method_info
from .definition import Experiment, names, read_experiment
from .estimate import (
    BACKBONES,
    IMAGE_RATE,
    TEXT_RATE,
    Machine,
    Work,
    known_speeds,
    measure_machine,
    seconds_here,
    works,
)
from .plan import Place, PlannedRun, differs, expand, findings
from .timing import try_out

HEADS = ["experiment", "data set", "method", "setting", "runs", "images", "state", "on an A100", "here", "disk"]


def show_list(place: Place) -> str:
    """All experiments."""
    rows = []
    for name in names():
        experiment = read_experiment(name)
        rows.append([name, experiment.title, experiment.makes, len(expand(experiment, place))])
    return tabulate(rows, headers=["name", "shows", "makes", "runs"], disable_numparse=True)


def show_plan(plans: Mapping[str, Sequence[PlannedRun]], experiments: Mapping[str, Experiment], place: Place) -> str:
    """A row for each group of runs, and totals. A run that several experiments share counts in the first."""
    runs = list(dict.fromkeys(run for plan in plans.values() for run in plan))
    finished = {run for run in runs if run.finished}
    stale = {run: reason for run in finished if (reason := differs(run))}
    left = works(runs, finished, half=torch.cuda.is_available())
    machine = measure_machine({size_of(run) for run in runs}) if left else None
    speeds = known_speeds(finished)
    trial = try_out(left) if place.demo else None
    here = {
        run: trial.seconds(run, work.views) if trial and not method_info(run.method).trained
        else seconds_here(run, work, machine, speeds) for run, work in left.items()
    }
    body, seen = [], set()
    wide = len(plans) > 1
    for name, plan in plans.items():
        for group in grouped(plan, wide):
            own = [run for run in group if run not in seen]
            seen.update(own)
            open_runs = [run for run in own if run in left]
            work = sum((left[run] for run in open_runs), Work())
            body.append([
                name, sets_of(group), method_info(group[0].method).label, settings_text(group), len(group),
                f"{sum(run.size[0] for run in group):,}", state_of(group, own, finished),
                duration(work.on_a100) if open_runs else "", duration(sum(here[run] for run in open_runs))
                if open_runs else "", size(work.disk) if open_runs else "",
            ])
        if not plan:
            body.append([name, "", "", "no runs: computed with the table", 0, "", "", "", "", ""])
    total = sum(left.values(), Work())
    lines = [
        tabulate(body, headers=HEADS, disable_numparse=True,
                 colalign=("left",) * 4 + ("right",) * 2 + ("left",) + ("right",) * 3),
        "",
        f"{counted(len(runs), 'run')}, {len(finished)} finished, {len(left)} to do.",
    ]
    if left:
        outcomes = trial.outcome * len(plans) if trial else 0
        lines += totals(total, sum(here.values()) + outcomes, machine, place, tried=trial is not None)
    lines += [f"{run.described}: {reason}" for run, reason in stale.items()]
    lines += data_lines(findings(runs), place)
    return "\n".join(lines)


def data_lines(found: Sequence[Finding], place: Place) -> list[str]:
    """The state of the data, each set that is not whole with what to do about it."""
    if not found:
        return []
    states = {state: [one.cls.key() for one in found if one.state == state] for state in
              ("ok", "partial", "faulty", "absent")}
    told = "; ".join(f"{state}: {', '.join(keys)}" for state, keys in states.items() if keys)
    advice = [f"  {one.cls.key()}: {one_line(one.advice)}" for one in found if one.state != "ok"]
    return [f"Data in {place.root or 'data'}: {told}.", *advice]


def totals(total: Work, here: float, machine: Machine, place: Place, tried: bool) -> list[str]:
    grounds = (f"finished runs where there are such, else from {machine.rate / 1e9:,.0f} GFLOP/s and the time of a "
               f"view, both measured a moment ago")
    return [
        f"On an A100: about {duration(total.on_a100)}. An estimate from operation counts ({total.image / 1e15:,.1f} "
        f"PFLOP of the image tower at {IMAGE_RATE / 1e12:g} TFLOP/s, {total.text / 1e15:,.1f} of the text tower at "
        f"{TEXT_RATE / 1e12:g}), not a measurement; start-up and the CPU's work on images come on top.",
        f"On this machine ({machine.name}): about {duration(here)}. An estimate from "
        f"{'a few images that were run a moment ago' if tried else grounds}.",
        f"Disk: about {size(total.disk)}, most of it view features and Jacobians in {place.features}, which may be "
        "removed afterwards.",
    ]


def grouped(plan: Sequence[PlannedRun], wide: bool) -> list[list[PlannedRun]]:
    """Runs of one method and backbone, of one data set unless the view is `wide`."""
    groups: dict[tuple, list[PlannedRun]] = {}
    for run in plan:
        groups.setdefault((run.backbone, "" if wide else run.dataset, run.method), []).append(run)
    return list(groups.values())


def sets_of(group: Sequence[PlannedRun]) -> str:
    sets = list(dict.fromkeys(run.dataset for run in group))
    return sets[0] if len(sets) == 1 else f"{len(sets)} sets"


def settings_text(group: Sequence[PlannedRun]) -> str:
    """The backbone, and what the runs of a group differ in."""
    parts = [group[0].backbone]
    for key in dict.fromkeys(key for run in group for key in run.variant):
        values = list(dict.fromkeys(str(run.variant[key]) for run in group if key in run.variant))
        shown = ", ".join(values) if len(values) < 8 else f"{len(values)} values"
        parts.append(f"{key.rsplit('.', 1)[-1]} {shown}")
    shots = sorted({run.shots for run in group})
    if shots != [0]:
        parts.append(f"shots {', '.join(map(str, shots))}")
    seeds = sorted({run.seed for run in group})
    if len(seeds) > 1:
        parts.append(f"seeds {', '.join(map(str, seeds))}")
    return "; ".join(parts)


def state_of(group: Sequence[PlannedRun], own: Sequence[PlannedRun], finished: set[PlannedRun]) -> str:
    done = sum(run in finished for run in group)
    if done == len(group):
        return "finished"
    if not own:
        return "shared"
    return f"{done} finished, {len(group) - done} to do" if done else "to do"


def size_of(run: PlannedRun) -> int:
    return BACKBONES.get(run.backbone, BACKBONES["ViT-L/14"]).pixels


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


def size(count: float) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
