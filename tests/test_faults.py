"""Kill it, stop it, feed it rubbish: the real command under real faults. Nothing is lost or counted twice."""
from __future__ import annotations

import errno
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from common import random_clip
from fault_runs import FaultRuns, parts_of
from processes import Process
from promptcal.datasets.utils.cli import outcome, resumable
from promptcal.datasets.utils.errors import UserError, explaining_faults
from promptcal.datasets.utils.files import write_arrays, write_json
from promptcal.trainers import adapt
from promptcal.trainers.runs.run_dir import RunDir

KILLS = int(os.environ.get("PROMPTCAL_KILLS", 4))  # rounds of kill -9; more for a longer soak


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> FaultRuns:
    return FaultRuns(tmp_path_factory.mktemp("faults"))


@pytest.mark.slow
def test_kill_9_at_random_moments(runs: FaultRuns, tmp_path: Path):
    """Before the first part, between parts, in the middle of one, while results are written. A run that got to its end
    in spite of it is compared, and another begun."""
    moments = random.Random(0)
    folders = [tmp_path / f"run{n}" for n in range(KILLS)]
    run = folders.pop()
    for _ in range(KILLS):
        before = parts_of(run)
        goal = len(before) + moments.choice((0, 1, 6))
        process = Process("train.py", *runs.arguments(run))
        process.wait_for(lambda run=run, goal=goal: (run / "results.json").exists() or (
            (run / "lock").exists() and len(parts_of(run)) >= goal))
        time.sleep(moments.uniform(0, 0.2))
        process.send_all(signal.SIGKILL)
        process.wait()
        if (run / "results.json").exists():
            runs.finish_here(run)
            runs.assert_whole(run)
            run = folders.pop()
        else:
            assert before <= parts_of(run)
    runs.finish_here(run)
    runs.assert_whole(run)


@pytest.mark.parametrize(("send", "sent", "status"), [
    (Process.send, signal.SIGTERM, 143),
    pytest.param(Process.send_all, signal.SIGTERM, 143, marks=pytest.mark.slow),
    pytest.param(Process.send, signal.SIGINT, 130, marks=pytest.mark.slow),
    pytest.param(Process.send_all, signal.SIGINT, 130, marks=pytest.mark.slow),
])
def test_signals_end_the_run_in_order(runs: FaultRuns, tmp_path: Path, sent: signal.Signals, status: int, send):
    run = tmp_path / "run"
    process = Process("train.py", *runs.arguments(run))
    process.wait_for(lambda: parts_of(run))
    send(process, sent)
    _, complaint = process.communicate()
    assert process.returncode == status and "Traceback" not in complaint
    assert "what was finished is kept: the same command continues" in complaint
    assert not (run / "lock").exists() and parts_of(run)
    runs.finish_here(run)
    runs.assert_whole(run)


def test_a_second_process_on_the_same_folder_stops(runs: FaultRuns, tmp_path: Path):
    run = tmp_path / "run"
    first = Process("train.py", *runs.arguments(run))
    try:
        first.wait_for(lambda: (run / "lock").exists() and parts_of(run))
        first.send(signal.SIGSTOP)
        second = runs.here(run)
    finally:
        first.send_all(signal.SIGKILL)
    assert second.returncode == 2 and f"is in use by process {first.pid}" in second.stderr


@pytest.mark.parametrize("damage", [
    "flip", "foreign", *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("cut", "empty"))])
def test_damaged_parts_are_computed_again(runs: FaultRuns, tmp_path: Path, damage: str, monkeypatch):
    run = tmp_path / "run"
    real = RunDir.write_part

    def write_two(folder, *args):
        real(folder, *args)
        if len(parts_of(run)) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write_part", write_two)
        assert runs.here(run).returncode == 130
    victim = run / "parts" / sorted(parts_of(run))[0]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 255
    if damage == "foreign":
        write_arrays(victim, index=np.array([35]), label=np.array([0]))
    else:
        victim.write_bytes({"cut": content[:100], "flip": content, "empty": b""}[damage])
    assert runs.here(run).returncode == 0
    runs.assert_whole(run)


