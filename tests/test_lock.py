"""The lock of a run folder: who keeps it, who takes it over, and what a damaged file means."""
from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from promptcal.datasets.utils import lock
from promptcal.datasets.utils.errors import UserError
from promptcal.datasets.utils.files import write_json
from promptcal.datasets.utils.lock import FolderLock


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def take(folder: Path) -> None:
    with FolderLock(folder).held() as ours:
        assert ours.is_ours()
    assert not list(folder.iterdir())


def assert_in_use(folder: Path, owner: str) -> None:
    with pytest.raises(UserError, match=f"in use by process {owner}.*choose another --output-dir"):
        take(folder)


@pytest.mark.posix
def test_a_living_owner_keeps_others_out(tmp_path):
    with FolderLock(tmp_path).held():
        owner = json.loads((tmp_path / "lock").read_text())
        assert_in_use(tmp_path, f"{os.getpid()} on {owner['host']}")
    take(tmp_path)


@pytest.mark.posix
def test_a_dead_owner_is_replaced(tmp_path, dead_pid):
    """Also if its number has been given to another process."""
    for change in ({"pid": dead_pid}, {"pid": os.getppid(), "started": "1"}):
        write_json(tmp_path / "lock", {**FolderLock(tmp_path).owner, **change})
        take(tmp_path)


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"system": "another container of the same name"}])
def test_an_owner_elsewhere_is_replaced_after_silence(tmp_path, change, dead_pid):
    """Its process number means nothing here. A touch from the future, after a clock was set back,
    is a touch."""
    write_json(tmp_path / "lock", {**FolderLock(tmp_path).owner, "pid": dead_pid, **change})
    assert_in_use(tmp_path, str(dead_pid))
    os.utime(tmp_path / "lock", (2**33, 2**33))
    assert_in_use(tmp_path, str(dead_pid))
    os.utime(tmp_path / "lock", (1, 1))
    take(tmp_path)


@pytest.mark.posix
def test_a_silent_process_of_this_host_keeps_its_lock(tmp_path):
    """As after Ctrl-Z."""
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        write_json(tmp_path / "lock", {**FolderLock(tmp_path).owner, "pid": sleeper.pid,
                                       "started": lock.start_time(sleeper.pid)})
        os.utime(tmp_path / "lock", (1, 1))
        assert_in_use(tmp_path, str(sleeper.pid))
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"host": "HERE", "pid": null}', '{"host": "HERE", "pid": -1}'])
def test_a_file_without_an_owner_is_replaced_after_silence(tmp_path, content):
    """Its owner may be about to write it."""
    (tmp_path / "lock").write_text(content.replace("HERE", FolderLock(tmp_path).owner["host"]))
    assert_in_use(tmp_path, "[?]")
    os.utime(tmp_path / "lock", (1, 1))
    take(tmp_path)


def test_a_lock_is_touched_and_removed_unless_it_was_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "TOUCH_SECONDS", 0.02)
    with FolderLock(tmp_path).held() as ours:
        os.utime(tmp_path / "lock", (1, 1))
        give_up = time.monotonic() + 10
        while (tmp_path / "lock").stat().st_mtime == 1:
            assert time.monotonic() < give_up
        (tmp_path / "lock").unlink()
        write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
        os.utime(tmp_path / "lock", (1, 1))
        time.sleep(0.1)
        assert not ours.is_ours() and (tmp_path / "lock").stat().st_mtime == 1
    assert json.loads((tmp_path / "lock").read_text())["host"] == "elsewhere"


COUNT = """
import sys, time
from pathlib import Path
from promptcal.datasets.utils.errors import UserError
from promptcal.datasets.utils.lock import FolderLock

folder, rounds = Path(sys.argv[1]), 25
while rounds:
    try:
        with FolderLock(folder).held():
            number = int((folder / "number").read_text())
            time.sleep(0.001)
            (folder / "number").write_text(str(number + 1))
            rounds -= 1
    except UserError:
        time.sleep(0.001)
"""


@pytest.mark.posix
def test_processes_that_find_the_same_dead_owner(tmp_path, dead_pid):
    """One takes the lock over, and the slower ones do not remove its new file. Only an owner
    changes the number."""
    (tmp_path / "number").write_text("0")
    write_json(tmp_path / "lock", {**FolderLock(tmp_path).owner, "pid": dead_pid})
    command = [sys.executable, "-c", COUNT, tmp_path]
    processes = [subprocess.Popen(command) for _ in range(4)]
    for process in processes:
        assert process.wait(60) == 0
    assert (tmp_path / "number").read_text() == "100"


def test_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lock.json, "dump", full)
        with pytest.raises(UserError, match="cannot write .*lock: No space left on device; choose another"):
            take(tmp_path)
    assert not list(tmp_path.iterdir())
    take(tmp_path)
