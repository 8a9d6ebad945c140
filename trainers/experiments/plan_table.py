"""The plan as text: which runs, what is finished, and what the rest takes.

Times come from finished runs of the same kind. Where there is none the time is unknown: a pilot
with a few images (`--limit`) makes it known.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from tabulate import tabulate

from ...datasets.utils.cli import counted
from ...datasets.utils.errors import one_line
from ...datasets.utils.files import read_json
from ..config.layers import read_pairs
from ..config.settings import (
    effective_settings,
    find_setting,
    get_cfg_default,
    influences_predictions,
    leaves,
)
from ..functional.significance import SD_ALIKE, SD_NEAR_ZERO, smallest_difference
from ..registry import method_info
from ..runs.record import RunRecord
from .plan import Workspace
from .planned_run import PlannedRun, inspect_data, work_groups
from .run_state import RunState

HEADS = ["experiment", "data set", "backbone", "methods", "runs", "finished", "images", "time",
         "disk"]
DATA_STATES = ("ok", "partial", "faulty", "absent")
FEW_IMAGES = 1000  # below which a plan says what differences can be shown
# Numbers in a feature, by backbone.
WIDTHS = {"small": 128, "RN101": 512, "ViT-B/32": 512, "ViT-B/16": 512, "ViT-L/14": 768,
          "ViT-L/14@336px": 768}
WIDEST = 1024  # of any other backbone
BYTES_PER_CLASS = 8  # of an image in predictions.npz: two logits


@dataclass(frozen=True)
class Estimate:
    """What an unfinished run takes.

    Attributes:
        disk: Disk space in bytes.
        seconds: Time; None if it is not known.
    """

    disk: float
    seconds: float | None = None


def show_plan(plans: Mapping[str, Sequence[PlannedRun]], workspace: Workspace) -> str:
    """The plan as a table with totals below it.

    One experiment has a row for each backbone and data set, several have a row for each backbone.
    Time and disk of a run that experiments share count in the first of them.
    """
    runs: dict[PlannedRun, None] = {}
    for plan in plans.values():
        runs.update(dict.fromkeys(plan))
    states = find_states(list(runs))
    finished = {run for run, state in states.items() if state.finished}
    estimates = estimate(list(runs), finished)

    uncounted = dict(estimates)
    body = []
    for name, plan in plans.items():
        if not plan:
            body.append([name, "", "", "no runs: computed with the table", 0, "", "", "", ""])
        for row_runs in rows_of_plan(plan, by_dataset=len(plans) == 1):
            costs = []
            for run in row_runs:
                if run in uncounted:
                    costs.append(uncounted.pop(run))
            body.append([name, *plan_row(row_runs, finished, costs)])

    table = tabulate(body, headers=HEADS, disable_numparse=True,
                     colalign=("left",) * 4 + ("right",) * 5)
    lines = [table, ""]
    lines.append(f"{counted(len(runs), 'run')}, {len(finished):,} finished, "
                 f"{len(estimates):,} to do.")
    if estimates:
        lines += totals(list(estimates.values()), workspace)
    for key in unused_settings(list(runs), workspace):
        lines.append(f"No run uses {key}.")
    lines += few_images_lines(list(runs))
    lines += conflict_lines(states, workspace)
    lines += data_lines(list(runs), workspace)
    return "\n".join(lines)


def find_states(runs: Sequence[PlannedRun]) -> dict[PlannedRun, RunState]:
    """What the folder of each run holds."""
    states = {}
    # Runs on the same images come one after another: only the last data sets are cached.
    for group in work_groups(runs):
        for run in group:
            states[run] = run.state
    return states


def few_images_lines(runs: Sequence[PlannedRun]) -> list[str]:
    """What differences can be seen on data sets with few test images."""
    images_by_dataset = {}
    for run in runs:
        images = run.size[0]
        if run.split == "test" and 0 < images < FEW_IMAGES:
            images_by_dataset[run.dataset] = images
    if not images_by_dataset:
        return []
    parts = []
    for dataset, images in images_by_dataset.items():
        alike = 100 * smallest_difference(images, SD_ALIKE)
        near_zero = 100 * smallest_difference(images, SD_NEAR_ZERO)
        parts.append(f"{dataset} ({counted(images, 'image')}) {alike:.1f} to {near_zero:.0f}")
    return [f"Few images: differences of over-confidence can be shown (with 80 % power) from about "
            f"{'; '.join(parts)} points, the first between similar methods, the second where one "
            f"of them is nearly calibrated."]


def unused_settings(runs: Sequence[PlannedRun], workspace: Workspace) -> list[str]:
    """Keys of the settings given by --set that have no effect on any run."""
    known = leaves(get_cfg_default())
    unused = []
    for key, _ in read_pairs(workspace.opts):
        if key not in known or not influences_predictions(find_setting(key)):
            continue
        if not any(key in effective_settings(run.cfg) for run in runs):
            unused.append(key)
    return unused


def conflict_lines(states: Mapping[PlannedRun, RunState], workspace: Workspace) -> list[str]:
    """Which folders hold other runs than the planned ones, and what happens to them.

    Args:
        states: The state of the folder of each planned run.
        workspace: Says whether such runs are overwritten.
    """
    conflicts = {run: state.conflict for run, state in states.items() if state.conflict}
    if not conflicts:
        return []
    if workspace.overwrite:
        lines = [f"{counted(len(conflicts), 'folder')} of other runs, which are overwritten:"]
    else:
        lines = [f"{counted(len(conflicts), 'folder')} of other runs, which are neither shown nor "
                 f"overwritten (--overwrite computes them again):"]
    for run, conflict in conflicts.items():
        lines.append(f"  {run.described}: {conflict}")
    return lines


def rows_of_plan(plan: Sequence[PlannedRun], by_dataset: bool) -> list[list[PlannedRun]]:
    """The runs of each backbone, or of each backbone and data set."""
    rows: dict[tuple[str, str], list[PlannedRun]] = {}
    for run in plan:
        dataset = run.dataset if by_dataset else ""
        rows.setdefault((run.backbone, dataset), []).append(run)
    return list(rows.values())


def plan_row(
    runs: Sequence[PlannedRun], finished: set[PlannedRun], costs: Sequence[Estimate],
) -> list[object]:
    """The cells of a row of the table, in the order of HEADS, for runs with one backbone.

    Args:
        runs: The runs, at least one.
        finished: Runs of the plan that are finished.
        costs: Estimates of the runs that are not finished.
    """
    datasets = set()
    runs_of_method: Counter[str] = Counter()
    number_finished = 0
    images = 0
    for run in runs:
        datasets.add(run.dataset)
        runs_of_method[method_info(run.method).label] += 1
        number_finished += run in finished
        images += run.size[0]
    dataset = runs[0].dataset
    if len(datasets) > 1:
        dataset = f"{len(datasets)} sets"

    methods = []
    for label, number in runs_of_method.items():
        if number > 1:
            label = f"{label} ×{number}"
        methods.append(label)

    time = ""
    disk = ""
    if costs:
        time = time_text(costs)
        disk = size_text(costs)
    return [dataset, runs[0].backbone, ", ".join(methods), len(runs), number_finished,
            f"{images:,}", time, disk]


def totals(costs: Sequence[Estimate], workspace: Workspace) -> list[str]:
    """Time and disk space of all unfinished runs."""
    known = [cost for cost in costs if cost.seconds is not None]
    unknown = len(costs) - len(known)
    lines = []
    if known:
        lines.append(f"Time on this machine: about {time_text(known)} in one process, tables and "
                     f"figures not counted ({counted(len(known), 'run')}, by finished runs of the "
                     f"same kind).")
    if unknown:
        lines.append(f"Time unknown: {counted(unknown, 'run')}, because no run of the same kind is "
                     f"finished. A pilot makes it known: the same command with --limit 20.")
    lines.append(f"Disk: about {size_text(costs)}, most of it view features in "
                 f"{workspace.cache_dir}. Jacobians of the text features add up to 4.5 GB per "
                 f"data set there. That folder may be removed afterwards.")
    return lines


def data_lines(runs: Sequence[PlannedRun], workspace: Workspace) -> list[str]:
    """The state of the data, and the remedy for each set that is not complete."""
    states = {}
    for run in runs:
        state = inspect_data(run.data_place)
        if state:
            states[run.dataset_name] = state
    if not states:
        return []

    summary = []
    for name in DATA_STATES:
        keys = [state.cls.key() for state in states.values() if state.state == name]
        if keys:
            summary.append(f"{name}: {', '.join(keys)}")
    lines = [f"Data in {workspace.root or 'data'}: {'; '.join(summary)}."]
    for state in states.values():
        if state.state != "ok":
            lines.append(f"  {state.cls.key()}: {one_line(state.advice)}")
    return lines


def time_text(costs: Sequence[Estimate]) -> str:
    """The sum of times as text; `unknown` if one of them is."""
    seconds = 0.0
    for cost in costs:
        if cost.seconds is None:
            return "unknown"
        seconds += cost.seconds
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:,.0f} days"


def size_text(costs: Sequence[Estimate]) -> str:
    """The sum of disk space as text."""
    size = sum(cost.disk for cost in costs)
    if size < 1e9:
        return f"{size / 1e6:.0f} MB"
    return f"{size / 1e9:.1f} GB"


def estimate(
    runs: Sequence[PlannedRun], finished: Collection[PlannedRun],
) -> dict[PlannedRun, Estimate]:
    """Time and disk space of each unfinished run.

    View features count for the first run that makes them. Jacobians are not counted.
    """
    times: dict[tuple, list[float]] = {}
    # Features that are on disk, or that a run before in the plan makes.
    available = {run.features_key for run in finished}
    bytes_per_number = 2 if torch.cuda.is_available() else 4

    estimates = {}
    for run in runs:
        if run in finished:
            continue
        images, classes = run.size
        disk = images * BYTES_PER_CLASS * classes
        encodes = run.features_key not in available
        available.add(run.features_key)
        if encodes:
            width = WIDTHS.get(run.backbone, WIDEST)
            disk += images * run.num_views * width * bytes_per_number
        seconds = None
        # Of runs that take about the same time per image.
        kind = (run.folder.parents[3], run.backbone, run.num_views, run.cfg.TTA.STEPS)
        if kind not in times:
            times[kind] = times_per_image(run)
        measured = times[kind]
        if measured and not run.trains_prompt:
            # The slowest had to encode the views, the fastest read them from the cache.
            per_image = max(measured) if encodes else min(measured)
            seconds = images * per_image
        estimates[run] = Estimate(disk, seconds)
    return estimates


def times_per_image(run: PlannedRun) -> list[float]:
    """Seconds per image of finished runs of the same kind, pilots with fewer images included.

    They have the same data set, backbone, number of views and steps, and may have another method: a
    penalty costs little.
    """
    # A folder is <data set>/<method>/<backbone>/<tag>/<seed>.
    backbone = run.folder.parents[1].name
    times = []
    for file in sorted(run.folder.parents[3].glob(f"*/{backbone}/*/*/results.json")):
        results = read_json(file)
        if not isinstance(results, dict) or not results.get("complete"):
            continue
        try:
            record = RunRecord.from_json(results.get("record"))
        except ValueError:  # of another release, or damaged
            continue
        steps = record.method.get("settings", {}).get("TTA.STEPS", run.cfg.TTA.STEPS)
        seconds = results.get("seconds_per_image")
        if record.views.get("count") == run.num_views and steps == run.cfg.TTA.STEPS and seconds:
            times.append(float(seconds))
    return times
