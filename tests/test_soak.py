"""A long life: mixed methods in one process, run after run, with interruptions, kills, a full disk, a cache that
disappears. Nothing is lost, nothing is wrong, memory stays flat.

A quarter of a minute here; `PROMPTCAL_SOAK=600 bash tools/test.sh tests/test_soak.py` for ten.
"""
from __future__ import annotations

import ctypes
import errno
import gc
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from common import make_image_folder
from forked import forked
from promptcal.datasets.utils import files
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.run_dir import RunDir

SECONDS = float(os.environ.get("PROMPTCAL_SOAK", 10))
METHODS = ("ZeroShot", "TPT", "CTPT", "OTPT", "SoC", "TDA")
# They look at the plain view alone, and take it from the cache of all views where there is one, in which it was
# rounded otherwise, by the company it had in the image tower. And they need no gradients, which torch refuses to
# compute in a copy of a process that has computed some.
PLAIN = ("ZeroShot", "TDA")
FAULTS = ("none", "interrupted", "killed", "disk full", "cache removed")
LEFT = {"config.yaml", "log.txt", "results.json", "predictions.npz", "tensorboard"}
MOST = 50e6  # bytes by which the process may grow once it has met every method and fault


def resident() -> int:
    """Bytes in use, after what the allocator merely holds on to has been given back."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc alone can do that
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    """Runs in one folder, each hit once by a fault at a moment of chance, then finished and compared with what came
    out undisturbed."""

    def __init__(self, clip_file: Path, place: Path) -> None:
        self.moments = random.Random(SECONDS)  # another length is another order
        self.clip, self.cache, self.folder = clip_file, place / "cache", place / "run"
        self.images = make_image_folder(place / "many", images=40)
        self.place, self.seen, self.decks = place, set(), {}
        self.expected = {method: self.run(method, place / "expected" / method) for method in METHODS}

    def run(self, method: str, folder: Path) -> dict[str, np.ndarray]:
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", self.images, "MODEL.BACKBONE.NAME", self.clip, "OUTPUT_DIR", folder, "TTA.VIEWS", 4,
            "TTA.SELECT", 0.5, "TEST.PART", 40, "TTA.EPISODES", 20, "CACHE.DIR", self.cache,
            "DATALOADER.NUM_WORKERS", 0])).run()
        return RunDir(folder).predictions()

    def hit(self, method: str, fault: str, patch: pytest.MonkeyPatch) -> None:
        left = self.moments.randrange(1, 5)
        real_part, real_fsync = RunDir.write_part, os.fsync

        def write_part(*args: object) -> None:
            nonlocal left
            real_part(*args)
            left -= 1
            if not left and fault == "interrupted":
                raise KeyboardInterrupt
            if not left and fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if not left and fault == "cache removed":
                shutil.rmtree(self.cache, ignore_errors=True)

        def fsync(descriptor: int) -> None:
            nonlocal left
            left -= fault == "disk full"
            if not left and fault == "disk full":
                raise OSError(errno.ENOSPC, "No space left on device")
            real_fsync(descriptor)

        patch.setattr(RunDir, "write_part", write_part)
        patch.setattr(files.os, "fsync", fsync)
        if fault == "killed":
            assert forked(lambda: self.run(method, self.folder)).returncode == -signal.SIGKILL
            return
        try:
            self.run(method, self.folder)
        except (KeyboardInterrupt, UserError) as error:
            assert fault in ("interrupted", "disk full"), error

    def round(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """Returns the number of episodes."""
        fault = self.drawn(FAULTS)
        method = self.moments.choice(PLAIN) if fault == "killed" else self.drawn(METHODS)
        with monkeypatch.context() as patch:
            self.hit(method, fault, patch)
        found = self.run(method, self.folder)
        for name, column in self.expected[method].items():
            np.testing.assert_allclose(found[name], column, rtol=0, atol=1e-5 if method in PLAIN else 0,
                                       err_msg=f"{name} of {method} after {fault}")
        assert {path.name for path in self.folder.iterdir()} == LEFT, (method, fault)
        assert not list(self.place.rglob("*.part")) and not list(self.place.rglob("lock"))
        shutil.rmtree(self.folder)
        self.seen |= {method, fault}
        return len(found["index"])

    def drawn(self, all_of: tuple[str, ...]) -> str:
        """One by chance, each once before any comes again."""
        if not self.decks.get(all_of):
            self.decks[all_of] = self.moments.sample(all_of, len(all_of))
        return self.decks[all_of].pop()

    def met_all(self) -> bool:
        return len(self.seen) == len(METHODS) + len(FAULTS)


@pytest.mark.slow
def test_soak(clip_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    soak = Soak(clip_file, tmp_path)
    started, episodes, warm, ends = time.monotonic(), 0, 0, 0.0
    while not warm or time.monotonic() < ends:
        episodes += soak.round(monkeypatch)
        # What a method or a fault takes once and for all it has taken when each has been met.
        if not warm and time.monotonic() - started > SECONDS / 3 and soak.met_all():
            warm, ends = resident(), time.monotonic() + SECONDS * 2 / 3
    grown, seconds = resident() - warm, time.monotonic() - started
    print(f"{episodes} episodes in {seconds:.0f} s, {grown / 1e6:.0f} MB more than when all had been met")
    assert grown < MOST
