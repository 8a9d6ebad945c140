"""One run folder, one owner: who keeps a lock, who takes it over, what a damaged one means."""
from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from promptcal.datasets.utils.errors import UserError
from promptcal.datasets.utils.files import write_json
from promptcal.trainers.runs import lock
from promptcal.trainers.runs.lock import RunLock


def test_a_lock_of_a_dead_or_silent_owner_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = RunLock(tmp_path)
    with here:
        owner = json.loads((tmp_path / "lock").read_text())
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on {owner['host']}"):
            RunLock(tmp_path).__enter__()
    assert not (tmp_path / "lock").exists()
    write_json(tmp_path / "lock", {**owner, "pid": gone.pid})
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
    with pytest.raises(UserError, match="on elsewhere"):
        RunLock(tmp_path).__enter__()
    monkeypatch.setattr(lock, "SILENCE", -1)
    with RunLock(tmp_path), pytest.raises(UserError, match="in use"):  # silent, but alive, as after Ctrl-Z
        RunLock(tmp_path).__enter__()


@pytest.mark.parametrize("content", ["", "[1]", "7", "{}", '{"pid": "x"}', '{"host": "HERE", "pid": null}', "{",
                                     '{"host": "HERE", "pid": 1e3}', '{"host": "HERE", "pid": -1}',
                                     '{"host": "HERE", "pid": 0}', '{"host": "HERE", "pid": 99999999999999999999}'])
def test_a_lock_file_that_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str):
    """It is somebody's who is just writing it, until it has been silent for long."""
    content = content.replace("HERE", RunLock(tmp_path).owner["host"])
    (tmp_path / "lock").write_text(content)
    if "99" not in content:  # no process has this number
        with pytest.raises(UserError, match="in use by process [?]"):
            RunLock(tmp_path).__enter__()
        monkeypatch.setattr(lock, "SILENCE", -1)
    with RunLock(tmp_path) as taken:
        assert taken.ours()
    assert not list(tmp_path.iterdir())


def test_who_has_lost_the_lock_leaves_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "BEAT", 0.02)
    with RunLock(tmp_path) as ours:
        (tmp_path / "lock").unlink()
        time.sleep(0.1)  # beats that find no file
        write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
        os.utime(tmp_path / "lock", (1, 1))
        time.sleep(0.1)
        assert not ours.ours() and (tmp_path / "lock").stat().st_mtime == 1
    assert json.loads((tmp_path / "lock").read_text())["host"] == "elsewhere"


def test_a_process_number_given_to_another_is_no_owner(tmp_path: Path):
    with RunLock(tmp_path):
        owner = json.loads((tmp_path / "lock").read_text())
    if owner["started"] is None:
        pytest.skip("this system does not tell when a process began")
    write_json(tmp_path / "lock", {**owner, "started": "1"})
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text()) == owner


def test_a_lock_taken_over_by_another_is_left_to_it(tmp_path: Path):
    """Two processes find the same dead owner: the slower one must not remove the faster one's new lock."""
    slower, dead = RunLock(tmp_path), {"host": "here", "pid": 1}
    with RunLock(tmp_path):
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            slower.take_away(dead)
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_clock_that_was_set_back(tmp_path: Path):
    """A sign of life from the future is a sign of life."""
    write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
    os.utime(tmp_path / "lock", (2**33, 2**33))
    with pytest.raises(UserError, match="on elsewhere"):
        RunLock(tmp_path).__enter__()
