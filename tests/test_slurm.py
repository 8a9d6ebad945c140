"""Jobs of a SLURM cluster: a real one, which the tests start on this machine, and the command line
without one."""
import getpass
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from promptcal.datasets.utils import lock as lock_module
from promptcal.datasets.utils.errors import ConfigError
from promptcal.datasets.utils.lock import FolderLock
from promptcal.tools.reproduce import SLURM_TIME, parse_slurm
from promptcal.trainers.experiments import cluster as cluster_module
from promptcal.trainers.experiments.cluster import RESUBMISSIONS, Cluster, GroupJob, Job, wait_for_locks
from promptcal.trainers.experiments.definition import read_experiment
from promptcal.trainers.experiments.plan import Workspace, expand
from promptcal.trainers.experiments.planned_run import PlannedRun, work_groups

from common import PROJECT, Done, run_tool
from fault_runs import FaultRuns
from processes import Process, user_environment

DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [name for name in (*DAEMONS, "sbatch") if not shutil.which(name, path=PATH)]
CONFIG = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=0
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=3 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
"""


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """A cluster of one node for this user, with a key, sockets and ports of its own. No root is needed."""
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # a short path, because of the socket
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "key-file").write_bytes(os.urandom(1024))
    (folder / "key-file").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [free.getsockname()[1] for free in (one, other)]
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, user=getpass.getuser(), ports=ports, folder=folder))
    files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    munge = ["--foreground", "--force", *(f"--{name}={folder / name}" for name in files)]
    arguments = {"munged": munge, "slurmctld": ["-D"], "slurmd": ["-D"]}
    started = []
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("wb") as log:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PATH", PATH)
        try:
            for name in DAEMONS:
                started.append(subprocess.Popen([name, *arguments[name]], stdout=log, stderr=log))
                wait_until((folder / "socket").exists)
            wait_until(lambda: "idle" in output("sinfo", "--noheader"))
            yield
        finally:
            output("scancel", f"--user={os.getuid()}")
            wait_until(lambda: not output("squeue", "--noheader"))  # a step would outlive slurmd
            for process in reversed(started):
                process.terminate()
                process.wait(30)
            shutil.rmtree(folder, ignore_errors=True)


def output(*command: object) -> str:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
class TestRealSlurm:
    def test_srun_with_two_tasks_is_one_run(self, slurm, tmp_path):
        runs = FaultRuns(tmp_path)
        words = list(map(str, runs.arguments(tmp_path / "run")))
        command = ["srun", "--ntasks=2", sys.executable, PROJECT / "tools" / "train.py", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=user_environment())
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("Zero-shot") == done.stdout.count("results in") == 1
        runs.assert_whole(tmp_path / "run")

    def test_a_queue_that_refuses(self, slurm, tmp_path):
        done = reproduce(tmp_path, "--slurm", "partition=gpu")
        assert done.returncode == 2
        assert done.stderr == (
            "error: SLURM refuses the jobs: Batch job submission failed: Invalid partition name specified; see sinfo, "
            "and --slurm for other options\n")
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    def test_an_experiment_through_cancelled_and_pre_empted_jobs(self, slurm, tmp_path):
        """Three groups: one job is cancelled in mid-run, one is pre-empted, one is left alone. The command that
        waits is interrupted. The same command ends with the tables of a plain run."""
        out = tmp_path / "cluster"
        waiting = Process("reproduce.py", "seeds", *QUICK, "--output-dir", out, "--cluster", "slurm")
        record = out / "demo" / "experiments" / "cluster" / "jobs.json"
        waiting.wait_for(record.exists)
        first = {path[-1]: entry for path, entry in json.loads(record.read_text()).items()}  # by seed
        assert len({entry["job"] for entry in first.values()}) == 3

        disturbed: set[str] = set()
        while len(disturbed) < 2:
            for seed in {"0", "1"} - disturbed:
                for run in (out / "demo" / "LandCover").rglob(f"seed{seed}"):
                    if list(run.glob("parts/*.npz")):
                        disturb(first[seed]["job"], run, pre_empt=seed == "1")
                        disturbed.add(seed)
            time.sleep(0.02)
        wait_until(lambda: "CANCELLED" in output("squeue", "--noheader", "--states=all", "--format=%T"))
        waiting.send(signal.SIGINT)
        _, said = waiting.communicate()
        assert waiting.returncode == 130
        assert re.search(r"interrupted; the jobs go on: squeue .*, scancel \d+ cancels them; finished work", said)

        detached = reproduce(out, "--detach")
        assert detached.returncode == 0 and "1 group submitted" in detached.stdout, detached
        assert "0 groups submitted" in reproduce(out, "--detach").stdout  # not twice
        plain = run_tool("reproduce.py", "seeds", *QUICK, "--output-dir", tmp_path / "plain")
        assert plain.returncode == 0, plain
        done = reproduce(out)
        assert done.returncode == 0, done
        table = Path("demo", "experiments", "seeds", "tables.md")
        assert (out / table).read_text() == (tmp_path / "plain" / table).read_text()

        last = {path[-1]: entry for path, entry in json.loads(record.read_text()).items()}
        assert [last[seed] == first[seed] for seed in "012"] == [False, True, True]
        for seed in "01":
            log = Path(last[seed]["log"]).read_text()
            assert "resuming: " in log and ("Requeued job" in log) == (seed == "1")


# Few tiles and views, in many parts.
QUICK = (
    "--demo", "--limit", "24", "--only", "SoC", "--set", "TTA.VIEWS", "8", "TTA.SELECT", "0.5",
    "TEST.PART", "2", "TTA.EPISODES", "2", "DATALOADER.NUM_WORKERS", "0", "CACHE.DIR", "",
)


def reproduce(out: Path, *args: object) -> Done:
    return run_tool("reproduce.py", "seeds", *QUICK, "--output-dir", out, "--cluster", "slurm", *args)


def disturb(job: str, run: Path, pre_empt: bool) -> None:
    """Pre-empts a job as SLURM does before a time limit, or cancels it. SLURM would kill it some seconds later."""
    owner = json.loads((run / "lock").read_text())["pid"]
    subprocess.run(["scancel", *(["--signal=USR2"] if pre_empt else []), job], check=True)
    if not pre_empt:
        os.kill(owner, signal.SIGKILL)


@pytest.mark.parametrize(("args", "message"), [
    (["--slurm", "partition=gpu"], "--slurm and --detach are for jobs of a cluster: add --cluster slurm"),
    (["--cluster", "slurm", "--jobs", "2"], "--cluster and --jobs exclude each other: "),
    (["--cluster", "slurm", "--array-parallelism", "0"], "--array-parallelism is 0; it must be 1 or more"),
    (["--cluster", "slurm", "--slurm", "partitoin=gpu"], "unknown key 'partitoin'. Did you mean 'partition'?"),
    (["--cluster", "slurm"], "--cluster slurm needs sbatch, which is not in PATH"),
])
def test_mistakes_in_the_command_get_one_line(tmp_path, args, message, monkeypatch):
    done = run_tool("reproduce.py", "table1", "--output-dir", tmp_path, *args, PATH=str(tmp_path))
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and message in done.stderr
    assert not list(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "submitit", None)
    done = run_tool("reproduce.py", "table1", "--output-dir", tmp_path, "--cluster", "slurm")
    assert done.stderr.startswith("error: --cluster slurm needs submitit: pip install -e '.[slurm]'")


def test_options_of_a_job():
    assert parse_slurm([]) == {"time": SLURM_TIME}
    assert parse_slurm(["gres=gpu:1", "--cpus-per-task=8", "constraint=a=b"]) == {
        "time": SLURM_TIME, "gres": "gpu:1", "cpus_per_task": 8, "constraint": "a=b"}
    mistakes = {
        "gpu": "write KEY=VALUE", "partition=": "write KEY=VALUE", "comment=a\nrm": "write KEY=VALUE",
        "time=4:00:00": "time must be a whole number of minutes", "cpus_per_task=0": "1 or more",
        "nodes=2": "unknown key 'nodes'",
    }
    for pair, message in mistakes.items():
        with pytest.raises(ConfigError, match=re.escape(message)):
            parse_slurm([pair])


def test_a_dry_run_shows_the_groups(tmp_path):
    done = run_tool("reproduce.py", "table1", "--dry-run", "--cluster", "slurm", "--array-parallelism", 4, "--only",
                    "dtd", "eurosat", "--output-dir", tmp_path, PATH=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "2 jobs, at most 4 at the same time:" in done.stdout
    row = r"^dtd, ViT-L/14, seed 0 +5 +5 +TPT, CTPT, OTPT, SoC, ZeroShot$"
    assert re.search(row, done.stdout, re.MULTILINE), done.stdout
    assert not list(tmp_path.iterdir())


@pytest.fixture
def demo_run(tmp_path, monkeypatch) -> tuple[Workspace, PlannedRun]:
    """A run, and the variables of a job that submitit has started."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    workspace = Workspace(output=tmp_path, demo=True, limit=24)
    return workspace, work_groups(expand(read_experiment("class_pairs"), workspace))[0][-1]


