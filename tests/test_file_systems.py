"""Disks that lack what others have: locks, hard links, renames from one to another."""
from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from forked import forked
from promptcal.datasets.download.install import move
from promptcal.datasets.utils.errors import UserError
from promptcal.datasets.utils.files import write_json
from promptcal.datasets.utils.locking import locked
from promptcal.trainers.runs.lock import RunLock
from refused_calls import refuse


@pytest.fixture
def without_locks():
    """What makes a forked process one whose disk has neither locks nor hard links."""
    def refusing() -> None:
        refuse(errno.ENOLCK, "flock", "link", "linkat")

    if forked(refusing).returncode:
        pytest.skip("this system lets no process refuse calls")
    return refusing


def test_a_run_keeps_others_out_without_locks(without_locks, tmp_path: Path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    write_json(tmp_path / "lock", {**RunLock(tmp_path).owner, "pid": gone.pid})

    def child() -> None:
        without_locks()
        with pytest.raises(OSError, match="No locks available"), (tmp_path / "x").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        with RunLock(tmp_path).held() as ours:  # a dead owner's
            assert ours.ours()
            with pytest.raises(UserError, match=f"in use by process {os.getpid()}"), RunLock(tmp_path).held():
                pass
            with pytest.raises(UserError, match="in use"):  # taken over by another: given back without a hard link
                RunLock(tmp_path).take_away({"host": "here", "pid": 1})
            assert ours.ours()
        assert not (tmp_path / "lock").exists()

    done = forked(child)
    assert done.returncode == 0, done.stderr


def test_a_whole_run_without_locks(without_locks, train, tmp_path: Path):
    def child() -> None:
        without_locks()
        done = train("ZeroShot", "CACHE.DIR", tmp_path / "cache")
        assert done.returncode == 0, done.stderr

    done = forked(child)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "results.json").read_text())["complete"]


def test_downloads_without_locks_go_on_and_say_so(without_locks, tmp_path: Path):
    def child() -> None:
        logging.basicConfig(stream=sys.stdout, format="%(message)s", force=True)
        without_locks()
        with locked(tmp_path / "lock", "downloads"):
            print("at work")
        assert not (tmp_path / "lock").exists()

    done = forked(child)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (f"{tmp_path / 'lock'}: no locks here (No locks available): do not let two processes work at "
                           f"once\nat work\n")


@pytest.fixture
def other_disk(tmp_path: Path):
    if not os.access("/dev/shm", os.W_OK) or Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_data_set_whose_folder_is_on_another_disk(other_disk: Path, tmp_path: Path, kind: str, monkeypatch):
    """`data/eurosat` may be a link to where there is room. A copy that is cut off is not taken for the whole."""
    (tmp_path / "eurosat").symlink_to(other_disk)
    made, target = tmp_path / "made", tmp_path / "eurosat" / "images"
    if kind == "folder":
        (made / "forest").mkdir(parents=True)
        (made / "forest" / "1.jpg").write_text("a picture")
    else:
        made.write_text("a picture")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space"):
            move(made, target)
    assert not target.exists() and made.exists()
    move(made, target)
    assert (target if kind == "file" else target / "forest" / "1.jpg").read_text() == "a picture"
    assert [path.name for path in other_disk.iterdir()] == ["images"]
