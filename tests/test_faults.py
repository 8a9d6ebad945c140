"""The real command under real faults: nothing is lost or counted twice.

Kills, signals, damaged parts and full disks.
"""
from __future__ import annotations

import errno
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from promptcal.datasets.utils.cli import outcome, report_thread, resumable

from fault_runs import FaultRuns, parts_of
from folders import interrupted_at
from processes import Process

KILLS = int(os.environ.get("PROMPTCAL_KILLS", 3))  # rounds of kill -9; more for a longer test


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> FaultRuns:
    return FaultRuns(tmp_path_factory.mktemp("faults"))


@pytest.mark.slow
def test_kill_9_at_random_moments(runs, tmp_path):
    """Before the first part, between parts, within one, while results are written."""
    moments = random.Random(0)
    run = tmp_path / "run0"
    for number in range(1, KILLS + 1):
        before = parts_of(run)
        goal = len(before) + moments.choice((0, 1, 6))
        process = Process("train.py", *runs.arguments(run))

        def reached(run=run, goal=goal) -> bool:
            has_begun = (run / "lock").exists() and len(parts_of(run)) >= goal
            return has_begun or (run / "results.json").exists()

        process.wait_for(reached)
        time.sleep(moments.uniform(0, 0.2))
        process.send_all(signal.SIGKILL)
        process.communicate()
        if (run / "results.json").exists():
            runs.finish_here(run)
            runs.assert_whole(run)
            run = tmp_path / f"run{number}"
        else:
            assert before <= parts_of(run)
    runs.finish_here(run)
    runs.assert_whole(run)


@pytest.mark.parametrize(("sent", "status"), [
    (signal.SIGTERM, 143),
    (signal.SIGUSR1, 143),
    pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
])
def test_signals_end_the_run_in_order(runs, tmp_path, sent, status):
    run = tmp_path / "run"
    process = Process("train.py", *runs.arguments(run))
    process.wait_for(lambda: parts_of(run))
    process.send_all(sent)
    _, complaint = process.communicate()
    assert process.returncode == status and "Traceback" not in complaint
    assert "finished work is kept: the same command continues" in complaint
    assert not (run / "lock").exists() and parts_of(run)
    runs.finish_here(run)
    runs.assert_whole(run)


def test_a_second_process_on_the_same_folder_stops(runs, tmp_path):
    """Also if the first one is stopped, as by Ctrl-Z."""
    run = tmp_path / "run"
    first = Process("train.py", *runs.arguments(run))
    try:
        first.wait_for(lambda: (run / "lock").exists() and parts_of(run))
        first.send(signal.SIGSTOP)
        second = runs.here(run)
    finally:
        first.send_all(signal.SIGKILL)
        first.communicate()
    assert second.returncode == 2 and f"is in use by process {first.pid}" in second.stderr


def test_damaged_parts_are_computed_again(runs, tmp_path):
    run = tmp_path / "run"
    with interrupted_at("parts/*.npz", 4):
        assert runs.here(run).returncode == 130
    flipped, cut, exchanged, other = [run / "parts" / name for name in sorted(parts_of(run))]
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 255
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:100])
    exchanged.write_bytes(other.read_bytes())
    runs.finish_here(run)
    runs.assert_whole(run)


@pytest.mark.parametrize(("limit", "what"), [(2500, "parts"), (5000, "tensorboard")])
def test_a_full_disk_ends_with_one_line_and_no_half_file(runs, tmp_path, limit, what, monkeypatch):
    """Enough for small files but not for a part; or for parts, but not for all curves."""
    run = tmp_path / "run"
    monkeypatch.setattr(threading, "excepthook", report_thread)  # as every command does
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        done = runs.here(run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: cannot write {run / what}" in done.stderr
    assert "free some space or choose another" in done.stderr
    assert not list(run.rglob("*.part")) and not (run / "results.json").exists()


READ_ONLY = Path("/sys/kernel/iommu_groups")  # an empty folder in which not even root can write
needs_read_only = pytest.mark.skipif(not READ_ONLY.is_dir(), reason="needs a read-only folder")
REFUSED = f"cannot write {READ_ONLY}/lock: Permission denied; choose another --output-dir"


@pytest.mark.parametrize(("folder", "line"), [
    ("file/run", "error: cannot make folder"),
    pytest.param(READ_ONLY, f"error: {REFUSED}", marks=needs_read_only),
])
def test_an_output_folder_that_cannot_be_written(runs, tmp_path, folder, line):
    (tmp_path / "file").write_text("")
    done = runs.here(tmp_path / folder)
    assert done.returncode == 2 and line in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("fault", "remedy"), [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "use fewer TTA.EPISODES"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "use fewer TTA.EPISODES"),
    (MemoryError(), "use fewer TTA.EPISODES"),
    (torch.AcceleratorError("CUDA error: no access\nmore"),
     "the GPU has failed (CUDA error: no access); finished"),
    (OSError(errno.EMFILE, "Too many open files"), "raise `ulimit -n`"),
    (RuntimeError("can't start new thread"), "`ulimit -u`, or set DATALOADER.NUM_WORKERS 1"),
], ids=["gpu memory", "cpu memory", "python", "gpu", "files", "threads"])
def test_faults_of_the_machine_are_one_line(fault, remedy, capsys):
    """Errors of the program are not hidden."""
    def main(fault: Exception = fault) -> None:
        raise fault

    assert outcome(main) == 2
    with pytest.raises(RuntimeError, match="something else"):
        outcome(lambda: main(RuntimeError("something else")))
    complaint = capsys.readouterr().err
    assert complaint.startswith("error: ") and remedy in complaint and len(complaint.splitlines()) == 1


def test_only_resumable_commands_say_that_they_continue(capsys):
    def main() -> None:
        raise KeyboardInterrupt

    assert outcome(main) == 130 and capsys.readouterr().err == "interrupted\n"
    assert outcome(resumable()(main)) == 130
    message = "interrupted; finished work is kept: the same command continues\n"
    assert capsys.readouterr().err == message
