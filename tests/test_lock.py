"""One run folder, one owner: who keeps a lock, who takes it over, what a damaged one means."""
from __future__ import annotations

import contextlib
import dis
import errno
import functools
import gc
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import pytest
from forked import forked
from promptcal.datasets.utils.errors import UserError
from promptcal.datasets.utils.files import write_json
from promptcal.trainers.runs import lock
from promptcal.trainers.runs.lock import RunLock


def take(folder: Path) -> None:
    with RunLock(folder).held():
        pass


def test_a_lock_of_a_dead_or_silent_owner_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gone = subprocess.Popen(["true"])
    gone.wait()
    with RunLock(tmp_path).held():
        owner = json.loads((tmp_path / "lock").read_text())
        with pytest.raises(UserError, match=f"in use by process {os.getpid()} on {owner['host']}"):
            take(tmp_path)
    assert not (tmp_path / "lock").exists()
    write_json(tmp_path / "lock", {**owner, "pid": gone.pid})
    with RunLock(tmp_path).held():
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
    with pytest.raises(UserError, match="on elsewhere"):
        take(tmp_path)
    monkeypatch.setattr(lock, "SILENCE", -1)
    with RunLock(tmp_path).held(), pytest.raises(UserError, match="in use"):  # silent, but alive, as after Ctrl-Z
        take(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", "7", "{}", '{"pid": "x"}', '{"host": "HERE", "pid": null}', "{",
                                     '{"host": "HERE", "pid": 1e3}', '{"host": "HERE", "pid": -1}',
                                     '{"host": "HERE", "pid": 0}', '{"host": "HERE", "pid": 99999999999999999999}'])
def test_a_lock_file_that_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str):
    """It is somebody's who is just writing it, until it has been silent for long."""
    content = content.replace("HERE", RunLock(tmp_path).owner["host"])
    (tmp_path / "lock").write_text(content)
    if "99" not in content:  # no process has this number
        with pytest.raises(UserError, match="in use by process [?]"):
            take(tmp_path)
        monkeypatch.setattr(lock, "SILENCE", -1)
    with RunLock(tmp_path).held() as taken:
        assert taken.ours()
    assert not list(tmp_path.iterdir())


def test_who_has_lost_the_lock_leaves_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lock, "BEAT", 0.02)
    with RunLock(tmp_path).held() as ours:
        (tmp_path / "lock").unlink()
        time.sleep(0.1)  # beats that find no file
        write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
        os.utime(tmp_path / "lock", (1, 1))
        time.sleep(0.1)
        assert not ours.ours() and (tmp_path / "lock").stat().st_mtime == 1
    assert json.loads((tmp_path / "lock").read_text())["host"] == "elsewhere"


def test_a_process_number_given_to_another_is_no_owner(tmp_path: Path):
    with RunLock(tmp_path).held():
        owner = json.loads((tmp_path / "lock").read_text())
    if owner["started"] is None:
        pytest.skip("this system does not tell when a process began")
    write_json(tmp_path / "lock", {**owner, "started": "1"})
    with RunLock(tmp_path).held() as ours:
        assert ours.ours()


def test_a_lock_taken_over_by_another_is_left_to_it(tmp_path: Path):
    """Two processes find the same dead owner: the slower one must not remove the faster one's new lock."""
    slower, dead = RunLock(tmp_path), {"host": "here", "pid": 1}
    with RunLock(tmp_path).held():
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
            slower.take_away(dead)
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert not list(tmp_path.iterdir())


def test_a_clock_that_was_set_back(tmp_path: Path):
    """A sign of life from the future is a sign of life."""
    write_json(tmp_path / "lock", {"host": "elsewhere", "pid": 1})
    os.utime(tmp_path / "lock", (2**33, 2**33))
    with pytest.raises(UserError, match="on elsewhere"):
        take(tmp_path)


class Struck(BaseException):
    """What a signal's handler raises."""


class Strike:
    """Raises in this thread at the n-th moment at which the interpreter looks for signals, in the lock's code and in
    what carries it: as a function begins or goes on, after each call, and when a loop turns."""

    FILES = (lock.__file__, contextlib.__file__)

    def __init__(self, moment: int) -> None:
        self.left = moment

    def __call__(self, frame: FrameType, event: str, _: object) -> Strike | None:
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "call" or (event == "opcode" and frame.f_lasti in looks(frame.f_code)):
            self.left -= 1
            if self.left < 0:
                raise Struck
        return self


@functools.cache
def looks(code: CodeType) -> set[int]:
    steps = list(dis.get_instructions(code))
    after_calls = {step.offset for call, step in pairwise(steps) if call.opname.startswith("CALL")}
    return after_calls | {step.offset for step in steps if step.opname.startswith("JUMP_BACKWARD")}


def test_a_signal_between_any_two_steps_leaves_no_lock(tmp_path: Path):
    """Ctrl-C, SIGTERM and the death of a worker raise wherever the main thread is: within taking the lock, within
    letting go of it, and between either and the `with` statement that it serves."""
    struck = moment = 0
    while struck == moment:
        tracing = sys.gettrace()
        sys.settrace(Strike(moment))
        try:
            with RunLock(tmp_path).held():
                pass
        except Struck:
            struck += 1
        finally:
            sys.settrace(tracing)
        give_up = time.monotonic() + 10
        while list(tmp_path.iterdir()):  # a thread that nobody waits for any more is just removing it
            assert time.monotonic() < give_up, f"left behind after step {moment}"
            gc.collect()
        take(tmp_path)
        assert not lock.HELD and not list(tmp_path.iterdir())
        moment += 1
    assert moment > 30


@pytest.mark.parametrize("mark", [{}, {"mark": "somebody's who did not clear up"}])
def test_a_lock_of_this_process_that_nobody_in_it_holds_is_taken_over(tmp_path: Path, mark: dict):
    owner = {key: value for key, value in RunLock(tmp_path).owner.items() if key != "mark"}
    write_json(tmp_path / "lock", {**owner, **mark})
    with RunLock(tmp_path).held() as ours:
        assert ours.ours()
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):  # which this thread does hold
            take(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_no_lock_that_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lock.json, "dump", full)
        with pytest.raises(UserError, match="cannot write .*lock: No space left on device; choose another"):
            take(tmp_path)
    assert not list(tmp_path.iterdir()) and not lock.HELD
    take(tmp_path)


def test_a_forked_process_leaves_its_parents_lock_alone(tmp_path: Path):
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(RunLock(tmp_path).held())

        def child() -> None:
            with pytest.raises(UserError, match=f"in use by process {os.getppid()}"):
                take(tmp_path)
            stack.close()  # as a worker that ends like any other process

        done = forked(child)
        assert done.returncode == 0, done.stderr
        assert ours.ours()


def test_another_container_of_the_same_name_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its process numbers mean nothing here."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    write_json(tmp_path / "lock", {**RunLock(tmp_path).owner, "system": "another one", "pid": gone.pid})
    with pytest.raises(UserError, match=f"in use by process {gone.pid}"):
        take(tmp_path)
    monkeypatch.setattr(lock, "SILENCE", -1)
    take(tmp_path)
