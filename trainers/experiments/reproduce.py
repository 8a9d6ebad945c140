"""An experiment, or all of them, from plan to page."""
from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...datasets.download.install import download_dataset
from ...datasets.utils.cli import counted, tool
from ...datasets.utils.errors import ConfigError, UserError, reading
from ...datasets.utils.files import data_root, make_folder
from ...datasets.utils.lock import FolderLock
from ..registry import find_method
from ..report.choices import check_choice
from ..report.measure import Measured
from ..vlm.loading import check_name, find_loader
from .cluster import Cluster
from .definition import Experiment, add, read_all_experiments, read_experiment, zero_shot_only
from .outcome import Outcome, write_index, write_outcome
from .plan import Workspace, check_folders, expand, select
from .planned_run import PlannedRun, WorkGroup, dataset_size, inspect_data, work_groups
from .run import run_groups
from .run_state import RECORDS, few_log_lines

logger = logging.getLogger(__name__)

Plans = dict[str, list[PlannedRun]]


@dataclass
class Catalogue:
    """The experiments of configs/experiments and those that a command asks for, read once.

    Attributes:
        known: All that can be read, for the index page.
        chosen: Experiments that the command asks for, with the methods and data sets that it adds.
        problems: The reason for each requested experiment that cannot be read or planned.
    """

    known: dict[str, Experiment]
    chosen: dict[str, Experiment]
    problems: dict[str, str] = field(default_factory=dict)

    def listed(self) -> list[Experiment]:
        """All experiments, for the index page."""
        return list({**self.known, **self.chosen}.values())


@dataclass
class Reproduced:
    """What one call of `reproduce` has done.

    Attributes:
        computed: Number of runs that were computed.
        failed: Runs that failed, each with the reason.
        outcomes: What was written, by the name of the experiment.
        problems: Why an experiment has no outcome, by its name.
    """

    computed: int = 0
    failed: dict[PlannedRun, str] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def summary(self, asked: int) -> str:
        """What was computed and written, and what failed, a line each."""
        written = f"{len(self.outcomes)} of {counted(asked, 'outcome')} written"
        lines = [f"{counted(self.computed, 'run')} done now; {written}"]
        for name, outcome in self.outcomes.items():
            lines.append(f"  {name}: {outcome.page}")
        for run, reason in self.failed.items():
            lines.append(f"failed: {run.described}: {reason}")
        for name, reason in self.problems.items():
            lines.append(f"not written: {name}: {reason}")
        return "\n".join(lines)


def read_experiments(
    names: str | Sequence[str], added: Sequence[str] = (), demo: bool = False, quick: bool = False,
) -> Catalogue:
    """Reads some experiments, or all.

    Args:
        names: `all`, or one or several names in configs/experiments or paths of yaml files.
        added: Further methods and data sets.
        demo: Whether embedded data sets replace the experiments'.
        quick: Whether only their zero-shot runs are made.
    """
    if isinstance(names, str):
        names = [names]
    known, problems = read_all_experiments()
    if "all" in names:
        chosen = dict(known)
    else:
        chosen = {}
        problems = {}  # of files that were not asked for
    for name in names:
        if name != "all":
            experiment = read_experiment(name)
            # The tables of two files of one name would be written to one folder.
            if chosen.get(experiment.name, experiment) != experiment:
                raise ConfigError(f"{name} has the name of another experiment of this command: "
                                  f"rename the file")
            chosen[experiment.name] = experiment
    if added:
        check_added(chosen, added, demo)
        for key, experiment in chosen.items():
            if experiment.runs:
                chosen[key] = add(experiment, added)
    if quick:
        for key, experiment in chosen.items():
            chosen[key] = zero_shot_only(experiment)
    return Catalogue(known, chosen, problems)


def check_added(
    experiments: Mapping[str, Experiment], added: Sequence[str], demo: bool,
) -> None:
    """Refuses additions to experiments without runs, and data sets in a demo.

    Args:
        experiments: Experiments to which methods and data sets are added, by name.
        added: Names of methods and data sets.
        demo: Whether embedded data replaces the data sets.
    """
    if not any(experiment.runs for experiment in experiments.values()):
        raise ConfigError(
            f"--add {' '.join(added)}: {', '.join(experiments)} has no runs to add to")
    datasets = [each for each in added if not find_method(each)]
    if demo and datasets:
        raise ConfigError(f"--add {' '.join(datasets)}: --demo takes methods only, its data sets "
                          f"are the embedded ones")


