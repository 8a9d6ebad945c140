"""A long life: mixed methods in one process, run after run, with interruptions, a full disk, a cache that disappears
and workers that die. Nothing is lost, nothing is wrong, memory stays flat.

Half a minute here; `PROMPTCAL_SOAK=600 bash tools/test.sh tests/test_soak.py` for ten.
"""
from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from promptcal.datasets.utils import files
from promptcal.datasets.utils.errors import UserError
from promptcal.trainers import build_cfg, build_trainer
from promptcal.trainers.runs.folder import RunFolder

SECONDS = float(os.environ.get("PROMPTCAL_SOAK", 30))
METHODS = ("ZeroShot", "TPT", "CTPT", "OTPT", "SoC", "TDA")
# They look at the plain view alone, and take it from the cache of all views where there is one, in which it was
# rounded otherwise, by the company it had in the image tower.
PLAIN = ("ZeroShot", "TDA")
FAULTS = ("none", "interrupted", "disk full", "cache removed", "worker killed")


def resident() -> int:
    """Bytes in use, after what the allocator merely holds on to has been given back."""
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc alone can do that
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kill_workers() -> None:
    for worker in multiprocessing.active_children():
        worker.kill()


@pytest.mark.slow
@pytest.mark.skipif("PROMPTCAL_SOAK" not in os.environ, reason="long: PROMPTCAL_SOAK=600 runs ten minutes")
def test_soak(clip_file: Path, image_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    moments = random.Random(0)
    cache = tmp_path / "cache"

    def run(method: str, folder: Path, workers: int = 0) -> dict[str, np.ndarray]:
        build_trainer(build_cfg(method, "configs/datasets/image_folder.yaml", flags=[
            "DATASET.ROOT", image_folder, "MODEL.BACKBONE.NAME", clip_file, "OUTPUT_DIR", folder, "TTA.VIEWS", 10,
            "TEST.PART", 3, "TTA.EPISODES", 2, "CACHE.DIR", cache, "DATALOADER.NUM_WORKERS", workers])).run()
        return RunFolder(folder).predictions()

    def faulty(method: str, folder: Path, fault: str) -> None:
        """A run that is hit once, at a moment of chance."""
        left = moments.randrange(1, 5)
        real_part, real_fsync = RunFolder.write_part, os.fsync

        def write_part(*args) -> None:
            nonlocal left
            real_part(*args)
            left -= 1
            if not left and fault == "interrupted":
                raise KeyboardInterrupt
            if not left and fault == "cache removed":
                shutil.rmtree(cache, ignore_errors=True)
            if fault == "worker killed":
                kill_workers()

        def fsync(descriptor: int) -> None:
            nonlocal left
            left -= fault == "disk full"
            if not left and fault == "disk full":
                raise OSError(errno.ENOSPC, "No space left on device")
            real_fsync(descriptor)

        if fault == "worker killed":
            shutil.rmtree(cache, ignore_errors=True)  # so that there is work for them
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "write_part", write_part)
            patch.setattr(files.os, "fsync", fsync)
            try:
                run(method, folder, workers=int(fault == "worker killed"))
            except (KeyboardInterrupt, UserError) as error:
                assert fault in ("interrupted", "disk full", "worker killed"), error

    expected = {method: run(method, tmp_path / "expected" / method) for method in METHODS}
    started, episodes, warm, ends = time.monotonic(), 0, 0, 0.0
    seen = set()
    while not warm or time.monotonic() < ends:
        method, fault, folder = moments.choice(METHODS), moments.choice(FAULTS), tmp_path / "run"
        faulty(method, folder, fault)
        found = run(method, folder)
        for name, column in expected[method].items():
            np.testing.assert_allclose(found[name], column, rtol=0, atol=1e-5 if method in PLAIN else 0,
                                       err_msg=f"{name} of {method} after {fault}")
        assert {path.name for path in folder.iterdir()} == {
            "config.yaml", "log.txt", "results.json", "predictions.npz", "tensorboard"}
        assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("lock"))
        shutil.rmtree(folder)
        seen |= {method, fault}
        episodes += len(found["index"])
        # What a method or a fault takes once and for all it has taken when each has been met.
        if not warm and time.monotonic() - started > SECONDS / 3 and len(seen) == len(METHODS) + len(FAULTS):
            warm, ends = resident(), time.monotonic() + SECONDS * 2 / 3
    grown = resident() - warm
    seconds = time.monotonic() - started
    print(f"{episodes} episodes in {seconds:.0f} s, {grown / 1e6:.0f} MB more than when all had been met")
    assert grown < 100e6
