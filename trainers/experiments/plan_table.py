"""The plan as text: which runs, what is finished, and what the rest takes."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tabulate import tabulate

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import one_line
from ..registry import method_info
from .plan import PlannedRun, Workspace, differs
from .timing import Estimate, estimate

HEADS = ["experiment", "data set", "backbone", "methods", "runs", "finished", "images", "time", "disk"]


def show_plan(plans: Mapping[str, Sequence[PlannedRun]], workspace: Workspace, trial: bool) -> str:
    """A row for each data set, or for several experiments each backbone, and totals. A run that experiments share
    counts in the first of them. `trial`: measure the time of a few images."""
    runs = list(dict.fromkeys(run for plan in plans.values() for run in plan))
    finished = {run for run in runs if run.finished}
    left = estimate(runs, finished, trial)
    body, uncounted = [], dict(left)
    for name, plan in plans.items():
        rows: dict[tuple, list[PlannedRun]] = {}
        for run in plan:
            rows.setdefault((run.backbone, "" if len(plans) > 1 else run.dataset), []).append(run)
        for some in rows.values():
            costs = [uncounted.pop(run) for run in some if run in uncounted]
            datasets = {run.dataset for run in some}
            methods = Counter(method_info(run.method).label for run in some)
            body.append([
                name, some[0].dataset if len(datasets) == 1 else f"{len(datasets)} sets", some[0].backbone,
                ", ".join(label + (f" ×{number}" if number > 1 else "") for label, number in methods.items()),
                len(some), sum(run in finished for run in some), f"{sum(run.size[0] for run in some):,}",
                time_text(costs), size_text(costs) if costs else "",
            ])
        if not plan:
            body.append([name, "", "", "no runs: computed with the table", 0, "", "", "", ""])
    lines = [
        tabulate(body, headers=HEADS, disable_numparse=True, colalign=("left",) * 4 + ("right",) * 5),
        "",
        f"{counted(len(runs), 'run')}, {len(finished):,} finished, {len(left):,} to do.",
    ]
    if left:
        lines += totals(list(left.values()), workspace)
    lines += [f"{run.described}: {reason}" for run in runs if run in finished and (reason := differs(run))]
    return "\n".join([*lines, *data_lines(runs, workspace)])


def totals(costs: Sequence[Estimate], workspace: Workspace) -> list[str]:
    """Time with its source, and disk."""
    known = [cost for cost in costs if cost.seconds is not None]
    unknown = Counter(cost.source for cost in costs if cost.seconds is None)
    lines = []
    if known:
        sources = [f"from {source}: {counted(number, 'run')}" for source, number in
                   Counter(cost.source for cost in known).items()]
        lines.append(f"Time on this machine: about {time_text(known)} in one process, tables and figures not counted "
                     f"({'; '.join(sources)}).")
    lines += [f"Time unknown: {counted(number, 'run')} ({reason})." for reason, number in unknown.items()]
    return [*lines, f"Disk: about {size_text(costs)}, most of it view features in {workspace.cache_dir}, and "
                    "there up to 4.5 GB per data set; that folder may be removed afterwards."]


def data_lines(runs: Sequence[PlannedRun], workspace: Workspace) -> list[str]:
    """The state of the data, and the remedy for each set that is not complete."""
    states = {run.dataset_name: state for run in runs if (state := run.data_state)}.values()
    summary = [f"{name}: {', '.join(keys)}" for name in ("ok", "partial", "faulty", "absent")
               if (keys := [state.cls.key() for state in states if state.state == name])]
    advice = [f"  {state.cls.key()}: {one_line(state.advice)}" for state in states if state.state != "ok"]
    return [f"Data in {workspace.root or 'data'}: {'; '.join(summary)}.", *advice] if states else []


def time_text(costs: Sequence[Estimate]) -> str:
    if any(cost.seconds is None for cost in costs):
        return "unknown"
    seconds = sum(cost.seconds or 0 for cost in costs)
    if seconds < 60:
        return f"{seconds:.0f} s" if costs else ""
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"


def size_text(costs: Sequence[Estimate]) -> str:
    size = sum(cost.disk for cost in costs)
    return f"{size / 1e6:.0f} MB" if size < 1e9 else f"{size / 1e9:.1f} GB"
