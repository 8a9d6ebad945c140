"""Disks without locks or hard links, and renames from one disk to another."""
from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from promptcal.datasets.download.install import move
from promptcal.datasets.utils.lock import OwnedLock

from folders import names, results_of


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    for module, name in ((fcntl, "flock"), (fcntl, "lockf"), (os, "link")):
        monkeypatch.setattr(module, name, refuse)


def test_a_run_and_a_download_without_locks(without_locks, train, tmp_path):
    assert train("ZeroShot", "CACHE.DIR", tmp_path / "cache").returncode == 0
    assert results_of(tmp_path / "run")["complete"]
    lock = OwnedLock(tmp_path / "lock")
    with lock.awaited("downloads"):
        assert lock.is_ours()
    assert not lock.path.exists()


@pytest.fixture
def other_disk(tmp_path: Path):
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.parametrize("image", ["forest/1.jpg", ""], ids=["folder", "file"])
def test_a_data_set_whose_folder_is_on_another_disk(other_disk, tmp_path, image, monkeypatch):
    """`data/eurosat` may be a link to a larger disk. A copy that is cut off is not complete."""
    (tmp_path / "eurosat").symlink_to(other_disk)
    source = tmp_path / "unpacked"
    target = tmp_path / "eurosat" / "images"
    (source / image).parent.mkdir(parents=True, exist_ok=True)
    (source / image).write_text("an image")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(OSError, match="No space"):
            move(source, target)
    assert not target.exists() and source.exists()
    move(source, target)
    assert (target / image).read_text() == "an image"
    assert names(other_disk) == ["images"]