def make_plans(catalogue: Catalogue, workspace: Workspace, only: Sequence[str]) -> Plans:
    """The runs of each experiment, reduced to `only`.

    Each name in `only` must match in at least one experiment. Faults that all runs would share are
    raised here. A fault of one experiment among several is added to `catalogue.problems`.

    Args:
        catalogue: The experiments that the command names.
        workspace: Where data is read and results are written.
        only: Names of methods, data sets and backbones; () for all runs.
    """
    RECORDS.forget()  # a command before, in this process, may have seen other data
    if workspace.root and not workspace.demo:
        data_root(workspace.root)
    swept_keys: list[str] = []
    for experiment in catalogue.chosen.values():
        for group in experiment.runs:
            swept_keys += group.sweep
    check_choice(workspace.choose, swept_keys, workspace.choose_by)
    family, name = find_loader(workspace.backbone)
    if name and family is None:
        check_name(name)

    plans = {}
    errors = {}
    with few_log_lines():  # settings of the command may have no effect on some of the methods
        for name, experiment in catalogue.chosen.items():
            try:
                plans[name] = expand(experiment, workspace)
            except UserError as error:
                errors[name] = error
    if errors and not plans:
        raise next(iter(errors.values()))
    for name, reason in errors.items():
        catalogue.problems[name] = str(reason)
    check_folders(all_runs(plans))
    if only:
        plans = reduce_plans(plans, only)
    return plans


def reduce_plans(plans: Plans, only: Sequence[str]) -> Plans:
    """The plans with the selected runs. Experiments without any of them are left out."""
    runs = all_runs(plans)
    if not runs:
        raise ConfigError(f"--only takes a part of an experiment's runs, and {', '.join(plans)} "
                          f"has none")
    selected = set(select(runs, only))
    reduced = {}
    for name, plan in plans.items():
        remaining = [run for run in plan if run in selected]
        if remaining:
            reduced[name] = remaining
    return reduced


def all_runs(plans: Mapping[str, Sequence[PlannedRun]]) -> list[PlannedRun]:
    """The runs of all plans, each once."""
    runs: dict[PlannedRun, None] = {}
    for plan in plans.values():
        runs.update(dict.fromkeys(plan))
    return list(runs)


def download_missing(experiment: Experiment, workspace: Workspace, only: Sequence[str]) -> None:
    """Downloads what is not below the root, for an experiment that may do so (`study: download`).

    What cannot be downloaded is reported with the manual steps, and its runs fail.
    """
    if not experiment.study.get("download") or workspace.demo:
        return
    if not workspace.root:
        raise ConfigError(f"{experiment.name} downloads the data sets that are missing: give the "
                          f"folder with --root")
    runs = expand(experiment, workspace)
    if only:
        runs = select(runs, only)
    for place in dict.fromkeys(run.data_place for run in runs):
        root = Path(place.root).expanduser()
        state = inspect_data(place)
        if state and state.state == "absent" and state.cls.can_be_downloaded():
            logger.info("%s is not in %s: downloading it, as %s does", state.cls.key(), root,
                        tool("download"))
            with reading():
                download_dataset(state.cls, root)
    inspect_data.cache_clear()
    dataset_size.cache_clear()


def groups_of(plans: Plans) -> list[WorkGroup]:
    """The runs of all experiments in groups that share a process."""
    return work_groups(all_runs(plans))


def reproduce(
    catalogue: Catalogue, plans: Plans, workspace: Workspace, jobs: int = 1,
    cluster: Cluster | None = None,
) -> Reproduced:
    """Computes the runs that are not finished, then writes each experiment's outcome.

    Args:
        catalogue: The experiments.
        plans: Their runs.
        workspace: Where data is read and results are written.
        jobs: How many groups of runs are computed at a time on this machine.
        cluster: Computes them as jobs instead.
    """
    done = Reproduced(problems=dict(catalogue.problems))
    measured: dict[PlannedRun, Measured] = {}
    groups = groups_of(plans)
    unfinished = [run for run in all_runs(plans) if not run.finished]
    if cluster:
        done.failed = cluster.run_groups(groups)
    else:
        done.failed = run_groups(groups, jobs)
    RECORDS.forget()  # data may have changed in the meantime
    for run in all_runs(plans):
        if run not in done.failed and not run.finished:
            done.failed[run] = run.refusal or "not finished"
    done.computed = sum(run not in done.failed for run in unfinished)
    for name, plan in plans.items():
        experiment = catalogue.chosen[name]
        out = workspace.outcome_dir(name)
        make_folder(out)
        try:
            with FolderLock(out).held():
                outcome = write_outcome(experiment, workspace, plan, done.failed, measured)
        except UserError as error:
            done.problems[name] = f"{error}{earlier_tables(out)}"
            logger.error("FAILED to write %s: %s", name, error)
            continue
        except Exception as error:  # one outcome that fails must not stop the others
            done.problems[name] = f"{type(error).__name__}: {error}{earlier_tables(out)}"
            logger.error("FAILED to write %s: %s", name, done.problems[name], exc_info=True)
            continue
        done.outcomes[name] = outcome
        logger.info("%s: %s", name, outcome.page)
    # A page of an earlier call may show runs that are not those of the plan.
    up_to_date = [each for each in catalogue.listed() if each.name not in done.problems]
    write_index(workspace, up_to_date)
    return done


def earlier_tables(out: Path) -> str:
    """What a message adds if an outcome could not be written, but there is one of an earlier call.
    """
    if not (out / "report.html").is_file():
        return ""
    return f" (the tables of an earlier call are still there: {out})"
