"""An experiment, or all of them, from plan to page."""
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...datasets.download.install import download_dataset
from ...datasets.utils.cli import tool
from ...datasets.utils.errors import ConfigError, UserError, reading
from ...datasets.utils.files import data_root, make_folder
from ..registry import find_method
from ..report.choices import check_choice
from ..report.measure import Measured
from ..runs.lock import RunLock
from ..vlm import openai
from ..vlm.loading import find_loader
from .cluster import Cluster
from .definition import Experiment, add, names, read_experiment
from .outcome import Outcome, write_index, write_outcome
from .plan import PlannedRun, WorkGroup, Workspace, dataset_size, expand, inspect_data, select, work_groups
from .run import run_groups

logger = logging.getLogger(__name__)

Plans = dict[str, list[PlannedRun]]


@dataclass
class Reproduced:
    """What one call has done."""

    computed: int = 0  # runs
    failed: dict[PlannedRun, str] = field(default_factory=dict)  # run -> reason
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by experiment
    problems: dict[str, str] = field(default_factory=dict)  # experiment -> why it has no outcome


def read_experiments(name: str, added: Sequence[str] = (), demo: bool = False) -> dict[str, Experiment]:
    """One experiment or all, by name, with the methods and data sets of `added`."""
    found = [read_experiment(each) for each in (names() if name == "all" else [name])]
    if added and not any(experiment.runs for experiment in found):
        raise ConfigError(f"--add {' '.join(added)}: {name} has no runs to add to")
    if demo and (foreign := [each for each in added if not find_method(each)]):
        raise ConfigError(f"--add {' '.join(foreign)}: --demo takes methods only, its data sets are the embedded ones")
    return {each.name: add(each, added) if added and each.runs else each for each in found}


def make_plans(experiments: dict[str, Experiment], workspace: Workspace, only: Sequence[str]) -> Plans:
    """The runs of each experiment, reduced to `only`. Each name must match in at least one experiment. Faults that all
    runs would share are reported here, once."""
    if workspace.root and not workspace.demo:
        data_root(workspace.root)
    swept = (key for experiment in experiments.values() for group in experiment.runs for key in group.sweep)
    check_choice(workspace.choose, swept, workspace.choose_by)
    family, name = find_loader(workspace.backbone)
    if name and family is openai:
        openai.check_name(name)
    plans = {name: expand(experiment, workspace) for name, experiment in experiments.items()}
    if only:
        every = list(dict.fromkeys(run for plan in plans.values() for run in plan))
        if not every:
            raise ConfigError(f"--only takes a part of an experiment's runs, and {', '.join(plans)} has none")
        chosen = set(select(every, only))
        plans = {name: [run for run in plan if run in chosen] for name, plan in plans.items()}
        plans = {name: plan for name, plan in plans.items() if plan}
    return plans


def download_missing(experiment: Experiment, workspace: Workspace, only: Sequence[str]) -> None:
    """Downloads the data sets of an experiment that may do so (`study: download`) and that are not below the root. What
    cannot be downloaded is reported with the manual steps, and its runs fail."""
    if not experiment.study.get("download") or workspace.demo:
        return
    if not workspace.root:
        raise ConfigError(f"{experiment.name} downloads the data sets that are missing: give the folder with --root")
    root = Path(workspace.root).expanduser()
    runs = select(expand(experiment, workspace), only) if only else expand(experiment, workspace)
    for name in dict.fromkeys(run.dataset_name for run in runs):
        if (state := inspect_data(name, workspace.root)) and state.state == "absent":
            logger.info("%s is not in %s: downloading it, as %s does", state.cls.key(), root, tool("download"))
            with reading():
                download_dataset(state.cls, root)
    inspect_data.cache_clear()
    dataset_size.cache_clear()


def groups_of(plans: Plans) -> list[WorkGroup]:
    return work_groups(dict.fromkeys(run for plan in plans.values() for run in plan))


def reproduce(
    experiments: dict[str, Experiment], plans: Plans, workspace: Workspace, jobs: int = 1,
    cluster: Cluster | None = None,
) -> Reproduced:
    """Computes the runs that are not finished, `jobs` groups at a time or on a cluster, then writes each experiment's
    outcome."""
    done = Reproduced()
    measured: dict[PlannedRun, Measured] = {}
    groups = groups_of(plans)
    left = [run for group in groups for run in group if not run.finished]
    done.failed = cluster.run_groups(groups) if cluster else run_groups(groups, jobs)
    done.computed = sum(run.finished for run in left)
    for name, plan in plans.items():
        out = workspace.outcome_dir(name)
        make_folder(out)
        try:
            with RunLock(out).held():
                done.outcomes[name] = write_outcome(experiments[name], workspace, plan, done.failed, measured)
            logger.info("%s: %s", name, done.outcomes[name].page)
        except Exception as error:  # the other outcomes are still wanted
            done.problems[name] = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            logger.error("FAILED to write %s: %s", name, done.problems[name],
                         exc_info=not isinstance(error, UserError))
    write_index(workspace, list({**read_experiments("all"), **experiments}.values()))
    return done
