"""Computes groups of runs as jobs of a SLURM cluster. submitit submits them as a job array and starts them again after
pre-emption and time limits."""
from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from ...datasets.utils.cli import Terminated, counted, log_to_terminal
from ...datasets.utils.errors import UserError, one_line
from ...datasets.utils.files import make_folder, read_json, write_json
from ..runs.lock import SILENCE, TOUCH_SECONDS, RunLock, read_owner
from .plan import PlannedRun, WorkGroup, Workspace, differs
from .run import run_group

logger = logging.getLogger(__name__)

NAME = "promptcal"  # of every job, by which squeue finds them
RESUBMISSIONS = 20  # of one group, after pre-emption and time limits
LATE = 60.0  # seconds in which a shared file system shows what another machine has written
LONGEST_PAUSE = 30.0  # seconds between looks at the queue
# SLURM's states of jobs that have ended; in some of them the group is not to blame, so it is submitted again.
TRY_AGAIN = {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT"}
ENDED = {*TRY_AGAIN, "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED", "SPECIAL_EXIT", ""}
STATES = ("running", "queued", "failed", "not submitted", "finished")


@dataclass
class GroupJob:
    """What a job computes, and what submitit calls in it."""

    group: WorkGroup

    def __call__(self) -> None:
        log_to_terminal()
        wait_for_locks(self.group)
        self.report(run_group(self.group))

    def checkpoint(self) -> Any:
        """submitit calls it before a time limit and at pre-emption. The new job continues from what is on disk."""
        from submitit.helpers import DelayedSubmission

        if int(os.environ.get("SLURM_RESTART_COUNT", 0)) >= RESUBMISSIONS:
            reason = f"not finished after {RESUBMISSIONS} resubmissions: give it more time; the same command continues"
            self.report({run: reason for run in self.group if not run.finished})
            raise SystemExit(1)
        return DelayedSubmission(self)

    def report(self, failed: Mapping[PlannedRun, str]) -> None:
        """Writes the reasons of failed runs next to the job's log."""
        from submitit import JobEnvironment

        write_json(JobEnvironment().paths.stdout.with_suffix(".json"),
                   {str(run.folder.absolute()): reason for run, reason in failed.items()})


def wait_for_locks(group: WorkGroup) -> None:
    """A job that was killed cannot release its lock, which counts on another node until it is silent for a while."""
    until = time.monotonic() + SILENCE + 2 * TOUCH_SECONDS
    for lock in [RunLock(run.folder) for run in group if not run.finished]:
        with suppress(OSError):  # released, not there, or what the run will report
            while lock.path.stat() and not lock.is_gone(read_owner(lock.path)) and time.monotonic() < until:
                time.sleep(1)


def squeue() -> dict[str, tuple[str, str]]:
    """SLURM's state of our jobs, and why they wait: all that are queued or running, and those that ended recently."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", f"--name={NAME}",
               "--format=%i|%T|%r"]
    try:
        text = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"cannot ask SLURM for its queue: {getattr(error, 'stderr', None) or error}") from error
    return {job: (state, reason) for job, state, reason in (line.split("|", 2) for line in text.splitlines())}


class Cluster:
    """The jobs of all experiments of a workspace: experiments share runs, which must not be submitted twice."""

    def __init__(self, workspace: Workspace, parameters: Mapping[str, str | int], array_parallelism: int) -> None:
        self.root, self.folder = workspace.runs_dir, workspace.outcome_dir("cluster")
        self.parameters, self.array_parallelism = parameters, array_parallelism
        self.jobs: dict[str, dict[str, str]] = {}  # run -> the job that it was last part of, and its log
        self.queue: dict[str, tuple[str, str]] = {}

    def look(self) -> None:
        """Reads which jobs there are, and their state."""
        self.queue = squeue()
        found = read_json(self.folder / "jobs.json")
        entries = found.items() if isinstance(found, dict) else ()
        self.jobs = {run: job for run, job in entries if isinstance(job, dict) and {"job", "log"} <= job.keys()}

    def key(self, run: PlannedRun) -> str:
        return run.folder.relative_to(self.root).as_posix()

    def slurm_state(self, run: PlannedRun) -> tuple[str, str]:
        return self.queue.get(self.jobs.get(self.key(run), {}).get("job", ""), ("", ""))

    def active(self, group: WorkGroup) -> bool:
        """Whether a job computes, or will compute, something of the group."""
        return any(self.slurm_state(run)[0] not in ENDED and not run.finished for run in group)

    def state(self, run: PlannedRun) -> tuple[str, str]:
        """One of STATES, and the reason."""
        if run.finished:
            reason = differs(run)
            return ("failed", reason) if reason else ("finished", "")
        state, reason = self.slurm_state(run)
        if state not in ENDED:
            return ("queued", reason) if state == "PENDING" else ("running", "")
        return ("failed", self.reason(run)) if self.key(run) in self.jobs else ("not submitted", "")

    def reported(self, run: PlannedRun) -> str:
        """The reason that a run's job has given for its failure; "" if there is none."""
        reasons = read_json(Path(self.jobs[self.key(run)]["log"]).with_suffix(".json"))
        return reasons.get(str(run.folder.absolute()), "") if isinstance(reasons, dict) else ""

    def reason(self, run: PlannedRun) -> str:
        """Why a run's job has ended without its results."""
        job, log = self.jobs[self.key(run)]["job"], self.jobs[self.key(run)]["log"]
        ended = (self.slurm_state(run)[0] or "no longer in the queue").lower().replace("_", " ")
        return f"{self.reported(run) or f'job {job} ended without it ({ended}): {last_line(Path(log))}'} (log: {log})"

    def missing(self, groups: Sequence[WorkGroup], attempts: Counter[int]) -> list[int]:
        """The numbers of the groups that have something to do, no job, and no attempt but one that was cut short."""
        left = {number: [run for run in group if not run.finished] for number, group in enumerate(groups)}
        return [number for number, runs in left.items() if runs and not self.active(runs) and (
            not attempts[number] or (attempts[number] <= RESUBMISSIONS
                                     and any(self.slurm_state(run)[0] in TRY_AGAIN for run in runs)))]

    def submit(self, groups: Sequence[WorkGroup], attempts: Counter[int]) -> int:
        """Submits the groups that are missing. Returns their number."""
        self.look()
        if numbers := self.missing(groups, attempts):
            make_folder(self.folder)
            with RunLock(self.folder).held():
                self.look()  # another command may have submitted them
                if numbers := self.missing(groups, attempts):
                    self.submit_array([groups[number] for number in numbers])
                    attempts.update(numbers)
        return len(numbers)

    def submit_array(self, groups: Sequence[WorkGroup]) -> None:
        """A job for each group, the largest first."""
        import submitit

        groups = [[run for run in group if not run.finished] for group in groups]
        groups.sort(key=lambda group: -sum(run.size[0] for run in group))
        folder = self.folder / f"{time.strftime('%Y-%m-%d-%H-%M-%S')}-{os.getpid()}"
        source = Path(str(sys.modules["promptcal"].__file__)).absolute().parents[1]
        setup = ["export TQDM_MININTERVAL=60"]  # seconds between lines of progress bars in the log
        if source.name == ".package":  # jobs run the code of this checkout
            setup.append(f"export PYTHONPATH={shlex.quote(str(source))}${{PYTHONPATH:+:$PYTHONPATH}}")
        cpus = self.parameters.get("cpus_per_task")
        try:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=RESUBMISSIONS)
            executor.update_parameters(
                **self.parameters, job_name=NAME, array_parallelism=self.array_parallelism, stderr_to_stdout=True,
                setup=setup, additional_parameters={"requeue": True},
                srun_args=[f"--cpus-per-task={cpus}"] if cpus else None,  # since SLURM 22.05 it is not sbatch's
            )
            with redirect_stderr(io.StringIO()):  # sbatch's error, which is in the exception too
                submitted = executor.submit_array([GroupJob(group) for group in groups])
        except (RuntimeError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            said = str(error).strip().splitlines() or ["no reason given"]
            raise UserError(f"SLURM refuses the jobs: {said[-1].removeprefix('sbatch: error: ')}; "
                            "see sinfo, and --slurm for other options") from error
        for job, group in zip(submitted, groups, strict=True):
            entry = {"job": job.job_id, "log": str(job.paths.stdout)}
            self.jobs.update({self.key(run): entry for run in group})
            self.queue[job.job_id] = ("PENDING", "")
        write_json(self.folder / "jobs.json", self.jobs)

    def run_groups(self, groups: Sequence[WorkGroup]) -> dict[PlannedRun, str]:
        """Submits the groups that are missing and waits for all. Returns the runs that failed, with the reason."""
        runs, began = [run for group in groups for run in group], time.monotonic()
        attempts: Counter[int] = Counter()
        self.submit(groups, attempts)
        with tqdm(total=len(runs), desc="runs", unit="run", dynamic_ncols=True, disable=not runs) as bar:
            try:
                while any(self.active(group) for group in groups):
                    states = Counter(self.state(run)[0] for run in runs if not run.finished)
                    bar.n = len(runs) - states.total()
                    bar.set_postfix_str(", ".join(f"{states[name]} {name}" for name in STATES if states[name]))
                    time.sleep(min(LONGEST_PAUSE, 1 + (time.monotonic() - began) / 10))
                    try:
                        self.submit(groups, attempts)
                    except UserError as error:
                        logger.warning("%s; trying again", error)
            except (KeyboardInterrupt, Terminated) as stopped:
                stopped.add_note(self.advice(runs))
                raise
            self.wait_for_files(runs)
            bar.n = sum(run.finished for run in runs)
            bar.set_postfix_str("")
        found = {run: self.state(run) for run in runs}
        return {run: reason or state for run, (state, reason) in found.items() if state != "finished"}

    def wait_for_files(self, runs: Sequence[PlannedRun]) -> None:
        """On a shared file system the last results may become visible after the end of their job."""
        until = time.monotonic() + LATE
        while time.monotonic() < until and any(
            not run.finished and self.slurm_state(run)[0] == "COMPLETED" and not self.reported(run) for run in runs
        ):
            time.sleep(1)

    def advice(self, runs: Sequence[PlannedRun]) -> str:
        jobs = {self.jobs[self.key(run)]["job"].partition("_")[0]: None for run in runs
                if self.slurm_state(run)[0] not in ENDED}
        return f"the jobs go on: the same command with --status shows them, scancel {' '.join(jobs)} cancels them"

    def detach(self, groups: Sequence[WorkGroup]) -> str:
        """Submits what is missing. Returns what was done."""
        count = self.submit(groups, Counter())
        active = [group for group in groups if self.active(group)]
        advice = f"; {self.advice([run for group in active for run in group])}" if active else ""
        return (f"{counted(count, 'group')} submitted, {len(active) - count} queued or running before{advice}.\n"
                "Without --detach the same command waits and writes the tables.")

    def status(self, groups: Sequence[WorkGroup]) -> str:
        """A row for each group. Its state is the first of STATES that one of its runs has."""
        self.look()
        rows = []
        for group in groups:
            found = [(*self.state(run), run) for run in group]
            state, reason, run = min(found, key=lambda row: STATES.index(row[0]))
            job = self.jobs.get(self.key(run), {})
            rows.append([group_name(group), f"{sum(row[0] == 'finished' for row in found)} of {len(group)}", state,
                         job.get("job", ""), reason or (job.get("log", "") if state == "running" else "")])
        counts = Counter(row[2] for row in rows)
        table = tabulate(rows, headers=["group", "finished", "state", "job", "reason or log"], disable_numparse=True)
        return f"{table}\n\n{counted(len(groups), 'group')}: " + ", ".join(
            f"{counts[state]} {state}" for state in STATES if counts[state])


def group_name(group: WorkGroup) -> str:
    return f"{group[0].dataset}, {group[0].backbone}, seed {group[0].seed}"


def show_groups(groups: Sequence[WorkGroup], array_parallelism: int) -> str:
    """For a dry run: the jobs that would be submitted."""
    left = [(group, [run for run in group if not run.finished]) for group in groups]
    rows = [[group_name(group), len(group), len(runs), ", ".join(dict.fromkeys(run.method for run in runs))]
            for group, runs in left if runs]
    table = tabulate(rows, headers=["group", "runs", "to do", "in this order"], disable_numparse=True)
    return f"{counted(len(rows), 'job')}, at most {array_parallelism} at the same time:\n\n{table}" if rows else ""


def last_line(log: Path) -> str:
    """The last line of a job's log, which often says why the job has ended."""
    with suppress(OSError):
        lines = log.read_text(errors="replace").splitlines()
        said = [line for line in lines if line.strip() and not line.startswith("srun:")]
        return one_line(said[-1], 300) if said else "its log is empty"
    return "it has no log; is this folder on a disk that all nodes share?"
