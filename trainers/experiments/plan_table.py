"""The plan as text: which runs, what is finished, and what the rest takes."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import one_line
from ..registry import method_info
from .plan import PlannedRun, Workspace, differs, has_training_images
from .timing import FINISHED, TRIAL, Estimate, estimate

HEADS = ["experiment", "data set", "backbone", "methods", "runs", "finished", "images", "time", "disk"]


def show_plan(plans: Mapping[str, Sequence[PlannedRun]], workspace: Workspace, trial: bool) -> str:
    """A row for each data set, or for several experiments each backbone, and totals. A run that experiments share
    counts in the first of them. `trial`: measure the time of a few images."""
    runs = list(dict.fromkeys(run for plan in plans.values() for run in plan))
    finished = {run for run in runs if run.finished}
    left = estimate(runs, finished, trial)
    body = []
    counted_before: set[PlannedRun] = set()
    for name, plan in plans.items():
        rows: dict[tuple, list[PlannedRun]] = {}
        for run in plan:
            rows.setdefault((run.backbone, "" if len(plans) > 1 else run.dataset), []).append(run)
        for some in rows.values():
            costs = [left[run] for run in some if run in left and run not in counted_before]
            datasets = sorted({run.dataset for run in some})
            body.append([
                name, datasets[0] if len(datasets) == 1 else f"{len(datasets)} sets", some[0].backbone,
                methods_text(some), len(some), sum(run in finished for run in some),
                f"{sum(run.size[0] for run in some):,}",
                time_text(costs), size_text(sum(cost.disk for cost in costs)) if costs else "",
            ])
        if not plan:
            body.append([name, "", "", "no runs: computed with the table", 0, "", "", "", ""])
        counted_before.update(plan)
    lines = [
        tabulate(body, headers=HEADS, disable_numparse=True, colalign=("left",) * 4 + ("right",) * 5),
        "",
        f"{counted(len(runs), 'run')}, {len(finished)} finished, {len(left)} to do.",
    ]
    if left:
        lines += totals(list(left.values()), workspace)
    lines += [f"{run.described}: {reason}" for run in runs if run in finished and (reason := differs(run))]
    return "\n".join([*lines, *data_lines(runs, workspace)])


def methods_text(runs: Sequence[PlannedRun]) -> str:
    """The methods, each with its number of runs if there are several."""
    numbers = Counter(run.method for run in runs)
    return ", ".join(method_info(method).label + (f" ×{number}" if number > 1 else "") for method, number in
                     numbers.items())


def totals(costs: Sequence[Estimate], workspace: Workspace) -> list[str]:
    """Time with its source, and disk."""
    sources = Counter(cost.source for cost in costs if cost.seconds is not None)
    unknown = Counter(cost.source for cost in costs if cost.seconds is None)
    lines = []
    if sources:
        parts = [f"from {source}: {counted(sources[source], 'run')}" for source in (FINISHED, TRIAL) if sources[source]]
        seconds = sum(cost.seconds or 0 for cost in costs)
        lines.append(f"Time on this machine: about {duration(seconds)} in one process, tables and figures not counted "
                     f"({'; '.join(parts)}).")
    lines += [f"Time unknown: {counted(number, 'run')} ({reason})." for reason, number in unknown.items()]
    disk = size_text(sum(cost.disk for cost in costs))
    return [*lines, f"Disk: about {disk}, most of it view features and Jacobians in {workspace.cache_dir}, which may "
                    "be removed afterwards."]


def data_lines(runs: Sequence[PlannedRun], workspace: Workspace) -> list[str]:
    """The state of the data, and the remedy for each set that is not complete."""
    states = {run.dataset_name: state for run in runs if (state := run.data_state)}
    by_state: dict[str, list[str]] = {"ok": [], "partial": [], "faulty": [], "absent": []}
    for state in states.values():
        by_state[state.state].append(state.cls.key())
    summary = "; ".join(f"{name}: {', '.join(keys)}" for name, keys in by_state.items() if keys)
    advice = [f"  {state.cls.key()}: {one_line(state.advice)}" for state in states.values() if state.state != "ok"]
    for name, root in dict.fromkeys((run.dataset_name, run.cfg.DATASET.ROOT) for run in runs if run.prompt):
        state = states.get(name)
        if state and state.state in ("ok", "partial") and not has_training_images(name, root):
            advice.append(f"  {state.cls.key()}: no training images, from which CoOp learns the prompts")
    return [f"Data in {workspace.root or 'data'}: {summary}.", *advice] if states else []


def time_text(costs: Sequence[Estimate]) -> str:
    if any(cost.seconds is None for cost in costs):
        return "unknown"
    return duration(sum(cost.seconds or 0 for cost in costs)) if costs else ""


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


def size_text(count: float) -> str:
    return f"{count / 1e6:.0f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"