@pytest.mark.parametrize(("limit", "what"), [
    (2500, "parts"), *(pytest.param(limit, "tensorboard", marks=pytest.mark.slow) for limit in (5000, 20000)),
])
def test_a_full_disk_ends_with_one_line_and_no_half_file(runs: FaultRuns, tmp_path: Path, limit: int, what: str):
    """Enough for small files but not for a part; or for parts, but not for all curves; or not for the pictures."""
    run = tmp_path / "run"
    # Workers would need larger files in shared memory.
    process = Process("train.py", *runs.arguments(run, "DATALOADER.NUM_WORKERS", 0), limit=limit)
    _, complaint = process.communicate()
    assert process.returncode == 2 and "Traceback" not in complaint
    assert f"error: cannot write {run / what}" in complaint and "free some space or choose another" in complaint
    assert not list(run.rglob("*.part")) and not (run / "results.json").exists()


def test_an_output_folder_that_cannot_be_made(runs: FaultRuns, tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = runs.here(tmp_path / "file" / "run")
    assert done.returncode == 2 and "error: cannot make folder" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(UserError, match="cannot write .*/results.json: File exists; free some"):
        write_json(tmp_path / "file" / "results.json", {})


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that not even root may write to")
def test_an_output_folder_that_is_read_only(runs: FaultRuns):
    done = runs.here(Path("/sys/kernel"))
    assert done.returncode == 2 and "error: cannot write /sys/kernel/lock" in done.stderr
    assert "choose another --output-dir" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("fault", "remedy"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "use fewer TTA.EPISODES"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "use fewer TTA.EPISODES"),
    (MemoryError(), "use fewer TTA.EPISODES"),
    (RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."), "give /dev/shm more space"),
    (RuntimeError("received 0 items of ancillary data"), "use fewer DATALOADER.NUM_WORKERS"),
    (OSError(errno.EMFILE, "Too many open files"), "raise `ulimit -n`"),
    (RuntimeError("Too many open files. Communication with the workers is no longer possible."), "raise `ulimit -n`"),
    (RuntimeError("can't start new thread"), "`ulimit -u`, or set DATALOADER.NUM_WORKERS 0"),
], ids=["cuda", "cpu", "python", "shared memory", "descriptors", "files", "workers' files", "threads"])
def test_faults_of_the_machine_are_one_line(fault: Exception, remedy: str, capsys):
    def main() -> None:
        raise fault

    assert outcome(main) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ") and remedy in complaint and len(complaint.splitlines()) == 1


def test_an_error_of_the_program_in_a_worker_is_told_in_full():
    with pytest.raises(RuntimeError, match="Caught"), explaining_faults():
        raise RuntimeError("Caught RuntimeError in DataLoader worker process 0.")


def test_no_cuda_gets_a_remedy(runs: FaultRuns, tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    done = runs.here(tmp_path / "run", "DEVICE", "cuda")
    assert done.returncode == 2 and "use DEVICE cpu, or auto" in done.stderr


@pytest.mark.slow
def test_thousands_of_episodes_leave_memory_flat():
    model = random_clip(layers=1)
    views = torch.randn(40, 4, 3, 32, 32)
    names = ["cat", "dog", "crop land"]

    def episodes(count: int) -> int:
        for _ in range(count // len(views)):
            adapt("SoC", model, names, views, opts=["TTA.STEPS", 2, "TTA.SELECT", 0.5, "TTA.EPISODES", 40])
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = episodes(400)
    after = episodes(2000)
    assert after - before < 20e6


def test_only_commands_that_go_on_say_so(capsys: pytest.CaptureFixture):
    def main() -> None:
        raise KeyboardInterrupt

    assert outcome(main) == 130 and capsys.readouterr().err == "interrupted\n"
    assert outcome(resumable(main)) == 130
    assert capsys.readouterr().err == "interrupted; what was finished is kept: the same command continues\n"