def failure(workspace: Workspace, run: PlannedRun) -> str:
    """What the command reports of a run of that job."""
    cluster = Cluster(workspace, {}, 1)
    cluster.jobs[cluster.key(run)] = Job("7", str(workspace.output / "7_0_log.out"))
    reason = cluster.failure(run)
    assert reason.endswith(f"(log: {workspace.output / '7_0_log.out'})")
    return reason


def test_resubmissions_are_limited(demo_run, monkeypatch):
    job = GroupJob([demo_run[1]])
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(RESUBMISSIONS - 1))
    assert job.checkpoint().function is job
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(RESUBMISSIONS))
    with pytest.raises(SystemExit):
        job.checkpoint()
    assert f"not finished after {RESUBMISSIONS} resubmissions" in failure(*demo_run)


def test_the_reason_of_a_failed_run_reaches_the_command(demo_run):
    run = demo_run[1]
    run.folder.parent.parent.mkdir(parents=True)
    run.folder.parent.write_text("a file where a folder belongs")
    GroupJob([run])()
    assert failure(*demo_run).startswith("cannot make folder")


def test_a_job_waits_for_the_lock_of_a_killed_job_on_another_node(demo_run, monkeypatch):
    run = demo_run[1]
    run.folder.mkdir(parents=True)
    lock = FolderLock(run.folder)
    lock.create({**lock.owner, "host": "another node"})
    for module in (lock_module, cluster_module):
        monkeypatch.setattr(module, "SILENCE", 1.0)
    began = time.monotonic()
    wait_for_locks([run])
    assert 0.9 < time.monotonic() - began < 10
    lock.take()


def test_a_damaged_record_of_jobs_counts_as_none(demo_run, monkeypatch):
    workspace, run = demo_run
    cluster = Cluster(workspace, {}, 1)
    cluster.folder.mkdir(parents=True)
    monkeypatch.setattr(cluster_module, "squeue", dict)
    for content in ("", "[1]", '{"LandCover": 3, "a": {"job": "1"}}'):
        (cluster.folder / "jobs.json").write_text(content)
        cluster.look()
        assert cluster.failure(run) == "not submitted"
