"""Computes groups of runs as jobs of a SLURM cluster.

submitit submits them as a job array and starts them again after pre-emption and time limits.
"""
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
from typing import Any, NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from ...datasets.utils.cli import Terminated, counted, log_to_terminal
from ...datasets.utils.errors import UserError, one_line
from ...datasets.utils.files import make_folder, read_json, write_json
from ...datasets.utils.lock import SILENCE, TOUCH_SECONDS, FolderLock, read_owner
from ...datasets.utils.progress import PlainProgress, progress_bar
from .plan import Workspace
from .planned_run import PlannedRun, WorkGroup
from .run import number_of_images, run_group

logger = logging.getLogger(__name__)

NAME = "promptcal"  # of every job, by which squeue finds them
RESUBMISSIONS = 20  # of one group, after pre-emption and time limits
LATE = 60.0  # seconds in which a shared file system shows what another machine has written
LONGEST_PAUSE = 30.0  # seconds between looks at the queue
# SLURM's states of jobs that have ended. In some of them the group is not to blame, so it is
# submitted again. A job that has left the queue has the state "".
TRY_AGAIN = {"PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "TIMEOUT"}
ENDED = {*TRY_AGAIN, "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "OUT_OF_MEMORY", "REVOKED",
         "SPECIAL_EXIT", ""}


class Job(NamedTuple):
    """The job that a run was last part of."""

    number: str  # such as 17_2; "" = none
    log: str  # path

    @property
    def failures(self) -> Path:
        """Where the job writes why runs have failed."""
        return Path(self.log).with_suffix(".json")


NO_JOB = Job("", "")


@dataclass
class GroupJob:
    """What a job computes, and what submitit calls in it."""

    group: WorkGroup

    def __call__(self) -> None:
        log_to_terminal()
        wait_for_locks(self.group)
        self.report(run_group(self.group))

    def checkpoint(self) -> Any:
        """submitit calls it before a time limit and at pre-emption.

        The new job continues from what is on disk.
        """
        from submitit.helpers import DelayedSubmission

        if int(os.environ.get("SLURM_RESTART_COUNT", 0)) >= RESUBMISSIONS:
            reason = (f"not finished after {RESUBMISSIONS} resubmissions: give it more time; the "
                      f"same command continues")
            self.report({run: reason for run in self.group if not run.finished})
            raise SystemExit(1)
        return DelayedSubmission(self)

    def report(self, failed: Mapping[PlannedRun, str]) -> None:
        """Writes the reasons of failed runs next to the job's log."""
        from submitit import JobEnvironment

        reasons = {}
        for run, reason in failed.items():
            reasons[str(run.folder.absolute())] = reason
        write_json(JobEnvironment().paths.stdout.with_suffix(".json"), reasons)


def wait_for_locks(group: WorkGroup) -> None:
    """Waits until locks that killed jobs have left behind may be taken over.

    A job that was killed cannot release its lock. On another node the lock counts until it has been
    silent for a while.
    """
    until = time.monotonic() + SILENCE + 2 * TOUCH_SECONDS
    for run in group:
        if run.finished:
            continue
        lock = FolderLock(run.folder)
        with suppress(OSError):  # released, not there, or what the run will report
            while lock.path.stat() and not lock.is_gone(read_owner(lock.path)):
                if time.monotonic() >= until:
                    break
                time.sleep(1)


def squeue() -> dict[str, str]:
    """SLURM's states of our jobs by number: queued, running, and ended recently."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}",
               f"--name={NAME}", "--format=%i|%T"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        raise UserError(f"cannot ask SLURM for its queue: {reason}") from error
    states = {}
    for line in done.stdout.splitlines():
        number, _, state = line.partition("|")
        states[number] = state
    return states


class Cluster:
    """The jobs of all experiments of a workspace.

    Experiments share runs, which must not be submitted twice.
    """

    def __init__(
        self, workspace: Workspace, parameters: Mapping[str, str | int], array_parallelism: int,
    ) -> None:
        """
        Args:
            workspace: Where run folders, logs and jobs.json lie.
            parameters: Options of SLURM, as submitit names them.
            array_parallelism: How many jobs run at the same time.
        """
        self.root = workspace.runs_dir
        self.folder = workspace.outcome_dir("cluster")
        self.parameters = parameters
        self.array_parallelism = array_parallelism
        self.jobs: dict[str, Job] = {}  # by the folder of a run
        self.queue: dict[str, str] = {}  # SLURM's state by a job's number

    def look(self) -> None:
        """Reads which jobs there are, and their state."""
        self.queue = squeue()
        self.jobs = {}
        content = read_json(self.folder / "jobs.json")
        if not isinstance(content, dict):
            return
        for folder, entry in content.items():
            if isinstance(entry, dict) and {"job", "log"} <= entry.keys():
                self.jobs[folder] = Job(str(entry["job"]), str(entry["log"]))

    def write_jobs(self) -> None:
        """Writes jobs.json, by which a later command finds the jobs."""
        content = {}
        for folder, job in self.jobs.items():
            content[folder] = {"job": job.number, "log": job.log}
        write_json(self.folder / "jobs.json", content)

    def key(self, run: PlannedRun) -> str:
        """The folder of a run below `root`."""
        return run.folder.relative_to(self.root).as_posix()

    def job_of(self, run: PlannedRun) -> Job:
        """The job that a run was submitted in; NO_JOB if there is none."""
        return self.jobs.get(self.key(run), NO_JOB)

    def slurm_state(self, run: PlannedRun) -> str:
        """SLURM's state of the job of a run; "" if it has none, or left the queue."""
        return self.queue.get(self.job_of(run).number, "")

    def active(self, group: WorkGroup) -> bool:
        """Whether a job computes, or will compute, something of the group."""
        return any(self.slurm_state(run) not in ENDED and not run.finished for run in group)

    def reported(self, run: PlannedRun) -> str:
        """The reason that a run's job has given for its failure; "" if there is none."""
        reasons = read_json(self.job_of(run).failures)
        if not isinstance(reasons, dict):
            return ""
        return reasons.get(str(run.folder.absolute()), "")

    def failure(self, run: PlannedRun) -> str:
        """Why a run has no results that can be used; "" if it has."""
        if run.finished:
            return ""
        if run.refusal:
            return run.refusal
        job = self.job_of(run)
        if not job.number:
            return "not submitted"
        reason = self.reported(run)
        if not reason:
            state = self.slurm_state(run) or "no longer in the queue"
            ended = state.lower().replace("_", " ")
            reason = f"job {job.number} ended without it ({ended}): {last_line(Path(job.log))}"
        return f"{reason} (log: {job.log})"

    def missing(self, groups: Sequence[WorkGroup], attempts: Counter[int]) -> list[int]:
        """The numbers of the groups to submit.

        They have something to do and no job. This command has not submitted them before, unless
        their job was cut short.
        """
        numbers = []
        for number, group in enumerate(groups):
            to_compute = [run for run in group if run.is_left]
            if not to_compute or self.active(to_compute):
                continue
            cut_short = any(self.slurm_state(run) in TRY_AGAIN for run in to_compute)
            if attempts[number] == 0 or (cut_short and attempts[number] <= RESUBMISSIONS):
                numbers.append(number)
        return numbers

    def submit(self, groups: Sequence[WorkGroup], attempts: Counter[int]) -> int:
        """Submits the groups that are missing.

        Args:
            groups: All groups of the plan.
            attempts: How often this command has submitted each group, by its number; updated.

        Returns:
            How many were submitted.
        """
        self.look()
        if not self.missing(groups, attempts):
            return 0
        make_folder(self.folder)
        with FolderLock(self.folder).held():
            self.look()  # another command may have submitted them
            numbers = self.missing(groups, attempts)
            if numbers:
                self.submit_array([groups[number] for number in numbers])
                attempts.update(numbers)
            return len(numbers)

    def submit_array(self, groups: Sequence[WorkGroup]) -> None:
        """Submits a job for each group, the largest first."""
        import submitit

        unfinished_groups = []
        for group in groups:
            unfinished_groups.append([run for run in group if run.is_left])
        unfinished_groups.sort(key=number_of_images, reverse=True)

        folder = self.folder / f"{time.strftime('%Y-%m-%d-%H-%M-%S')}-{os.getpid()}"
        srun_args = None
        if "cpus_per_task" in self.parameters:
            # Since SLURM 22.05 srun does not take it over from sbatch.
            srun_args = [f"--cpus-per-task={self.parameters['cpus_per_task']}"]
        try:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=RESUBMISSIONS)
            executor.update_parameters(
                **self.parameters,
                job_name=NAME,
                array_parallelism=self.array_parallelism,
                stderr_to_stdout=True,
                setup=job_setup(),
                additional_parameters={"requeue": True},
                srun_args=srun_args,
            )
            with redirect_stderr(io.StringIO()):  # sbatch's error, which is in the exception too
                submitted = executor.submit_array(
                    [GroupJob(group) for group in unfinished_groups])
        except (RuntimeError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            lines = str(error).strip().splitlines() or ["no reason given"]
            reason = lines[-1].removeprefix("sbatch: error: ")
            raise UserError(f"SLURM refuses the jobs: {reason}; see sinfo, and --slurm for other "
                            f"options") from error
        for submitted_job, group in zip(submitted, unfinished_groups, strict=True):
            job = Job(submitted_job.job_id, str(submitted_job.paths.stdout))
            self.queue[job.number] = "PENDING"
            for run in group:
                self.jobs[self.key(run)] = job
        self.write_jobs()

    def run_groups(self, groups: Sequence[WorkGroup]) -> dict[PlannedRun, str]:
        """Submits the groups that are missing and waits for all.

        Returns:
            The runs that failed, with the reason.
        """
        runs = runs_of(groups)
        began = time.monotonic()
        attempts: Counter[int] = Counter()
        self.submit(groups, attempts)
        with progress_bar(len(runs), "runs", "run", shown=bool(runs)) as bar:
            try:
                while any(self.active(group) for group in groups):
                    self.show_progress(runs, bar)
                    time.sleep(min(LONGEST_PAUSE, 1 + (time.monotonic() - began) / 10))
                    try:
                        self.submit(groups, attempts)
                    except UserError as error:
                        logger.warning("%s; trying again", error)
            except (KeyboardInterrupt, Terminated) as stopped:
                stopped.add_note(self.advice(runs))
                raise
            self.wait_for_files(runs)
            finished = sum(run.finished for run in runs)
            bar.update(finished - bar.n)
            bar.set_postfix_str("")
        failed = {}
        for run in runs:
            reason = self.failure(run)
            if reason:
                failed[run] = reason
        return failed

    def show_progress(self, runs: Sequence[PlannedRun], bar: tqdm | PlainProgress) -> None:
        """Shows how many runs are finished, and the states of the jobs of the others."""
        states: Counter[str] = Counter()
        for run in runs:
            if not run.finished:
                states[self.slurm_state(run).lower() or "not submitted"] += 1
        bar.update(len(runs) - states.total() - bar.n)
        bar.set_postfix_str(", ".join(f"{number} {state}" for state, number in states.items()))

    def wait_for_files(self, runs: Sequence[PlannedRun]) -> None:
        """Waits for a shared file system to show the last results, after the end of their job."""
        until = time.monotonic() + LATE
        while time.monotonic() < until and any(self.is_late(run) for run in runs):
            time.sleep(1)

    def is_late(self, run: PlannedRun) -> bool:
        """Whether a run's job has completed, but neither results nor a failure can be seen."""
        if run.finished or self.slurm_state(run) != "COMPLETED":
            return False
        return not self.reported(run)

    def advice(self, runs: Sequence[PlannedRun]) -> str:
        """How to see and to cancel the jobs of some runs."""
        arrays: dict[str, None] = {}
        for run in runs:
            if self.slurm_state(run) not in ENDED:
                arrays[self.job_of(run).number.partition("_")[0]] = None
        return (f"the jobs go on: squeue --name={NAME} shows them, scancel {' '.join(arrays)} "
                f"cancels them")

    def detach(self, groups: Sequence[WorkGroup]) -> str:
        """Submits what is missing. Returns what was done."""
        count = self.submit(groups, Counter())
        active = [group for group in groups if self.active(group)]
        before = len(active) - count
        text = f"{counted(count, 'group')} submitted, {before} queued or running before"
        if active:
            text += f"; {self.advice(runs_of(active))}"
        return f"{text}.\nWithout --detach the same command waits and writes the tables."


def job_setup() -> list[str]:
    """Lines of shell that a job begins with."""
    lines = ["export TQDM_MININTERVAL=60"]  # seconds between lines of progress bars in the log
    source = Path(str(sys.modules["promptcal"].__file__)).absolute().parents[1]
    if source.name == ".package":  # jobs run the code of this checkout
        path = shlex.quote(str(source))
        lines.append(f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}")
    return lines


def runs_of(groups: Sequence[WorkGroup]) -> list[PlannedRun]:
    """The runs of all groups in one list."""
    runs: list[PlannedRun] = []
    for group in groups:
        runs += group
    return runs


def show_groups(groups: Sequence[WorkGroup], array_parallelism: int) -> str:
    """For a dry run: a table of the jobs that would be submitted; "" if there are none."""
    rows = []
    for group in groups:
        to_compute = [run for run in group if run.is_left]
        if not to_compute:
            continue
        name = f"{group[0].dataset}, {group[0].backbone}, seed {group[0].seed}"
        methods = dict.fromkeys(run.method for run in to_compute)
        rows.append([name, len(group), len(to_compute), ", ".join(methods)])
    if not rows:
        return ""
    table = tabulate(rows, headers=["group", "runs", "to do", "in this order"],
                     disable_numparse=True)
    return f"{counted(len(rows), 'job')}, at most {array_parallelism} at the same time:\n\n{table}"


def last_line(log: Path) -> str:
    """The last line of a job's log, which often says why the job has ended."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return "it has no log; is this folder on a disk that all nodes share?"
    for line in reversed(lines):
        if line.strip() and not line.startswith("srun:"):
            return one_line(line, 300)
    return "its log is empty"
